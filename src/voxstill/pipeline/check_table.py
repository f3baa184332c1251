"""One finished table on disk, compared with what was written: its parts, its `_SUCCESS.json` and its manifest."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from voxstill.core.errors import VoxstillError
from voxstill.storage import checked_json, manifest, parquet, tables, workdir
from voxstill.storage.figures import Kind, TableFigures
from voxstill.storage.store import MAX_JSON_BYTES, Store

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance

Figures = TypeVar("Figures", bound=TableFigures)
IS_MISSING = "it is missing"
_IS_ADDED = "it was added since the table was finished"
_IS_ANOTHER = "it is not the file that was written"
_IS_DOUBLED = "it has ids that are also in another part, or twice in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong with one file of a table, or with the table; `path` is a key below the WORK."""

    kind: Kind
    recipe: str
    path: str
    reason: str
    is_doubled: bool = False

    @property
    def table(self) -> str:
        """Prefix of the table."""
        return workdir.prefix(self.kind, self.recipe)


@dataclass
class Findings:
    """What is wrong in a WORK, and how many files were read."""

    work: Store
    checked: int = 0
    rows: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReadPart:
    """One part of a table as it was read; `rows` is None, and `data` may be empty, where it is broken."""

    key: str
    data: bytes = b""
    rows: pa.Table | None = None
    fault: str | None = None

    def ids(self, *columns: str) -> bytes:
        """The digests of an id, which may be of several columns."""
        if self.rows is None:
            return b""
        values = (self.rows[name].to_pylist() for name in columns)
        return tables.digests("\0".join(row) for row in zip(*values, strict=True))


class FinishedTable(Generic[Figures]):
    """A table that was finished: `figures` are those of its `_SUCCESS.json`, None if that cannot be read."""

    def __init__(self, findings: Findings, figures_type: type[Figures], recipe: str) -> None:
        self.work, self.kind, self.recipe = findings.work, figures_type.kind, recipe
        self.prefix = workdir.prefix(self.kind, recipe)
        self.figures: Figures | None = None
        self._findings, self._first = findings, len(findings.rows)
        self._keys: list[str] = []
        success, written = f"{self.prefix}/{tables.SUCCESS}", f"{self.prefix}/{manifest.NAME}"
        data, files = self.work.read_or_none(success, MAX_JSON_BYTES), None
        try:
            files = manifest.read(self.work, self.prefix)
            if files is None and data is not None and checked_json.has_checksum(data):
                self.add(written, IS_MISSING)
        except VoxstillError as error:
            self.add(written, error.why or error.what)
        findings.checked += 1 + (files is not None)
        self._written = {file.name: file for file in files or () if file.name != tables.SUCCESS}
        if data is None:
            self.add(success, IS_MISSING)
        elif files and not checked_json.has_checksum(data) and not manifest.is_former_success(files, data):
            self.add(success, "it is not what was written")
        else:
            try:
                self.figures = workdir.parsed(self.work, figures_type, recipe, data)
            except VoxstillError as error:
                self.add(success, error.why or error.what)

    def add(self, path: str, reason: str, *, is_doubled: bool = False) -> None:
        """Add what is wrong with a file of the table."""
        finding = Finding(kind=self.kind, recipe=self.recipe, path=path, reason=reason, is_doubled=is_doubled)
        self._findings.rows.append(finding)

    def add_doubled(self, ids: tables.IdCount) -> None:
        """Add the parts that hold ids a second time, of which one sequence for each part was counted."""
        for number in ids.doubled():
            self.add(self._keys[number], _IS_DOUBLED, is_doubled=True)

    def compare(self, what: str, counted: int, num: int) -> None:
        """Add the table where it does not hold as many as were counted; earlier versions did not count everything."""
        if counted and counted != num:
            self.add(self.prefix, f"it has {num:,} {what}, but {tables.SUCCESS} says {counted:,}")

    @property
    def sound_figures(self) -> Figures | None:
        """The figures, to compare with; None if something of the table is broken, so that they do not fit anyhow."""
        return self.figures if len(self._findings.rows) == self._first else None

    def parts(self, kind: type[DataclassInstance], names: Iterable[str] = ()) -> Iterator[ReadPart]:
        """Every part in the order of the names, also those that are missing: that were written, or have these names."""
        entries = manifest.entries(self.work, self.prefix)
        there = {entry.key for entry in entries.values()}
        if self._written:
            for name in manifest.added_parts(self.prefix, self._written, entries):
                self.add(entries[name].key, _IS_ADDED)
        self._keys = sorted(there.union(f"{self.prefix}/{name}" for name in itertools.chain(self._written, names)))
        for part in self.read(self._keys, there, kind):
            self._compare_with_written(part)
            yield part

    def _compare_with_written(self, part: ReadPart) -> None:
        """Add a part that is whole, and is not the one that was written."""
        row = self._written.get(part.key.rpartition("/")[2])
        if row is None or row.num_rows is None or part.rows is None:
            return
        if (row.crc32, row.num_rows) != (parquet.checksum(part.data), len(part.rows)):
            self.add(part.key, _IS_ANOTHER)

    def read(self, keys: Sequence[str], there: set[str], kind: type[DataclassInstance]) -> Iterator[ReadPart]:
        """Read parts of any table, those among `there`; the next ones are read ahead. Adds those that are broken."""
        ahead: deque[Future[ReadPart]] = deque()
        with ThreadPoolExecutor(tables.READERS) as pool:
            todo = iter(keys)
            while True:
                for key in itertools.islice(todo, 2 * tables.READERS - len(ahead)):
                    ahead.append(pool.submit(_read, self.work, key, key in there, kind))
                if not ahead:
                    return
                part = ahead.popleft().result()
                self._findings.checked += 1
                if part.fault is not None:
                    self.add(part.key, part.fault)
                yield part


def _read(work: Store, key: str, is_there: bool, kind: type[DataclassInstance]) -> ReadPart:
    if not is_there:
        return ReadPart(key, fault=IS_MISSING)
    try:
        data = work.read(key)
        return ReadPart(key, data, tables.to_arrow(data, kind, work.uri(key)))
    except VoxstillError as error:
        return ReadPart(key, fault=error.why or error.what)
