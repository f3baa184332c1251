"""Append-only Parquet tables of dataclasses: rows out equal rows in, and equal rows give equal bytes.

The columns of a noun are its fields; a field that is itself a noun has no column but those of its own fields, side by
side with the others.

A table is a prefix in a store that holds parts; a part is written once, by `Store.create`, and never changed. A table
is finished when its `_SUCCESS.json` exists; readers of a step's output go through it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from voxstill.core.errors import DataError
from voxstill.core.records import fingerprint
from voxstill.storage import parquet
from voxstill.storage.arrays import arrow_array
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")
SUCCESS = "_SUCCESS.json"
READERS = 8


def to_parquet(rows: Sequence[Row], kind: type[Row]) -> bytes:
    """The rows as one Parquet file; equal rows give equal bytes."""
    return arrow_to_parquet(table(rows, kind))


def table(rows: Sequence[Row], kind: type[Row]) -> pa.Table:
    """The rows as an Arrow table."""
    import pyarrow as pa

    fields = schema(kind)
    columns = []
    for column, field in zip(_columns(kind), fields, strict=True):
        values = list(map(attrgetter(column.path), rows))
        plain = list(map(_plain, values)) if pa.types.is_nested(field.type) else values
        columns.append(arrow_array(plain, field.type))
    return pa.table(columns, schema=fields)


def to_columns(row: DataclassInstance) -> dict[str, object]:
    """One row by the names of its columns, in their order, as lists, dicts and plain values."""
    return {column.name: _plain(attrgetter(column.path)(row)) for column in _columns(type(row))}


def from_columns(row: Mapping[str, Any], kind: type[Row]) -> Row:
    """Build one row from its columns; fields whose columns are absent have their defaults."""
    return _builder(kind)(row)


def arrow_to_parquet(table: pa.Table) -> bytes:
    """An Arrow table with the columns of a dataclass as one Parquet file; equal columns give equal bytes."""
    return parquet.encode(table)


def from_parquet(data: bytes, kind: type[Row], where: str = "a table", names: Sequence[str] | None = None) -> list[Row]:
    """The rows of one Parquet file; DataError if it is torn or of another kind.

    With `names` only those fields are read, and the others have their defaults.
    """
    return list(map(_builder(kind), to_arrow(data, kind, where, names).to_pylist()))


def to_arrow(
    data: bytes, kind: type[DataclassInstance], where: str = "a table", names: Sequence[str] | None = None
) -> pa.Table:
    """The columns of one Parquet file, all of its kind or those named, as an Arrow table; DataError as above."""
    import pyarrow as pa

    what = f"table of {kind.__name__} rows"
    wanted = [field for field in schema(kind) if names is None or field.name in names]
    file = parquet.decode(data, where, what)
    try:
        there = set(file.schema_arrow.names)  # which is computed again each time that it is asked for
        present = [field.name for field in wanted if field.name in there]
        data_table = file.read(columns=present, use_threads=False)
        num_rows = file.metadata.num_rows
        columns = [
            _cast(data_table[field.name], field.type) if field.name in present else pa.nulls(num_rows, field.type)
            for field in wanted
        ]
        for field, column in zip(wanted, columns, strict=True):
            if not field.nullable and column.null_count:
                raise pa.ArrowInvalid(f"its column `{field.name}` is empty or absent")
    except (pa.ArrowException, OSError) as error:
        raise parquet.refused(error, where, what) from None
    return pa.table(columns, schema=pa.schema(wanted))


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column as another type; one of that type stays as it is, for casting loads all of Arrow's functions."""
    return column if column.type == kind else column.cast(kind)


