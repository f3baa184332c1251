"""The rows of a new joined file: the columns of all tables side by side, in the order of the table of utterances.

The database joins the ids, within its limit of memory. Beside the ids only two blocks of utterances are in memory, one
that is read while the other is inserted: tables mostly have the order of the utterances, so that a block needs few of
their parts. A part with rows of several blocks is read for each of them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from voxstill.explorer import staging
from voxstill.explorer.columns import quoted
from voxstill.explorer.staging import Sources, TableSource, run
from voxstill.storage import manifest, tables
from voxstill.storage.arrays import arrow_array, arrow_numbers, numpy_array
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_ROW_GROUP = 122_880
"""Rows that the database compresses and writes together."""
_INSERTIONS = 2
"""At once: the database takes one thread for each."""
BLOCK_ROWS = 2 * _ROW_GROUP
"""Utterances that are read together: of so many the columns of all tables are in memory, and of as many that are
inserted meanwhile, where there are more than `HELD_ROWS`."""
HELD_ROWS = 1_000_000
"""So few utterances are read once and as a whole: to open a part takes as long as to read it."""


def create_rows(
    work: Store, file: duckdb.DuckDBPyConnection, sources: Sources, inserted: Callable[[int, int], None]
) -> Mapping[str, int]:
    """Make the table of all rows; returns how many rows of each other table belong to no utterance, by its prefix.

    `inserted` is called with the first row of each range that was inserted, and the one behind its last.
    """
    utterances = _Parts(work, sources.tables[0], hold=_is_one_block(work, sources.tables[0]))
    ids = utterances.ids()
    hold = len(ids) <= HELD_ROWS
    with ThreadPoolExecutor(1) as reader:
        ahead = reader.map(lambda source: _Parts(work, source, hold=hold), sources.joined)
        place_N = _first_places(file, ids, sources.removed)
        if len(place_N) < len(ids):
            ids = ids.take(_indices(place_N))
        others = [_Placed(file, parts, ids, sources.removed) for parts in ahead]
    del ids
    _insert(file, sources, _blocks(utterances, place_N, others), inserted)
    return {other.parts.source.prefix: other.num_strays for other in others}


def _blocks(utterances: _Parts, place_N: NDArray[np.int32], others: Sequence[_Placed]) -> Iterator[pa.Table]:
    """The columns of all tables, at least one block of them."""
    import pyarrow as pa

    for start in range(0, max(len(place_N), 1), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(place_N))
        rows = utterances.rows(place_N[start:stop])
        rows = rows.set_column(rows.column_names.index("row"), "row", _indices(place_N[start:stop]))
        columns = _prefixed(utterances.source, rows)
        utterances.keep(place_N[stop:])
        for other in others:
            columns |= _prefixed(other.parts.source, other.parts.rows(other.place_N[start:stop]))
            other.parts.keep(other.place_N[stop:])
        yield pa.table(columns)


def _is_one_block(work: Store, source: TableSource) -> bool:
    """Whether the manifest of a table says that it is small enough."""
    files = manifest.read(work, source.prefix)
    lengths = [file.num_rows for file in files or () if file.name != tables.SUCCESS]
    known = [length for length in lengths if length is not None]
    return 0 < len(known) == len(lengths) and sum(known) <= HELD_ROWS


class _Parts:
    """The rows of a table by their places in it; with `hold` all parts are read at once and stay in memory."""

    def __init__(self, work: Store, source: TableSource, *, hold: bool = False) -> None:
        self.source = source
        self._work, self._keys = work, manifest.parts(work, source.prefix)
        self._held = self._read(self._keys) if hold else None
        self._first_held = 0
        self._start_P = np.zeros(1, np.int64)

    def ids(self) -> pa.Array:
        """The utterance of each row."""
        import pyarrow as pa

        if self._held is not None:
            return _joined(staging.ids_of(self.source, self._held))
        names = staging.id_names(self.source)
        parts = tables.columns(self._work, self._keys, self.source.kind, names)
        ids = [_joined(staging.ids_of(self.source, part)) for part in parts]
        self._start_P = np.cumsum([0, *map(len, ids)])
        return pa.concat_arrays([pa.nulls(0, pa.large_string()), *ids])

    def rows(self, place_N: NDArray[np.int32]) -> pa.Table:
        """The rows at these places; nulls at places below 0."""
        if self._held is not None:
            return _taken(self._held, np.where(place_N < 0, -1, place_N - self._first_held))
        part_N = self._start_P.searchsorted(place_N, side="right") - 1
        needed_K = np.unique(part_N[place_N >= 0])
        length_K = np.diff(self._start_P)[needed_K]
        moved_P = np.zeros(len(self._start_P), np.int64)
        moved_P[needed_K] = self._start_P[needed_K] - (np.cumsum(length_K) - length_K)
        position_N = np.where(place_N < 0, -1, place_N - moved_P[part_N])
        return _taken(self._read([self._keys[part] for part in needed_K]), position_N)

    def keep(self, place_N: NDArray[np.int32]) -> None:
        """Hold no longer what lies before the rows at these places."""
        if self._held is not None:
            first = int(place_N[place_N >= 0].min(initial=self._first_held + len(self._held)))
            self._held, self._first_held = self._held.slice(first - self._first_held), first

    def _read(self, keys: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        empty = pa.Table.from_batches([], staging.schema(self.source))
        return pa.concat_tables([empty, *staging.read(self._work, self.source, keys)])


class _Placed:
    """A table with the place of the row of each utterance in it, -1 where it has none; of several the first."""

    def __init__(
        self, file: duckdb.DuckDBPyConnection, parts: _Parts, utterance_ids: pa.Array, removed: frozenset[str]
    ) -> None:
        import pyarrow.compute as pc

        self.parts = parts
        self.num_strays = 0
        self.place_N = np.full(len(utterance_ids), -1, np.int32)
        ids = parts.ids()
        if ids.equals(utterance_ids.slice(0, len(ids))):
            self.place_N[: len(ids)] = np.arange(len(ids))
            return
        number_R = _numbers(file, ids, utterance_ids)
        place_K = np.flatnonzero(number_R >= 0)[::-1]  # so that the first row of an id is written last
        self.place_N[number_R[place_K]] = place_K
        strays = ids.take(_indices(np.flatnonzero(number_R < 0)))
        self.num_strays = len(strays) - (pc.sum(_is_among(strays, removed)).as_py() or 0)


def _first_places(file: duckdb.DuckDBPyConnection, ids: pa.Array, removed: frozenset[str]) -> NDArray[np.int32]:
    """Places of ids that were not removed; of several rows of an id the first."""
    stays_N = np.ones(len(ids), np.bool_)
    if removed:
        stays_N &= ~numpy_array(_is_among(ids, removed))
    with _registered(file, ids=ids):
        hash_N = file.execute("SELECT hash(id) AS hash FROM ids").fetchnumpy()["hash"]
    sorted_N = np.sort(hash_N)
    repeated_K = sorted_N[1:][sorted_N[1:] == sorted_N[:-1]]
    if len(repeated_K):
        place_K = np.flatnonzero(np.isin(hash_N, repeated_K))
        code_K = numpy_array(ids.take(_indices(place_K)).dictionary_encode().indices)
        stays_N[np.delete(place_K, np.unique(code_K, return_index=True)[1])] = False
    return np.flatnonzero(stays_N).astype(np.int32)


def _numbers(file: duckdb.DuckDBPyConnection, ids: pa.Array, utterance_ids: pa.Array) -> NDArray[np.int32]:
    """The number of the utterance that has an id; -1 where none has it."""
    number_R = np.full(len(ids), -1, np.int32)
    with _registered(file, ids=ids, utterances=utterance_ids):
        query = "SELECT ids.place, utterances.place AS number FROM ids JOIN utterances USING (id)"
        for batch in file.sql(query).to_arrow_reader(_ROW_GROUP):
            number_R[numpy_array(batch["place"])] = numpy_array(batch["number"])
    return number_R


@contextlib.contextmanager
def _registered(file: duckdb.DuckDBPyConnection, **arrays: pa.Array) -> Iterator[None]:
    """Let the database know arrays of ids as tables of `id` and `place`, while the block runs."""
    import pyarrow as pa

    for name, array in arrays.items():
        file.register(name, pa.table({"id": array, "place": arrow_numbers(np.arange(len(array), dtype=np.int32))}))
    try:
        yield
    finally:
        for name in arrays:
            file.unregister(name)


def _is_among(ids: pa.Array, others: frozenset[str]) -> pa.BooleanArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(ids, value_set=arrow_array(sorted(others), pa.string()).cast(ids.type))


def _taken(table: pa.Table, place_N: NDArray[np.integer]) -> pa.Table:
    """Rows of a table by their places, nulls at places below 0; rows that follow one another are not copied."""
    if len(place_N) and place_N[0] >= 0 and np.array_equal(place_N, np.arange(place_N[0], place_N[0] + len(place_N))):
        return table.slice(int(place_N[0]), len(place_N))
    return _large(table).take(_indices(place_N))


def _indices(place_N: NDArray[np.integer]) -> pa.Array:
    return arrow_numbers(place_N.astype(np.int64), place_N >= 0)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays([pa.nulls(0, pa.large_string()), *column.cast(pa.large_string()).chunks])


def _large(table: pa.Table) -> pa.Table:
    """The table with strings of 64-bit offsets, as 32 bits do not reach through the texts of a block."""
    import pyarrow as pa

    fields = [field.with_type(pa.large_string()) if pa.types.is_string(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))


def _prefixed(source: TableSource, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {f"{source.staged}.{name}": rows[name] for name in rows.column_names}


def _insert(
    file: duckdb.DuckDBPyConnection,
    sources: Sources,
    blocks: Iterator[pa.Table],
    inserted: Callable[[int, int], None],
) -> None:
    """Make the table and add blocks of rows in their order; the next one is read meanwhile."""
    query, row = _query(sources), f"{sources.tables[0].staged}.row"
    waiting: deque[tuple[int, int, Future[None]]] = deque()
    last: Future[None] | None = None

    def finish() -> None:
        start, stop, insertion = waiting.popleft()
        insertion.result()
        inserted(start, stop)

    with ThreadPoolExecutor(_INSERTIONS) as pool:
        for block in blocks:
            if last is None:
                _create(file, sources, query, block)
            for start in range(0, len(block), _ROW_GROUP):
                rows = block.slice(start, _ROW_GROUP)
                last = pool.submit(_insert_rows, file.cursor(), query, rows, last)
            if last is not None:
                if waiting:
                    finish()
                waiting.append((block[row][0].as_py(), block[row][-1].as_py() + 1, last))
        while waiting:
            finish()


def _create(file: duckdb.DuckDBPyConnection, sources: Sources, query: str, block: pa.Table) -> None:
    file.register("block", block.slice(0, 0))
    run(file, f"CREATE TABLE rows ({', '.join(_definitions(file, sources, query))})")
    file.unregister("block")


def _insert_rows(cursor: duckdb.DuckDBPyConnection, query: str, rows: pa.Table, before: Future[None] | None) -> None:
    """Add rows behind those of the insertion before, which may still run: a transaction decides by its end."""
    with cursor:
        cursor.register("block", rows.combine_chunks())
        cursor.begin()
        run(cursor, f"INSERT INTO rows {query}")
        if before is not None:
            before.result()
        cursor.commit()


def _query(sources: Sources) -> str:
    """The columns of the joined file from those of a block."""
    first, *others = sources.tables
    chosen = [staging.expressions(first, f"{first.staged}.")]
    chosen += [staging.expressions(source, f"{source.staged}.")[1:] for source in others]  # the id is known
    columns = ", ".join(f"{expression} AS {name}" for one in chosen for expression, name in one)
    return f"SELECT *, {staging.derived(sources)} FROM (SELECT {columns} FROM block)"


def _definitions(file: duckdb.DuckDBPyConnection, sources: Sources, query: str) -> Iterator[str]:
    """The columns of the table of rows.

    What is searched and what every page shows is not compressed: to read one text of a compressed block all of it is
    decoded.
    """
    plain = {"search", "id", *(one.text_column for one in sources.joined if one.role == "labels")}
    for name, kind, *_ in run(file, f"DESCRIBE {query}"):
        yield f"{quoted(name)} {kind}{' USING COMPRESSION uncompressed' if name in plain else ''}"
