"""The files of a finished table, written down when it was finished: what is missing, added or another is named.

What is in a part is compared with its own checksum when it is read (`storage/parquet.py`). Here the listing says
whether it is the part that was there: where an etag is another, as after a copy of the folder, the checksum in its
footer is compared with that written down.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from voxstill.core.errors import DataError
from voxstill.core.records import fingerprint
from voxstill.storage import checked_json, parquet, tables
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Entry, Store

NAME = "_manifest"
_GROWING = ("labels/", "alignments/")
"""Tables that are read while parts are added: by `filter --partial`, and by steps whose input was judged before."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One part of a table; what an earlier version did not write down, or a part of version 0.1 does not have, is None.

    Earlier versions wrote the checksum of `_SUCCESS.json` here as well.
    """

    name: str
    crc32: int | None = None
    num_bytes: int | None = None
    num_rows: int | None = None
    etag: str | None = None


def write(work: Store, prefix: str) -> None:
    """Write down the parts of a table; of those that are not in its last manifest the footers are read."""
    before: Mapping[str, WrittenFile] = {}
    with contextlib.suppress(DataError):  # a damaged one is written again
        before = {file.name: file for file in read(work, prefix) or ()}

    def written(entry: Entry) -> WrittenFile:
        name = entry.key.rpartition("/")[2]
        known = before.get(name)
        if known is not None and known.num_rows is not None and _is_same(known, entry):
            return known
        footer = parquet.read_footer(work, entry)
        return WrittenFile(name, footer.crc32, entry.num_bytes, footer.num_rows, entry.etag or None)

    with ThreadPoolExecutor(tables.READERS) as pool:
        rows = list(pool.map(written, entries(work, prefix).values()))
    work.replace(f"{prefix}/{NAME}", tables.to_parquet(rows, WrittenFile))


def read(work: Store, prefix: str) -> list[WrittenFile] | None:
    """The files of a finished table; None if it has no manifest, as those of version 0.1. DataError if it is
    damaged."""
    key = f"{prefix}/{NAME}"
    data = work.read_or_none(key)
    return None if data is None else tables.from_parquet(data, WrittenFile, work.uri(key))


def content(work: Store, prefix: str) -> str | None:
    """A hash of what the parts of a finished table hold; None if its manifest does not say."""
    rows = read(work, prefix)
    if rows is None or any(row.crc32 is None for row in rows):
        return None
    return fingerprint(sorted((row.name, row.crc32, row.num_rows) for row in rows))


def parts(work: Store, prefix: str) -> list[str]:
    """The keys of the parts of a table, sorted: of a finished one those that it was finished with.

    DataError if one is missing, is not the one that was written, or was added. Labels and alignments may have been
    added since.
    """
    rows = _rows(work, prefix)
    if rows is None:
        return tables.parts(work, prefix)
    there = entries(work, prefix)
    if there.keys() - {row.name for row in rows}:  # the table may have grown since its manifest was read
        rows = _rows(work, prefix) or []
    written = {row.name: row for row in rows if row.name != tables.SUCCESS}
    if missing := sorted(written.keys() - there):
        raise _broken(work, prefix, f"{len(missing)} of {len(written)} parts are missing, such as `{missing[0]}`")
    if (added := added_parts(prefix, written, there)) and rows:
        step = "run the step that makes it again, which may not have finished; if it has, "
        raise _broken(work, prefix, f"{len(added)} parts were added since, such as `{added[0]}`", step)
    with ThreadPoolExecutor(tables.READERS) as pool:
        for fault in pool.map(lambda row: changed(work, row, there[row.name]), written.values()):
            if fault is not None:
                raise _broken(work, prefix, fault)
    return [entry.key for entry in there.values()]


def added_parts(prefix: str, written: Iterable[str], there: Iterable[str]) -> list[str]:
    """Names of parts that are `there` and were not `written`, of a table that is not read while it grows."""
    return [] if prefix.startswith(_GROWING) else sorted(set(there).difference(written))


def changed(work: Store, row: WrittenFile, entry: Entry) -> str | None:
    """Why a part is not the one that was written down; None if it is."""
    if row.num_bytes not in (None, entry.num_bytes):
        return f"`{row.name}` has {entry.num_bytes} bytes, but had {row.num_bytes} when it was written"
    if row.num_rows is None or _is_same(row, entry):
        return None
    footer = parquet.read_footer(work, entry)
    if (footer.crc32, footer.num_rows) != (row.crc32, row.num_rows):
        return f"`{row.name}` is not the file that was written: its checksum or the number of its rows differs"
    return None


def check_success(work: Store, prefix: str, success: bytes) -> None:
    """DataError if a `_SUCCESS.json` is not what an earlier version wrote, which has no checksum of its own."""
    files = read(work, prefix)
    if files is not None and not is_former_success(files, success):
        raise _broken(work, prefix, f"its `{tables.SUCCESS}` was changed or damaged")


def is_former_success(files: Iterable[WrittenFile], success: bytes) -> bool:
    """Whether a `_SUCCESS.json` without a checksum is the one that a manifest of an earlier version names."""
    return any(file.name == tables.SUCCESS and file.crc32 == zlib.crc32(success) for file in files)


def _rows(work: Store, prefix: str) -> list[WrittenFile] | None:
    rows = read(work, prefix)
    if rows is None:
        success = work.read_or_none(f"{prefix}/{tables.SUCCESS}")
        if success is not None and checked_json.has_checksum(success):
            raise _broken(work, prefix, f"its `{NAME}` is missing")
    return rows


def entries(work: Store, prefix: str) -> dict[str, Entry]:
    """The parts that are there by their names, sorted."""
    listed = (entry for entry in work.list(prefix) if entry.key.endswith(".parquet"))
    return {entry.key.rpartition("/")[2]: entry for entry in sorted(listed, key=lambda entry: entry.key)}


def _is_same(row: WrittenFile, entry: Entry) -> bool:
    return row.num_bytes == entry.num_bytes and row.etag is not None and row.etag == entry.etag


def _broken(work: Store, prefix: str, why: str, fix: str = "") -> DataError:
    return DataError(
        f"`{redact_uri(work.uri(prefix))}` is not the table that was finished",
        code="table-broken",
        why=why,
        fix=f"{fix}run: voxstill verify {redact_uri(work.root)} --repair",
    )
