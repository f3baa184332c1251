"""Files of a WORK that belong to no table: the record of removed utterances, judgements, and unpacked copies of
compressed files.

No step of a configuration makes the first two again; a file is unpacked once more by `voxstill index`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from voxstill.core.errors import VoxstillError
from voxstill.core.records import content_hash
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline.check_table import IS_MISSING
from voxstill.storage import corrections, removals, tables
from voxstill.storage.store import Store
from voxstill.storage.uri import ByteRange, split_range

UNPACKED = "unpacked/"


def file_faults(work: Store) -> tuple[int, dict[str, str]]:
    """How many files were read, and why each of those that are broken or missing is."""
    record, unpacked = list(tables.parts(work, removals.PREFIX)), _unpacked(work)
    judged = tables.parts(work, corrections.PREFIX)
    removed, broken = removals.read(work)
    if not broken and (why := removals.lacking(work, removed, thorough=True)) is not None:
        broken = {removals.PREFIX: why}
    faults = {key: f"{why}; {removals.fix(work)}" for key, why in broken.items()}
    faults |= {key: fault for key in judged if (fault := _judgement_fault(work, key)) is not None}
    there = {entry.key: entry.num_bytes for entry in work.list(UNPACKED)}
    for key, recordings in unpacked.items():
        if key not in there:
            faults[key] = f"{IS_MISSING}; `voxstill verify --repair` unpacks it again"
        elif num := sum(_is_other(work, key, there[key], *member) for member in recordings.items()):
            why = f"{num:,} recordings in it are not those that were indexed"
            faults[key] = f"{why}; `voxstill verify --repair` unpacks it again"
    return len(record) + len(judged) + len(unpacked), faults


def _judgement_fault(work: Store, key: str) -> str | None:
    try:
        corrections.read(work, key)
    except VoxstillError as error:
        return f"{error.why or error.what}; {corrections.FIX}"
    return None


def _unpacked(work: Store) -> Mapping[str, Mapping[ByteRange, str | None]]:
    """The recordings that lie in each unpacked copy, with the hashes of their bytes where these are known."""
    root, tars = work.uri(UNPACKED), dict[str, dict[ByteRange, str | None]]()
    for rows in _parts(work, "recordings", IndexRow, "uri", "content_hash"):
        for uri, content in rows:
            tar, place = split_range(uri)
            if place is not None and tar.startswith(root):
                tars.setdefault(UNPACKED + tar.removeprefix(root), {})[place] = content
    return tars


def _is_other(work: Store, key: str, num_bytes: int, place: ByteRange, content: str | None) -> bool:
    """Whether a recording in an unpacked copy is another than was indexed."""
    if content is None or place.end > num_bytes:
        return place.end > num_bytes
    data = work.read_range(key, place.start, place.end) if place.length else b""
    return content_hash(data) != content


def _parts(work: Store, kind: str, row: type, *names: str) -> Iterator[list[tuple[str, ...]]]:
    """Columns of each part of all tables of a kind; those that are broken are named by the check of their table."""
    for key in tables.parts(work, kind):
        with contextlib.suppress(VoxstillError):
            for part in tables.columns(work, [key], row, names):
                yield list(zip(*(part[name].to_pylist() for name in names), strict=True))
