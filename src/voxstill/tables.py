"""Append-only Parquet tables of nouns: rows out equal rows in, and equal rows give equal bytes.

A table is a prefix in a store that holds parts; a part is written once, by `Store.create`, and never changed. A table
is finished when its `_SUCCESS.json` is there; readers of a step's output go through it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import types
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from operator import attrgetter
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from voxstill.errors import DataError
from voxstill.records import fingerprint
from voxstill.store import Store

Row = TypeVar("Row")
SUCCESS = "_SUCCESS.json"
READERS = 8


def to_parquet(rows: Sequence[Row], kind: type[Row]) -> bytes:
    """The rows as one Parquet file; equal rows give equal bytes."""
    return of_arrow(table(rows, kind))


def table(rows: Sequence[Row], kind: type[Row]) -> Any:
    """The rows as an Arrow table."""
    import pyarrow as pa

    fields = schema(kind)
    columns = {field.name: list(map(attrgetter(field.name), rows)) for field in fields}
    for field in fields:
        if pa.types.is_nested(field.type):
            columns[field.name] = list(map(_plain, columns[field.name]))
    return pa.table(columns, schema=fields)


def of_arrow(table: Any) -> bytes:
    """An Arrow table with the columns of a noun as one Parquet file; equal columns give equal bytes."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def from_parquet(data: bytes, kind: type[Row], where: str = "a table", names: Sequence[str] | None = None) -> list[Row]:
    """The rows of one Parquet file; DataError where it is torn or of another kind.

    Where `names` are given only those fields are read, and the others are as by default.
    """
    table = to_arrow(data, kind, where, names)
    builders = {field.name: _builder(hint) for field, hint in _hints(kind) if field.name in table.column_names}
    return [kind(**{name: builders[name](value) for name, value in row.items()}) for row in table.to_pylist()]


def to_arrow(data: bytes, kind: type[Row], where: str = "a table", names: Sequence[str] | None = None) -> Any:
    """The columns of one Parquet file, all of its kind or those named, as an Arrow table; DataError as above."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = [field for field in schema(kind) if names is None or field.name in names]
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        there = [field.name for field in wanted if field.name in file.schema_arrow.names]
        found = file.read(columns=there, use_threads=False)
        num = file.metadata.num_rows
        columns = [
            found[field.name].cast(field.type) if field.name in there else pa.nulls(num, field.type) for field in wanted
        ]
        for field, column in zip(wanted, columns, strict=True):
            if not field.nullable and column.null_count:
                raise pa.ArrowInvalid(f"its column `{field.name}` is empty or absent")
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"`{where}` is not a table of {kind.__name__} rows",
            why=str(error).splitlines()[0],
            fix="remove the file and run the step again",
        ) from None
    return pa.table(columns, schema=pa.schema(wanted))


def columns(store: Store, keys: Iterable[str], kind: type[Row], names: Sequence[str] | None = None) -> Iterator[Any]:
    """`to_arrow` of each part in the order of `keys`; the next ones are read ahead."""
    ahead: deque[Future[Any]] = deque()
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


def listing(store: Store, prefix: str) -> str:
    """Equal for a table to which nothing was added and from which nothing was taken; nothing is opened for it."""
    entries = sorted((entry.key, entry.num_bytes) for entry in store.list(prefix) if entry.key.endswith(".parquet"))
    return fingerprint(len(entries), hashlib.sha256(json.dumps(entries).encode()).hexdigest())


class Ids:
    """A set of ids, ten million in 160 MB. That any two of so many are confused has a chance of 2**-82."""

    def __init__(self, ids: Iterable[str]) -> None:
        source, found = iter(ids), bytearray()
        while some := list(islice(source, 4096)):
            found += _digests(some)
        self._sorted_N = np.frombuffer(found, "S16")
        self._sorted_N.sort()

    def __contains__(self, id_: object) -> bool:
        return bool(self.has([str(id_)])[0])

    def has(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """For each of the ids whether it is in the set."""
        digest_N = np.frombuffer(_digests(ids), "S16")
        if not len(self._sorted_N):
            return np.zeros(len(ids), np.bool_)
        at_N = np.minimum(self._sorted_N.searchsorted(digest_N), len(self._sorted_N) - 1)
        return np.asarray(self._sorted_N[at_N] == digest_N)


class Places:
    """Which of the numbered sequences an id is in, the first where several have it; 20 bytes for each id."""

    def __init__(self, numbered: Iterable[Sequence[str]]) -> None:
        found, numbers = bytearray(), array("i")
        for number, ids in enumerate(numbered):
            found += _digests(ids)
            numbers.extend([number] * len(ids))
        digest_N = np.frombuffer(found, "S16")
        order_N = np.argsort(digest_N, kind="stable")
        self._sorted_N, self._number_N = digest_N[order_N], np.frombuffer(numbers, np.int32)[order_N]

    def of(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """For each of the ids the number of its sequence, -1 where none has it."""
        if not len(self._sorted_N):
            return np.full(len(ids), -1, np.int32)
        digest_N = np.frombuffer(_digests(ids), "S16")
        at_N = np.minimum(self._sorted_N.searchsorted(digest_N), len(self._sorted_N) - 1)
        return np.where(self._sorted_N[at_N] == digest_N, self._number_N[at_N], np.int32(-1))


def _digests(ids: Iterable[str]) -> bytes:
    return b"".join([hashlib.blake2b(each.encode(), digest_size=16).digest() for each in ids])


def _hints(kind: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    return _resolved(kind)  # which mypy would let no caller call: to it a class is not hashable


@functools.cache
def _resolved(kind: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
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
    if dataclasses.is_dataclass(hint):
        return pa.struct([_arrow_field(field.name, inner) for field, inner in _hints(hint)])
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary()}[hint]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _builder(hint: Any) -> Any:
    """How a value read from Arrow becomes a field of the noun again."""
    if get_origin(hint) is tuple:
        if dataclasses.is_dataclass(get_args(hint)[0]):
            inner: Any = get_args(hint)[0]
            return lambda values: tuple(inner(**value) for value in values)
        return tuple
    return lambda value: value
