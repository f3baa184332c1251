"""The joined file: one DuckDB table with a row for each utterance, of all tables of a work folder that know it.

Joining the tables at each request takes half a second for a million rows; a page of this file takes some milliseconds.
The file says which parts it was built from. Where parts were added to the same tables, a copy takes them in
(`explorer/growth.py`); anything else that changed builds it anew. A reader sees the old file or the new one, for a file
takes its place by a rename, and one process at a time builds.

The texts are searched by their words (`explorer/word_index.py`), and compared in a column of lower case that is not
compressed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxstill.core.errors import DataError, StorageError, system_code
from voxstill.core.monitor import log
from voxstill.core.records import fingerprint
from voxstill.explorer import assembly, growth, staging, word_index
from voxstill.explorer.columns import Column, TeacherColumn, title
from voxstill.explorer.staging import Parts, Sources, run
from voxstill.storage import manifest
from voxstill.storage.joined_file import FILE
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import duckdb

VERSION = 4
"""Rises when the columns or their meaning change: older files are built anew."""
THREADS = 2
BUILD_MEMORY = "600MB"
_SAMPLED_ROWS = 200_000
"""Of these the ends of histograms are computed, where there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a joined file says of itself."""

    num_rows: int
    columns: tuple[Column, ...]
    teachers: tuple[TeacherColumn, ...]


@dataclass(frozen=True, slots=True)
class State:
    """What a joined file was built from, or would be built from now."""

    tables: str
    """Hash of the version, of the tables' names and of what was removed."""
    parts: Parts

    def to_json(self) -> str:
        """The state as it is stored."""
        return json.dumps({"tables": self.tables, "parts": self.parts})

    @classmethod
    def from_json(cls, text: str) -> State:
        """The state that `to_json` wrote."""
        return cls(**json.loads(text))


def state_of(work: Store, sources: Sources) -> State:
    """The state of the tables now; lists them and reads no part."""
    parts = {
        source.prefix: {
            name: [entry.num_bytes, entry.etag] for name, entry in manifest.entries(work, source.prefix).items()
        }
        for source in sources.tables
    }
    names = [[source.role, source.prefix, source.title] for source in sources.tables]
    return State(fingerprint(VERSION, names, sources.removed_identity), parts)


def ensure(work: Store, read_sources: Callable[[], Sources], folder: Path) -> tuple[Path, Sources]:
    """The joined file of these tables, built or grown where it is not there or is another; its path, and the tables.

    It is built again where utterances were removed meanwhile, so that nothing of them stays. StorageError where it
    cannot be written, as on a full disk.
    """
    sources, path = read_sources(), folder / FILE
    if is_current(work, sources, folder):
        return path, sources
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        sources, before = read_sources(), None
        while before is None or before.removed_identity != sources.removed_identity:
            before = sources
            _bring_up_to_date(work, sources, path)
            sources = read_sources()
    return path, sources


def is_current(work: Store, sources: Sources, folder: Path) -> bool:
    """Whether the joined file in a folder is there and is that of these tables; nothing is written."""
    return _state_in(folder / FILE) == state_of(work, sources)


def _bring_up_to_date(work: Store, sources: Sources, path: Path) -> None:
    import duckdb

    now, before = state_of(work, sources), _state_in(path)
    if before == now:
        return
    with _draft(path.parent) as draft:
        try:
            if before is None or not _grown(work, sources, path, draft, before, now):
                log.info("explore: the tables are joined into `%s`", path)
                draft.unlink(missing_ok=True)
                _build(work, sources, draft, now)
            if draft.exists():  # `remove` erases drafts, too, and the caller builds again
                os.replace(draft, path)
        except (duckdb.Error, OSError) as error:
            why = str(error).splitlines()[0]
            raise StorageError(
                f"`{path}` cannot be written", code=system_code(error), why=why, fix="see whether the disk is full"
            ) from None


def about(path: Path) -> About:
    """What a joined file says of itself; DataError where it cannot be read."""
    with opened(path, read_only=True) as file:
        [(text,)] = run(file, "SELECT value FROM about WHERE name = 'about'")
    value = json.loads(text)
    return About(
        num_rows=value["num_rows"],
        columns=tuple(Column(**column) for column in value["columns"]),
        teachers=tuple(TeacherColumn(**teacher) for teacher in value["teachers"]),
    )


