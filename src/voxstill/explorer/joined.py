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

from voxstill.core.errors import first_line
from voxstill.core.monitor import log
from voxstill.core.records import fingerprint
from voxstill.explorer import assembly, growth, staging, word_index
from voxstill.explorer.columns import Column, TeacherColumn, quoted, title
from voxstill.explorer.errors import JoinedFileLost, build_failure
from voxstill.explorer.staging import Parts, Sources, run
from voxstill.storage import manifest
from voxstill.storage.joined_file import FILE, erase
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import duckdb

VERSION = 4
"""Rises when the columns or their meaning change: older files are built anew."""
THREADS = 2
BUILD_MEMORY = "480MB"
_INTERRUPTED, _NO_THREAD = "Query interrupted", "can't start new thread"
"""What the RuntimeError of a query says at Ctrl-C, and that of a thread which the system does not start."""
_TABLES = ("about", "counts", "postings", "rows", "strays", "words")
_STRANGERS = " UNION ALL ".join(
    f"SELECT {name} FROM system.main.duckdb_{kinds}() WHERE {condition}"  # a macro may have the bare name
    for kinds, name, condition in (
        ("tables", "table_name", f"NOT internal AND table_name NOT IN {_TABLES}"),
        ("columns", "column_name", "NOT internal AND (column_default IS NOT NULL OR is_generated)"),
        ("constraints", "table_name", "true"),
        ("functions", "function_name", "NOT internal"),
        ("indexes", "index_name", "true"),
        ("schemas", "schema_name", "NOT internal"),
        ("sequences", "sequence_name", "true"),
        ("triggers", "trigger_name", "true"),
        ("types", "type_name", "NOT internal"),
        ("views", "view_name", "NOT internal"),
    )
)
"""The names of all that a file has and no build makes."""
_SAMPLED_ROWS = 200_000
"""Of these the ends of histograms are computed, where there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a joined file says of itself."""

    num_rows: int
    columns: tuple[Column, ...]
    teachers: tuple[TeacherColumn, ...]

    def to_json(self) -> str:
        """The text that is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> About:
        """What `to_json` wrote; numbers are numbers, as they become part of queries."""
        tree = json.loads(text)
        columns = [
            Column(
                name=column["name"],
                title=column["title"],
                kind=column["kind"],
                low=None if column["low"] is None else float(column["low"]),
                high=None if column["high"] is None else float(column["high"]),
            )
            for column in tree["columns"]
        ]
        teachers = tuple(TeacherColumn(**teacher) for teacher in tree["teachers"])
        return cls(num_rows=int(tree["num_rows"]), columns=tuple(columns), teachers=teachers)


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
        tree = json.loads(text)
        return cls(tree["tables"], {prefix: dict(parts) for prefix, parts in tree["parts"].items()})


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
    """The joined file of these tables, built or grown where it is not there or is another; its path, and its tables.

    It is built again where utterances were removed meanwhile, so that nothing of them stays. A VoxstillError
    where it cannot be built, as on a full disk.
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
    return path, before  # others may have been finished since


def is_current(work: Store, sources: Sources, folder: Path) -> bool:
    """Whether the joined file in a folder is there and is that of these tables; nothing is written."""
    return _state_in(folder / FILE) == state_of(work, sources)


def _bring_up_to_date(work: Store, sources: Sources, path: Path) -> None:
    import duckdb
    import pyarrow as pa

    now, before = state_of(work, sources), _state_in(path)
    if before == now:
        return
    with _draft(path.parent) as draft:
        try:
            if before is None or not _grown(work, sources, path, draft, before, now):
                log.info("explore: the tables are joined into `%s`", path)
                erase(path.parent, f"draft-{FILE}*")
                _build(work, sources, draft, now)
            if draft.exists():  # `remove` erases drafts, too, and the caller builds again
                os.replace(draft, path)
        except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
            raise build_failure(path, error) from None
        except RuntimeError as error:
            if str(error) != _NO_THREAD:
                raise
            raise build_failure(path, error) from None


