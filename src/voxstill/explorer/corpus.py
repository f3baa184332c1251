"""Questions to the joined file: pages, counts, histograms, the funnel; what people judge and students say beside it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxstill.core.atomic import name_beside
from voxstill.core.errors import first_line
from voxstill.explorer import joined, staging
from voxstill.explorer.columns import Column, Row
from voxstill.explorer.errors import JoinedFileLost, RequestError
from voxstill.explorer.filters import ROW, Clause, Filter, Order, Value, joins
from voxstill.explorer.searches import Searches
from voxstill.explorer.staging import run
from voxstill.explorer.students import StudentTexts
from voxstill.storage.arrays import arrow_array, numpy_array

if TYPE_CHECKING:
    import duckdb

QUERY_LIMIT_S = 10.0
MAX_PAGE = 500
MAX_BINS = 200
MAX_FACETS = 200
MEMORY = "1300MB"
_ROWS_AT_ONCE = 100_000
_JUDGED = Column(name="judgement", title="judgement", kind="category", place="judgements")
_CORRECTION = Column(name="correction", title="corrected text", kind="text", place="judgements")


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Utterances by bins of equal width from `low` to `high`; those beyond are in the first and the last bin."""

    low: float
    high: float
    counts: Sequence[int]
    kept: Sequence[int]
    unknown: int