@contextlib.contextmanager
def opened(path: Path, *, read_only: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a joined file within the limits of this process."""
    import duckdb

    config: dict[str, Any] = {"threads": THREADS, "memory_limit": BUILD_MEMORY, "autoinstall_known_extensions": False}
    spill = path.with_name(f"{path.name}.spill")
    try:
        connection = duckdb.connect(str(path), read_only=read_only, config={**config, "temp_directory": str(spill)})
    except duckdb.Error as error:
        if not read_only:
            raise
        raise DataError(
            f"`{path}` cannot be read", code="table-broken", why=str(error), fix="remove it: it is built anew"
        ) from None
    try:
        yield connection
    finally:
        connection.close()
        shutil.rmtree(spill, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time builds; the lock is given back however it ends."""
    with (folder / "lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("explore: another process builds the joined file; this one waits for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _draft(folder: Path) -> Iterator[Path]:
    """The path of a file to write; what processes left that were ended is removed, for only one builds at a time."""
    for path in folder.glob(f"draft-{FILE}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    draft = folder / f"draft-{FILE}"
    try:
        yield draft
    finally:
        for path in (draft, draft.with_name(f"{draft.name}.wal")):
            path.unlink(missing_ok=True)


def _state_in(path: Path) -> State | None:
    """What a file was built from; None where there is none, or it is broken."""
    import duckdb

    if not path.is_file():
        return None
    try:
        with opened(path, read_only=True) as file:
            [(text,)] = run(file, "SELECT value FROM about WHERE name = 'state'")
            return State.from_json(text)
    except (DataError, duckdb.Error, ValueError, TypeError, KeyError) as error:
        log.warning("explore: `%s` is built anew: it cannot be read (%s)", path, str(error).splitlines()[0])
        return None


def _grown(work: Store, sources: Sources, path: Path, draft: Path, before: State, now: State) -> bool:
    """Whether the draft is the file with the parts that were added; False where that is not all that changed, or the
    file is broken."""
    import duckdb

    added = growth.added_parts(before.parts, now.parts)
    if before.tables != now.tables or added is None:
        return False
    shutil.copyfile(path, draft)
    with opened(draft) as file:
        try:
            if not growth.take_in(work, sources, file, added):
                return False
        except duckdb.Error as error:
            log.warning("explore: `%s` is built anew (%s)", path, str(error).splitlines()[0])
            return False
        log.info("explore: %d parts were added to `%s`", sum(map(len, added.values())), path)
        _finish(file, sources, now)
    return True


def _build(work: Store, sources: Sources, draft: Path, now: State) -> None:
    with opened(draft) as file:
        with word_index.creating(file) as inserted:
            strays = assembly.create_rows(work, file, sources, inserted)
        run(file, "CREATE TABLE strays (prefix VARCHAR, num BIGINT)")
        for prefix, num in strays.items():
            run(file, "INSERT INTO strays VALUES (?, ?)", [prefix, num])
        _finish(file, sources, now)


def _finish(file: duckdb.DuckDBPyConnection, sources: Sources, now: State) -> None:
    """Write what the file says of itself."""
    [(num_rows,)] = run(file, "SELECT count(*) FROM rows")
    teachers = [
        TeacherColumn(name=source.text_column, teacher=source.title)
        for source in sources.tables
        if source.role == "labels"
    ]
    value = {
        "num_rows": num_rows,
        "columns": [asdict(column) for column in _columns(file, teachers, num_rows)],
        "teachers": [asdict(teacher) for teacher in teachers],
    }
    run(file, "CREATE OR REPLACE TABLE about (name VARCHAR, value VARCHAR)")
    file.executemany("INSERT INTO about VALUES (?, ?)", [("state", now.to_json()), ("about", json.dumps(value))])
    run(file, "CHECKPOINT")


def _quoted(name: str) -> str:
    return f'"{name}"'


def _columns(file: duckdb.DuckDBPyConnection, teachers: Sequence[TeacherColumn], num_rows: int) -> Iterator[Column]:
    """The columns that a request may name, with the ends of histograms: beyond them lies one in a hundred."""
    kinds = dict(run(file, "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'rows'"))
    shown = {name: kind for name, kind in kinds.items() if name not in staging.HIDDEN}
    numbers = [name for name, kind in shown.items() if kind in ("BIGINT", "DOUBLE", "INTEGER")]
    ends = ", ".join(f"quantile_cont({_quoted(name)}::DOUBLE, [0.005, 0.995])" for name in numbers)
    sample = "" if num_rows < _SAMPLED_ROWS else f" USING SAMPLE {100 * _SAMPLED_ROWS / num_rows:.3f} PERCENT (system)"
    [ends_of] = run(file, f"SELECT {ends} FROM rows{sample}")
    by_name = dict(zip(numbers, ends_of, strict=True))
    titles = {teacher.name: teacher.teacher for teacher in teachers}
    for name, kind in shown.items():
        if name in by_name:
            low, high = by_name[name] or (None, None)
            yield Column(name=name, title=title(name), kind="number", low=low, high=high)
        elif kind == "BOOLEAN":
            yield Column(name=name, title=title(name), kind="flag")
        elif name in titles or name == "human":
            yield Column(name=name, title=titles.get(name, title(name)), kind="text")
        else:
            yield Column(name=name, title=title(name), kind="id" if name in staging.IDS else "category")