def about(path: Path) -> About:
    """What a joined file says of itself; JoinedFileLost where it cannot be read."""
    return _read(path)[1]


def _read(path: Path) -> tuple[State, About]:
    import duckdb

    try:
        with opened(path, read_only=True) as file:
            return _content(file)
    except (duckdb.Error, ValueError) as error:
        raise JoinedFileLost.of(path, error) from None


def _content(file: duckdb.DuckDBPyConnection) -> tuple[State, About]:
    """What a file says of itself; ValueError where that is not what `_finish` writes, or the file has more than its
    tables: a macro in it would stand for a function of the database."""
    if strangers := run(file, _STRANGERS):
        raise ValueError(f"it has `{strangers[0][0]}`, which the explorer did not make")
    values = dict(run(file, "SELECT name, value FROM about"))
    try:
        return State.from_json(values["state"]), About.from_json(values["about"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it does not record what it was built from ({error!r})") from None


@contextlib.contextmanager
def opened(path: Path, *, read_only: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a joined file within the limits of this process; its SQL opens no other file."""
    import duckdb

    spill = path.with_name(f"{path.name}.spill")
    config: dict[str, Any] = {
        "threads": THREADS,
        "memory_limit": BUILD_MEMORY,
        "temp_directory": str(spill),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(str(path), read_only=read_only, config=config)
    try:
        with interruptible():
            confine(connection)
            yield connection
    finally:
        connection.close()
        shutil.rmtree(spill, ignore_errors=True)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C while the database works be one: it raises a RuntimeError then."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from None
        raise


def confine(connection: duckdb.DuckDBPyConnection) -> None:
    """Let no SQL open a file but those that are open, and what is spilled of them: names and files are others' work."""
    run(connection, "SET enable_external_access = false")
    run(connection, "SET lock_configuration = true")


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
    erase(folder, f"draft-{FILE}*")
    try:
        yield folder / f"draft-{FILE}"
    finally:
        erase(folder, f"draft-{FILE}*")


def _state_in(path: Path) -> State | None:
    """What a file was built from; None where there is none, or it is broken."""
    if not path.is_file():
        return None
    try:
        return _read(path)[0]
    except JoinedFileLost as error:
        log.warning("explore: `%s` is built again: it cannot be read (%s)", path, error.why)
        return None


def _grown(work: Store, sources: Sources, path: Path, draft: Path, before: State, now: State) -> bool:
    """Whether the draft is the file with the parts that were added; False where that is not all that changed, or the
    file is broken or was removed meanwhile."""
    import duckdb

    added = growth.added_parts(before.parts, now.parts)
    if before.tables != now.tables or added is None:
        return False
    try:
        shutil.copyfile(path, draft)
        with opened(draft) as file:
            if _content(file)[0] != before or not growth.take_in(work, sources, file, added):
                return False
            _finish(file, sources, now)
    except (duckdb.Error, ValueError, FileNotFoundError) as error:
        log.warning("explore: `%s` is built again (%s)", path, first_line(error))
        return False
    log.info("explore: %d parts were added to `%s`", sum(map(len, added.values())), path)
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
    about = About(num_rows=num_rows, columns=tuple(_columns(file, teachers, num_rows)), teachers=tuple(teachers))
    run(file, "CREATE OR REPLACE TABLE about (name VARCHAR, value VARCHAR)")
    file.executemany("INSERT INTO about VALUES (?, ?)", [("state", now.to_json()), ("about", about.to_json())])
    run(file, "CHECKPOINT")


def _columns(file: duckdb.DuckDBPyConnection, teachers: Sequence[TeacherColumn], num_rows: int) -> Iterator[Column]:
    """The columns that a request may name, with the ends of histograms: beyond them lies one in a hundred."""
    kinds = dict(run(file, "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'rows'"))
    shown = {name: kind for name, kind in kinds.items() if name not in staging.HIDDEN}
    numbers = [name for name, kind in shown.items() if kind in ("BIGINT", "DOUBLE", "INTEGER")]
    ends = ", ".join(f"quantile_cont({quoted(name)}::DOUBLE, [0.005, 0.995])" for name in numbers)
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
