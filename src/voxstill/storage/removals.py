"""The record of removed utterances, `WORK/removed/`: every later table and shard leaves them out.

A removal names an utterance or a recording. In a table that has the utterance it is that one; in a table of another
segmentation, and in copies of the file under other addresses, it is every utterance that overlaps it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxstill.core.records import Split, Utterance, fingerprint
from voxstill.storage import tables
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = "removed"
"""Where the record lies. A part is named after what is in it."""
REMOVED = "removed"
"""Error of the label of a removed utterance."""
UTTERANCES = "utterances"
"""The prefix of all tables of utterances."""
Stretch = tuple[int | None, int, int]
"""Channel, start and end in milliseconds; no channel is the mix of all."""
_COLUMNS = ("id", "recording_id", "uri", "channel", "start_ms", "end_ms", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One utterance, or one recording, that was removed at a `time` (UTC, ISO 8601) for a `reason`.

    `id` is that of the utterance or of the recording. The utterance is the stretch of its recording from `start_ms` to
    `end_ms`, which is None if the whole recording was removed. Copies of the recording that were indexed by then
    have removals of their own, of the same id.
    """

    id: str
    uri: str
    channel: int | None = None
    start_ms: int = 0
    end_ms: int | None = None
    time: str
    reason: str | None = None
    content: str | None = None
    """`content_hash` of the recording; None if it is not known, and in records of earlier versions."""

    @property
    def is_recording(self) -> bool:
        """Whether all of a recording was removed."""
        return self.end_ms is None

    def overlaps(self, utterance: Utterance) -> bool:
        """Whether an utterance of the same audio has some of what was removed."""
        return overlap(self.stretch, (utterance.channel, utterance.start_ms, utterance.end_ms))

    @property
    def stretch(self) -> Stretch:
        """The stretch of the recording that was removed."""
        return (None, 0, sys.maxsize) if self.end_ms is None else (self.channel, self.start_ms, self.end_ms)


def overlap(first: Stretch, second: Stretch) -> bool:
    """Whether two stretches of one recording have audio in common."""
    (channel, start_ms, end_ms), (other, from_ms, to_ms) = first, second
    return (None in (channel, other) or channel == other) and start_ms < to_ms and from_ms < end_ms


def record(work: Store) -> list[Removal]:
    """Every removal in a work folder."""
    return list(tables.read(work, PREFIX, Removal))


def append(work: Store, removals: Sequence[Removal]) -> None:
    """Add removals to the record."""
    data = tables.to_parquet(removals, Removal)
    work.create(f"{PREFIX}/{fingerprint(*map(tables.to_columns, removals))}.parquet", data)


def of(work: Store, utterances: str = UTTERANCES) -> Mapping[str, Split]:
    """The removed utterances of a table, or of all tables below a prefix: the split of each by its id."""
    if next(work.list(PREFIX), None) is None:
        return {}
    return _of(work.root, utterances, tables.parts_hash(work, PREFIX), tables.parts_hash(work, utterances))


def identity(removed: Iterable[str]) -> str | None:
    """A hash of the ids of removed utterances; None if there are none."""
    ids = sorted(removed)
    return fingerprint(ids) if ids else None


def covered(
    removals: Sequence[Removal], utterances: Sequence[Utterance], contents: Mapping[str, str | None] | None = None
) -> list[Utterance]:
    """Those of the utterances that were removed; `contents` are the content hashes of their recordings by id.

    All utterances of a recording have to be among them: an utterance that is there itself removes no other of its file.
    """
    contents = contents or {}
    ids = {removal.id for removal in removals}
    present = {(utterance.id, utterance.uri) for utterance in utterances}
    by_uri, by_content = dict[str, list[Removal]](), dict[str | None, list[Removal]]()
    for removal in removals:
        if (removal.id, removal.uri) not in present:
            by_uri.setdefault(removal.uri, []).append(removal)
        if removal.content is not None:
            by_content.setdefault(removal.content, []).append(removal)

    def is_covered(utterance: Utterance) -> bool:
        copies = by_content.get(contents.get(utterance.recording_id), ())
        return (
            utterance.id in ids
            or utterance.recording_id in ids
            or any(removal.overlaps(utterance) for removal in by_uri.get(utterance.uri, ()))
            or any(removal.uri != utterance.uri and removal.overlaps(utterance) for removal in copies)
        )

    return [utterance for utterance in utterances if is_covered(utterance)]


@functools.lru_cache(maxsize=16)
def _of(root: str, utterances: str, removed: str, listing: str) -> Mapping[str, Split]:
    """`of`, read once for each state of the record and of the table, which `removed` and `listing` stand for."""
    work = Store(root)
    removals = record(work)
    splits: dict[str, Split] = {}
    by_table: dict[str, list[str]] = {}
    for key in tables.parts(work, utterances):
        by_table.setdefault(key.rpartition("/")[0], []).append(key)
    for keys in by_table.values():
        candidates = [
            tables.from_columns(row, Utterance)
            for part in tables.columns(work, keys, Utterance, _COLUMNS)
            for row in _candidates(part, removals).to_pylist()
        ]
        splits |= {utterance.id: utterance.split for utterance in covered(removals, candidates)}
    return splits


def _candidates(utterances: pa.Table, removals: Sequence[Removal]) -> pa.Table:
    """The rows that share an id or an address with a removal."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.array([removal.id for removal in removals], pa.string())
    uris = pa.array([removal.uri for removal in removals], pa.string())
    is_named = pc.or_(pc.is_in(utterances["id"], ids), pc.is_in(utterances["recording_id"], ids))
    return utterances.filter(pc.or_(is_named, pc.is_in(utterances["uri"], uris)))
