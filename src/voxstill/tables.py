"""Append-only Parquet tables of nouns: rows out equal rows in, and equal rows give equal bytes.

A table is a prefix in a store that holds parts; a part is written once, by `Store.create`, and never changed. A table
is finished when its `_SUCCESS.json` is there; readers of a step's output go through it.
"""

from __future__ import annotations

import dataclasses
import io
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from voxstill.errors import DataError
from voxstill.store import Store

Row = TypeVar("Row")
SUCCESS = "_SUCCESS.json"


def to_parquet(rows: Sequence[Row], kind: type[Row]) -> bytes:
    """The rows as one Parquet file; equal rows give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {field.name: [_plain(getattr(row, field.name)) for row in rows] for field, _ in _hints(kind)}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema(kind)), sink, compression="zstd")
    return sink.getvalue()


def from_parquet(data: bytes, kind: type[Row], where: str = "a table") -> list[Row]:
    """The rows of one Parquet file; DataError where it is torn or of another kind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(data), schema=schema(kind))
        for column in table.schema:  # Arrow fills a column that is absent with nulls, whatever the schema says
            if not column.nullable and table[column.name].null_count:
                raise pa.ArrowInvalid(f"its column `{column.name}` is empty or absent")
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"`{where}` is not a table of {kind.__name__} rows",
            why=str(error).splitlines()[0],
            fix="remove the file and run the step again",
        ) from None
    builders = {field.name: _builder(hint) for field, hint in _hints(kind)}
    return [kind(**{name: builders[name](value) for name, value in row.items()}) for row in table.to_pylist()]


def schema(kind: Any) -> Any:
    """The Arrow schema of a noun; optional fields are nullable, the others are not."""
    import pyarrow as pa

    return pa.schema([_arrow_field(field.name, hint) for field, hint in _hints(kind)])


def parts(store: Store, prefix: str) -> list[str]:
    """Keys of a table's parts, sorted."""
    return sorted(entry.key for entry in store.list(prefix) if entry.key.endswith(".parquet"))


def read(store: Store, prefix: str, kind: type[Row]) -> Iterator[Row]:
    """Every row of a table, part by part."""
    for key in parts(store, prefix):
        yield from from_parquet(store.read(key), kind, store.uri(key))


def _hints(kind: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field, hints[field.name]) for field in dataclasses.fields(kind))


def _arrow_field(name: str, hint: Any) -> Any:
    import pyarrow as pa

    inner = [each for each in get_args(hint) if each is not types.NoneType]
    if get_origin(hint) in (Union, types.UnionType):
        return pa.field(name, _arrow_type(inner[0]), nullable=True)
    return pa.field(name, _arrow_type(hint), nullable=False)


def _arrow_type(hint: Any) -> Any:
    import pyarrow as pa

    origin = get_origin(hint)
    if origin is Literal:
        return pa.string()
    if origin is tuple:
        return pa.list_(pa.field("item", _arrow_type(get_args(hint)[0]), nullable=False))
    if origin is not None and issubclass(origin, Mapping):
        return pa.map_(pa.string(), _arrow_type(get_args(hint)[1]))
    if dataclasses.is_dataclass(hint):
        return pa.struct([_arrow_field(field.name, inner) for field, inner in _hints(hint)])
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary()}[hint]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _builder(hint: Any) -> Any:
    """How a value read from Arrow becomes a field of the noun again."""
    origin = get_origin(hint)
    if origin is tuple:
        if dataclasses.is_dataclass(get_args(hint)[0]):
            inner: Any = get_args(hint)[0]
            return lambda values: tuple(inner(**value) for value in values)
        return tuple
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return dict
    return lambda value: value