def columns(
    store: Store, keys: Iterable[str], kind: type[DataclassInstance], names: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """`to_arrow` of every part in the order of `keys`; the next ones are read ahead."""
    ahead: deque[Future[pa.Table]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        try:
            for key in keys:
                ahead.append(pool.submit(lambda key: to_arrow(store.read(key), kind, store.uri(key), names), key))
                if len(ahead) > 2 * READERS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def schema(kind: type[DataclassInstance]) -> pa.Schema:
    """The Arrow schema of a dataclass; optional fields are nullable, the others are not."""
    return _schema(kind)


@functools.cache
def _schema(kind: type[DataclassInstance]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([_arrow_field(column.name, column.hint) for column in _columns(kind)])


def parts(store: Store, prefix: str) -> list[str]:
    """The keys of a table's parts, sorted."""
    return sorted(entry.key for entry in store.list(prefix) if entry.key.endswith(".parquet"))


def read(store: Store, prefix: str, kind: type[Row]) -> Iterator[Row]:
    """Every row of a table, part by part."""
    for key in parts(store, prefix):
        yield from from_parquet(store.read(key), kind, store.uri(key))


def parts_hash(store: Store, prefix: str) -> str:
    """A hash of the names and sizes of a table's parts: it changes when parts are added or removed. Reads no part."""
    entries = sorted((entry.key, entry.num_bytes) for entry in store.list(prefix) if entry.key.endswith(".parquet"))
    return fingerprint(len(entries), hashlib.sha256(json.dumps(entries).encode()).hexdigest())


class IdSet:
    """A compact set of ids: 16 bytes an id, ten million in 160 MB; two of so many collide with probability 2**-82."""

    def __init__(self, ids: Iterable[str]) -> None:
        source, joined = iter(ids), bytearray()
        while block := list(islice(source, 4096)):
            joined += digests(block)
        self._sorted_N = np.frombuffer(joined, "S16")
        self._sorted_N.sort()

    def __contains__(self, id_: object) -> bool:
        return bool(self.has([str(id_)])[0])

    def has(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each id is in the set, [N]."""
        digest_N = np.frombuffer(digests(ids), "S16")
        if not len(self._sorted_N):
            return np.zeros(len(ids), np.bool_)
        at_N = np.minimum(self._sorted_N.searchsorted(digest_N), len(self._sorted_N) - 1)
        return np.asarray(self._sorted_N[at_N] == digest_N)


class IdMap:
    """A compact map from an id to the number of the sequence that holds it, the first of several; 20 bytes an id."""

    def __init__(self, numbered: Iterable[Sequence[str]]) -> None:
        joined, numbers = bytearray(), array("i")
        for number, ids in enumerate(numbered):
            joined += digests(ids)
            numbers.extend([number] * len(ids))
        digest_N = np.frombuffer(joined, "S16")
        order_N = np.argsort(digest_N, kind="stable")
        self._sorted_N, self._number_N = digest_N[order_N], np.frombuffer(numbers, np.int32)[order_N]

    def of(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """The number of the sequence of each id, -1 where none holds it, [N]."""
        if not len(self._sorted_N):
            return np.full(len(ids), -1, np.int32)
        digest_N = np.frombuffer(digests(ids), "S16")
        at_N = np.minimum(self._sorted_N.searchsorted(digest_N), len(self._sorted_N) - 1)
        return np.where(self._sorted_N[at_N] == digest_N, self._number_N[at_N], np.int32(-1))


class IdCount:
    """Which of several sequences of ids hold one that an earlier one holds, or one twice; 20 bytes an id."""

    def __init__(self) -> None:
        self._digests, self._numbers = bytearray(), array("i")
        self._sequences = 0

    def add(self, digests: bytes) -> None:
        """Add the next sequence, by the `digests` of its ids."""
        self._digests += digests
        self._numbers.extend([self._sequences] * (len(digests) // 16))
        self._sequences += 1

    def __len__(self) -> int:
        return len(self._numbers)

    def num_missing(self, others: IdCount) -> int:
        """How many of the ids are not among others."""
        return int((~np.isin(self._ids(), others._ids())).sum())

    def num_distinct(self) -> int:
        """How many different ids there are."""
        return len(np.unique(self._ids()))

    def doubled(self) -> list[int]:
        """The numbers of those sequences."""
        order_N = np.argsort(self._ids(), kind="stable")
        sorted_N = self._ids()[order_N]
        later_N = np.frombuffer(self._numbers, np.int32)[order_N[1:][sorted_N[1:] == sorted_N[:-1]]]
        return [int(number) for number in np.unique(later_N)]

    def _ids(self) -> NDArray[np.bytes_]:
        return np.frombuffer(bytes(self._digests), "S16")


def doubled_ids(where: str, what: str) -> DataError:
    """The error of a table in which an id stands twice."""
    return DataError(
        f"`{where}` has {what} twice",
        code="table-broken",
        why="two commands wrote it at the same time, which was possible in versions without the lease, or a part "
        "was copied",
        fix="run `voxstill verify WORK --repair`, with the options that the table was made with",
    )


def digests(ids: Iterable[str]) -> bytes:
    """Sixteen bytes for each id: of ten million two are equal with probability 2**-82."""
    return b"".join([hashlib.blake2b(id_.encode(), digest_size=16).digest() for id_ in ids])


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """One field of a noun; a nested noun has no column of its own, for its fields have."""

    name: str
    column: str
    """Called as the field, unless its metadata says `column`."""
    hint: object
    noun: type[DataclassInstance] | None
    """The class of a nested noun."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """One column of a noun's table; `path` leads to its value, through the nested noun that it is a field of."""

    name: str
    path: str
    hint: object


@functools.cache
def _fields(kind: type[DataclassInstance]) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    return tuple(
        _Field(field.name, field.metadata.get("column", field.name), hints[field.name], _noun(hints[field.name]))
        for field in dataclasses.fields(kind)
    )


def _noun(hint: object) -> type[DataclassInstance] | None:
    """The type of a field where it is a dataclass, else None."""
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


@functools.cache
def _columns(kind: type[DataclassInstance]) -> tuple[_Column, ...]:
    """The columns of a noun's table, in their order."""
    columns: list[_Column] = []
    for field in _fields(kind):
        if field.noun is None:
            columns.append(_Column(field.column, field.name, field.hint))
        else:
            columns += (_Column(inner.name, f"{field.name}.{inner.path}", inner.hint) for inner in _columns(field.noun))
    return tuple(columns)


def _arrow_field(name: str, hint: object) -> pa.Field:
    import pyarrow as pa

    inner = [arg for arg in get_args(hint) if arg is not types.NoneType]
    if get_origin(hint) in (Union, types.UnionType):
        return pa.field(name, _arrow_type(inner[0]), nullable=True)
    return pa.field(name, _arrow_type(hint), nullable=False)


def _arrow_type(hint: object) -> pa.DataType:
    import pyarrow as pa

    origin = get_origin(hint)
    if origin is Literal:
        return pa.string()
    if origin is tuple:
        return pa.list_(pa.field("item", _arrow_type(get_args(hint)[0]), nullable=False))
    if (noun := _noun(hint)) is not None:
        return pa.struct([_arrow_field(column.name, column.hint) for column in _columns(noun)])
    plain: dict[object, pa.DataType] = {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        bytes: pa.binary(),
    }
    return plain[hint]


def _tuple_of(hint: object) -> object | None:
    """The type of the items of a tuple, also of an optional one; None for any other type."""
    hints = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return next((get_args(one)[0] for one in hints if get_origin(one) is tuple), None)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_columns(value)
    return value


def _builder(kind: type[Row]) -> Callable[[Mapping[str, Any]], Row]:
    """The function that builds a row from its columns, made once for each class: it runs for millions of rows."""
    return _resolved_builder(kind)  # whose cache does not know the type of the row


@functools.cache
def _resolved_builder(kind: type[DataclassInstance]) -> Callable[[Mapping[str, Any]], Any]:
    plain, converted, nested = [], [], []
    make: Callable[..., Any] = kind
    for field in _fields(kind):
        if field.noun is not None:
            nested.append((field.name, _builder(field.noun)))
        elif (items := _tuple_of(field.hint)) is not None:
            item = _noun(items)
            converted.append((field.name, field.column, None if item is None else _builder(item)))
        else:
            plain.append((field.name, field.column))

    def build(row: Mapping[str, Any]) -> Any:
        fields = {name: row[column] for name, column in plain if column in row}
        for name, column, item_builder in converted:
            if column in row:
                values = row[column]
                if item_builder is not None and values is not None:
                    values = map(item_builder, values)
                fields[name] = None if values is None else tuple(values)
        for name, nested_builder in nested:
            fields[name] = nested_builder(row)
        return make(**fields)

    return build