class Corpus:
    """The joined file, read-only, with tables in memory beside it; may be asked by several threads."""

    def __init__(self, path: Path, students: Sequence[StudentTexts] = ()) -> None:
        import duckdb

        self._path, self._identity = path, _identity(path)
        self.about = joined.about(path)
        self._undo = contextlib.ExitStack()
        self._spill = self._undo.enter_context(_spill_of(path))
        config: dict[str, Any] = {
            "threads": joined.THREADS,
            "memory_limit": MEMORY,
            "temp_directory": str(self._spill),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        self._connection = duckdb.connect(":memory:", config=config)
        try:
            self._open(students)
        except BaseException:
            self.close()
            raise

    def _open(self, students: Sequence[StudentTexts]) -> None:
        self._fetch(f"ATTACH '{_literal(self._path)}' AS corpus (READ_ONLY)", ())
        if _identity(self._path) != self._identity:
            raise JoinedFileLost.of(self._path, ValueError("it was replaced while it was opened"))
        joined.confine(self._connection)
        run(self._connection, "CREATE TABLE judgements (row BIGINT PRIMARY KEY, judgement VARCHAR, correction VARCHAR)")
        run(self._connection, "CREATE TABLE removed (row BIGINT PRIMARY KEY)")
        own = [column for student in students for column in student.columns]
        columns = (*self.about.columns, *own, _JUDGED, _CORRECTION)
        self.columns: Mapping[str, Column] = {column.name: column for column in columns}
        self._has_removed = False
        [(last,)] = self._fetch("SELECT coalesce(max(row), -1) FROM corpus.rows", ())
        self._num_rows = last + 1
        self._searches = Searches(self._numbers, self._folded, self._num_rows)
        self._add_students(students)

    def close(self) -> None:
        """End; a question that runs is interrupted."""
        self._connection.interrupt()
        self._connection.close()
        self._undo.close()

    def page(self, wanted: Filter, order: Order, limit: int, columns: Sequence[Column] | None = None) -> list[Row]:
        """The next rows behind those of the page before, with `row` and `key`, the value that they are sorted by.

        All columns, or those named: rows that lie far apart take as long for one column as for all of a single row.
        """
        tables = joins([*wanted.columns, order.column])
        keys: list[tuple[int, Value]] = []
        clause = self._clause(wanted)
        for stage in order.stages():
            query = (
                f"SELECT rows.row, {order.column.sql} FROM {tables} WHERE {stage.sql} AND {clause.sql}"
                f"{self.without_removed} ORDER BY {order.sql} LIMIT {min(limit, MAX_PAGE) - len(keys)}"
            )
            keys += self._fetch(query, (*stage.values, *clause.values))
            if len(keys) == min(limit, MAX_PAGE):
                break
        rows = self.rows([row for row, _ in keys], columns)
        return [{**rows[row], "key": key} for row, key in keys if row in rows]

    def rows(self, numbers: Sequence[int], columns: Sequence[Column] | None = None) -> Mapping[int, Row]:
        """Columns of rows by their numbers, all or those named; rows that are not there, or were removed, are left
        out."""
        if not numbers:
            return {}
        names = [column.sql for column in (self.columns.values() if columns is None else columns)]
        if columns is None:
            stored = ("tar_offset", "tar_bytes", "tar_format") if "tar" in self.columns else ()
            names += [f"rows.{name}" for name in ("gain_db", *stored)]
        tables = joins([*(self.columns.values() if columns is None else columns), _JUDGED])
        where = f"rows.row IN (SELECT unnest(?)){self.without_removed}"  # a join; `IN (?, ?)` decodes every block whole
        rows = self._dicts(f"SELECT rows.row, {', '.join(names)} FROM {tables} WHERE {where}", (list(numbers),))
        return {row["row"]: row for row in rows}

    def totals(self, wanted: Filter) -> Row:
        """How many utterances there are, how long they are, how many were judged and kept."""
        kept = "count(*) FILTER (kept), count(kept)" if "kept" in self.columns else "NULL, NULL"
        clause = self._clause(wanted)
        [row] = self._fetch(
            f"SELECT count(*), coalesce(sum(duration_ms), 0), {kept} FROM {joins(wanted.columns)}"
            f" WHERE {clause.sql}{self.without_removed}",
            clause.values,
        )
        return dict(zip(("utterances", "duration_ms", "kept", "judged"), row, strict=True))

    def histogram(self, wanted: Filter, column: Column, bins: int) -> Histogram | None:
        """A histogram of a number over what the other conditions show; None where no value is known."""
        if column.kind != "number":
            raise RequestError(400, f"`{column.name}` is not a number")
        low, high = column.low, column.high
        if low is None or high is None:
            return None
        if high <= low:
            high = low + 1
        bins = max(1, min(bins, MAX_BINS))
        others = wanted.without(column.name)
        width = (high - low) / bins
        kept = "count(*) FILTER (kept)" if "kept" in self.columns else "count(*)"
        place = f"least(greatest(floor(({column.sql} - {low!r}) / {width!r}), 0), {bins - 1})::INTEGER"
        place = f"CASE WHEN {column.sql} IS NOT NULL THEN {place} END"  # `greatest` passes over a null
        clause = self._clause(others)
        query = (
            f"SELECT {place} AS bin, count(*), {kept} FROM {joins([*others.columns, column])}"
            f" WHERE {clause.sql}{self.without_removed} GROUP BY bin"
        )
        rows = self._fetch(query, clause.values)
        counts, num_kept, unknown = [0] * bins, [0] * bins, 0
        for number, num, num_of_kept in rows:
            if number is None:
                unknown = num
            else:
                counts[number], num_kept[number] = num, num_of_kept
        return Histogram(low=low, high=high, counts=counts, kept=num_kept, unknown=unknown)

    def facet(self, wanted: Filter, column: Column, limit: int = 50) -> list[Row]:
        """The most frequent values of a category over what the other conditions show."""
        if column.kind not in ("category", "flag"):
            raise RequestError(400, f"`{column.name}` is not a category")
        others = wanted.without(column.name)
        clause = self._clause(others)
        query = (
            f"SELECT {column.sql} AS value, count(*) AS num, coalesce(sum(duration_ms), 0) AS duration_ms"
            f" FROM {joins([*others.columns, column])} WHERE {clause.sql}{self.without_removed}"
            f" GROUP BY value ORDER BY num DESC, value LIMIT {max(1, min(limit, MAX_FACETS))}"
        )
        return list(self._dicts(query, clause.values))

    def export(self, wanted: Filter, columns: Sequence[Column]) -> Iterator[Row]:
        """The chosen columns of every row of a filter, in the order of the table of utterances.

        Asked for in blocks of rows, so that no sort of all of them has to fit into memory.
        """
        shown = ", ".join(column.sql for column in columns)
        tables = joins([*wanted.columns, *columns])
        clause = self._clause(wanted)
        for start in range(0, self._num_rows, _ROWS_AT_ONCE):
            query = (
                f"SELECT {shown} FROM {tables} WHERE rows.row BETWEEN ? AND ? AND {clause.sql}"
                f"{self.without_removed} ORDER BY {Order(column=ROW).sql}"
            )
            yield from self._dicts(query, (start, start + _ROWS_AT_ONCE - 1, *clause.values))

    def judge(self, row: int, judgement: str | None, correction: str | None) -> None:
        """Show a judgement from now on; None takes it back."""
        if judgement is None:
            self._fetch("DELETE FROM judgements WHERE row = ?", (row,))
        else:
            self._fetch("INSERT OR REPLACE INTO judgements VALUES (?, ?, ?)", (row, judgement, correction))

    def numbers_of(self, ids: Sequence[str]) -> Mapping[str, int]:
        """The numbers of the rows of utterances by their ids."""
        numbers: dict[str, int] = {}
        for start in range(0, len(ids), 10_000):
            block = ids[start : start + 10_000]
            query = "SELECT id, row FROM corpus.rows WHERE id IN (SELECT unnest(?))"
            numbers |= dict(self._fetch(query, (list(block),)))
        return numbers

    def remove(self, ids: Sequence[str]) -> None:
        """Show these utterances no more."""
        numbers = list(self.numbers_of(ids).values())
        if numbers:
            self._fetch("INSERT OR IGNORE INTO removed SELECT unnest(?)", (numbers,))
            self._has_removed = True

    def ask(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query of this package, which has `without_removed` in its conditions."""
        return self._fetch(query, values)

    @property
    def without_removed(self) -> str:
        """The condition that leaves out removed rows."""
        return " AND rows.row NOT IN (SELECT row FROM removed)" if self._has_removed else ""

    def _clause(self, wanted: Filter) -> Clause:
        """A filter in SQL."""
        if not wanted.text:
            return wanted.clause()
        return wanted.clause(self._searches.clause(wanted.text))

    def _folded(self, text: str) -> str:
        """A text as the searched texts of the file are, whatever its case."""
        [(folded,)] = self._fetch(f"SELECT {staging.folded('?')}", (text,))
        return str(folded)

    def _add_students(self, students: Sequence[StudentTexts]) -> None:
        import pyarrow as pa

        numbers = self.numbers_of(sorted({id_ for student in students for id_ in student.rows}))
        texts = {"row": arrow_array(list(numbers.values()), pa.int64())}
        for student in students:
            texts |= student.values(list(numbers))
        self._connection.register("student_texts", pa.table(texts))
        run(self._connection, "CREATE TABLE students AS SELECT * FROM student_texts")
        self._connection.unregister("student_texts")

    def _fetch(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            return cursor.execute(query, list(values)).fetchall()

    def _numbers(self, query: str, values: Sequence[object]) -> Iterator[NDArray[np.integer]]:
        """The only column of a query, in pieces."""
        with self._cursor() as cursor:
            for batch in cursor.sql(query, params=list(values)).to_arrow_reader(_ROWS_AT_ONCE):
                yield numpy_array(batch.column(0))

    def _dicts(self, query: str, values: Sequence[object]) -> Iterator[Row]:
        with self._cursor() as cursor:
            rows = cursor.execute(query, list(values)).fetchall()
            names = [column[0] for column in cursor.description or ()]
        yield from (dict(zip(names, row, strict=True)) for row in rows)

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor for one query; RequestError where that takes too long, JoinedFileLost where the file is
        damaged: it is removed, so that the next start builds it."""
        import duckdb

        start_s = time.monotonic()
        cursor = self._connection.cursor()
        timer = threading.Timer(QUERY_LIMIT_S, cursor.interrupt)
        timer.daemon = True
        timer.start()
        try:
            with joined.interruptible():
                yield cursor
        except duckdb.InterruptException:
            waited_s = time.monotonic() - start_s
            raise RequestError(503, f"the query took longer than {waited_s:.0f} s: use a narrower filter") from None
        except duckdb.OutOfMemoryException:
            raise RequestError(503, f"the query needs more than {MEMORY} of memory: use a narrower filter") from None
        except (duckdb.ConversionException, duckdb.OutOfRangeException):
            raise RequestError(400, "a value does not fit its column") from None
        except duckdb.Error as error:
            if str(self._spill) in str(error):
                why = first_line(error)
                raise RequestError(503, f"the query needs more than {MEMORY} of memory, and a file: {why}") from None
            if not _is_damage(error):
                raise
            if _identity(self._path) == self._identity:  # and no newer one of another explorer
                with contextlib.suppress(OSError):
                    self._path.unlink()
            raise JoinedFileLost.of(self._path, error) from None
        finally:
            timer.cancel()
            cursor.close()


def _is_damage(error: duckdb.Error) -> bool:
    """Whether the file cannot be read; the database raises its general error for a wrong checksum."""
    import duckdb

    kinds = (duckdb.IOException, duckdb.FatalException, duckdb.SerializationException, duckdb.InternalException)
    return type(error) is duckdb.Error or isinstance(error, kinds)


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and the number of a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _spill_of(path: Path) -> AbstractContextManager[Path]:
    """A folder of this process for what does not fit into memory, made when it is needed: beside the file, or where
    temporary files are if that cannot be written. `storage/joined_file.py` removes it with the file; where this process
    is killed, the next one does."""
    parent = path.parent if os.access(path.parent, os.W_OK) else Path(tempfile.gettempdir())
    return name_beside(parent / path.name)


def _literal(path: Path) -> str:
    return str(path).replace("'", "''")
