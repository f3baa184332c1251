"""Recordings of equal bytes under several addresses: when an index ends, audio that several of them hold is taken once.

What an earlier index finished stays as it is. New recordings are taken in turn: those that the source names as test,
those of dev, and the others; each with those first that have a text, and then as the source lists them. What of one
overlaps with those before it is left out. Removed utterances take their turn, as if they had rows: no copy of what they
were comes back, and what is known of them is what was known before the table was made again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Source
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.scan import SourceFiles, named_split
from voxstill.indexing.segment import IndexRow
from voxstill.storage import manifest, tables
from voxstill.storage.removals import Stretch, overlap
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

_RECORDING = ("id", "uri", "error", "content_hash", "removed")
_STRETCH = ("channel", "start_ms", "end_ms")
_UTTERANCE = ("recording_id", *_STRETCH)
_SPLITS = ("test", "dev", "train")
_SOUND, _DUPLICATE, _NEW = 0, 1, 2
"""What a recording is: finished by an earlier index, as sound or as a duplicate, or of this index."""
_MIX = -1
"""In the place of a channel."""


@dataclass(frozen=True, slots=True)
class _Copies:
    """Recordings whose bytes others have too (R), and their utterances (U), both in the order of their parts.

    Some 200 bytes for each. `part_R` is a place in `keys`, `recording_U` one among the recordings, and `row_U` is that
    of the utterance in its part, or `~place` of one among the `removed` of its recording.
    """

    keys: list[str]
    part_R: NDArray[np.int32]
    id_R: NDArray[np.uint64]
    content_R: NDArray[np.uint64]
    state_R: NDArray[np.int8]
    is_marked_R: NDArray[np.bool_]
    """Which rows say already that they are duplicates."""
    uri_R: pa.Array
    recording_U: NDArray[np.int64]
    row_U: NDArray[np.int32]
    stretch_U3: NDArray[np.int64]

    def stretches(self, utterances: Iterable[int]) -> list[Stretch]:
        """Channel, start and end of utterances."""
        rows = (self.stretch_U3[utterance].tolist() for utterance in utterances)
        return [(None if channel == _MIX else channel, start_ms, end_ms) for channel, start_ms, end_ms in rows]


@dataclass(frozen=True, slots=True)
class _Losses:
    """Which utterances go, of which recordings nothing is left, and the recording that each has its bytes from."""

    is_lost_U: NDArray[np.bool_]
    is_whole_R: NDArray[np.bool_]
    first_R: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Changes:
    """What becomes of a part: why recordings lose something, by id, and which lose all; the rows of utterances that go,
    and the places of those that had none in `removed` of their recordings."""

    reasons: Mapping[str, str]
    whole: Collection[str]
    lost_N: NDArray[np.int32]
    removed: Mapping[str, Collection[int]]


def drop(
    work: Store,
    recordings: str,
    utterances: str,
    shared_N: NDArray[np.uint64],
    files: SourceFiles,
    sources: Sequence[Source],
    check: Callable[[], None],
) -> bool:
    """Leave out what new recordings have in common with others, and return whether a part was written again.

    `shared_N` are the contents, sorted, that several rows have. A recording of which nothing is left has an error. Only
    parts that no earlier index finished are written, each after a `check`. What was ended meanwhile, the next index
    does again.
    """
    finished, keys = _finished_parts(work, utterances), tables.parts(work, utterances)
    if not len(shared_N) or finished.issuperset(keys):
        return False
    copies = _read(work, recordings, keys, finished, shared_N)
    losses = _losses(copies, _places(copies, files, sources))
    is_touched_R = losses.is_whole_R & ~copies.is_marked_R
    is_touched_R[copies.recording_U[losses.is_lost_U]] = True
    parts = np.unique(copies.part_R[is_touched_R])
    part_U = copies.part_R[copies.recording_U]
    for part in parts.tolist():
        start, end = np.searchsorted(copies.part_R, (part, part + 1)).tolist()
        reasons, whole = dict[str, str](), set[str]()
        for row in (start + np.flatnonzero(is_touched_R[start:end])).tolist():
            id_, first = f"{int(copies.id_R[row]):016x}", copies.uri_R[int(losses.first_R[row])].as_py()
            reasons[id_] = Failure(FailureKind.DUPLICATE, f"of `{first}`").text
            if losses.is_whole_R[row]:
                whole.add(id_)
        start, end = np.searchsorted(part_U, (part, part + 1)).tolist()
        lost_U = start + np.flatnonzero(losses.is_lost_U[start:end])
        is_row_U = copies.row_U[lost_U] >= 0
        removed: dict[str, set[int]] = {}
        for utterance in lost_U[~is_row_U].tolist():
            id_ = f"{int(copies.id_R[copies.recording_U[utterance]]):016x}"
            removed.setdefault(id_, set()).add(~int(copies.row_U[utterance]))
        check()
        _write(work, recordings, copies.keys[part], _Changes(reasons, whole, copies.row_U[lost_U[is_row_U]], removed))
    return bool(len(parts))


def _finished_parts(work: Store, utterances: str) -> set[str]:
    """The keys of the parts that an earlier index finished; one that was made again since, by a repair, is new."""
    num_bytes = {entry.key: entry.num_bytes for entry in work.list(utterances)}
    try:
        files = manifest.read(work, utterances) or ()
    except DataError:  # a repair writes it again: then nothing may become a duplicate that was none
        return set(num_bytes)
    written = {f"{utterances}/{file.name}": file.num_bytes for file in files}
    return {key for key, size in written.items() if size in (None, num_bytes.get(key))}


def _read(work: Store, recordings: str, keys: list[str], finished: set[str], shared_N: NDArray[np.uint64]) -> _Copies:
    import pyarrow as pa

    parts, ids, contents = array("i"), array("Q"), array("Q")
    states, marks, uris = array("b"), array("b"), [pa.array([], pa.large_string())]
    rows_of: dict[int, Mapping[str, int]] = {}
    removed_of: dict[int, Mapping[int, list[dict[str, Any]]]] = {}
    recording_parts = (f"{recordings}/{key.rpartition('/')[2]}" for key in keys)
    for part, table in enumerate(tables.columns(work, recording_parts, IndexRow, _RECORDING)):
        content_N = np.array([int(digits or "0", 16) for digits in table["content_hash"].to_pylist()], np.uint64)
        rows = table.take(np.flatnonzero(np.isin(content_N, shared_N)))
        if not len(rows):
            continue
        rows_of[part] = {id_: len(ids) + row for row, id_ in enumerate(rows["id"].to_pylist())}
        removed_of[part] = {len(ids) + row: of for row, of in enumerate(rows["removed"].to_pylist()) if of}
        parts.extend([part] * len(rows))
        ids.extend(int(id_, 16) for id_ in rows["id"].to_pylist())
        contents.extend(int(digits, 16) for digits in rows["content_hash"].to_pylist())
        is_marked = rows["error"].is_valid().to_pylist()
        marks.extend(is_marked)
        states.extend(is_marked if keys[part] in finished else [_NEW] * len(rows))
        uris.append(rows["uri"].combine_chunks().cast(pa.large_string()))
    of_recordings, row_numbers, stretches = array("q"), array("i"), array("q")

    def add(of_recording: int, row: int, channel: int | None, start_ms: int, end_ms: int) -> None:
        of_recordings.append(of_recording)
        row_numbers.append(row)
        stretches.extend((_MIX if channel is None else channel, start_ms, end_ms))

    utterance_parts = tables.columns(work, (keys[part] for part in rows_of), Utterance, _UTTERANCE)
    for part, table in zip(rows_of, utterance_parts, strict=True):
        columns = (table[name].to_pylist() for name in _UTTERANCE)
        for row, (recording_id, *stretch) in enumerate(zip(*columns, strict=True)):
            if (of_recording := rows_of[part].get(recording_id)) is not None:
                add(of_recording, row, *stretch)
        for of_recording, left_out in removed_of[part].items():
            for place, one in enumerate(left_out):
                add(of_recording, ~place, *(one[name] for name in _STRETCH))
    return _Copies(
        keys=keys,
        part_R=np.frombuffer(parts, np.int32),
        id_R=np.frombuffer(ids, np.uint64),
        content_R=np.frombuffer(contents, np.uint64),
        state_R=np.frombuffer(states, np.int8),
        is_marked_R=np.frombuffer(marks, np.bool_),
        uri_R=pa.concat_arrays(uris),
        recording_U=np.frombuffer(of_recordings, np.int64),
        row_U=np.frombuffer(row_numbers, np.int32),
        stretch_U3=np.frombuffer(stretches, np.int64).reshape(-1, 3),
    )


def _losses(copies: _Copies, place_R: NDArray[np.int64]) -> _Losses:
    """What goes: recordings of one content are taken in turn, and of each what none before it has."""
    num = len(copies.id_R)
    order_R = np.lexsort((copies.id_R, place_R, copies.state_R, copies.content_R))
    by_recording_U = np.argsort(copies.recording_U, kind="stable")
    start_R = np.searchsorted(copies.recording_U[by_recording_U], np.arange(num + 1))
    losses = _Losses(np.zeros(len(copies.row_U), np.bool_), np.zeros(num, np.bool_), np.zeros(num, np.int64))
    for _, group in groupby(order_R.tolist(), key=copies.content_R.__getitem__):
        first, *others = group
        losses.first_R[[first, *others]] = first
        taken = copies.stretches(by_recording_U[start_R[first] : start_R[first + 1]])
        for recording in others:
            own_U = by_recording_U[start_R[recording] : start_R[recording + 1]]
            own = copies.stretches(own_U)
            is_lost = [any(overlap(stretch, other) for other in taken) for stretch in own]
            if copies.state_R[recording] == _NEW:
                losses.is_lost_U[own_U] = is_lost
                losses.is_whole_R[recording] = all(is_lost)
            taken += own
    return losses


def _places(copies: _Copies, files: SourceFiles, sources: Sequence[Source]) -> NDArray[np.int64]:
    """The turn of each new recording; those that the source does not list any more come behind all others."""
    place_R = np.full(len(copies.id_R), np.iinfo(np.int64).max, np.int64)
    rows_of: dict[int, list[int]] = {}
    for row in np.flatnonzero(copies.state_R == _NEW).tolist():
        rows_of.setdefault(int(copies.id_R[row]), []).append(row)
    num_files = len(files)
    for place, file in enumerate(files):
        for row in rows_of.get(int(file.id, 16), ()):
            source = sources[file.source]
            split = min(_SPLITS.index(named_split(entry, source) or "train") for entry in file.entries)
            has_text = any(entry.text is not None for entry in file.entries)
            place_R[row] = place + num_files * (2 * split + (not has_text))
    return place_R


def _write(work: Store, recordings: str, key: str, changes: _Changes) -> None:
    """Write a part and the recordings beside it again: with the reasons, and without the lost rows.

    The recordings come first: a part with the utterances of a duplicate is one that was not done.
    """
    of_recordings = f"{recordings}/{key.rpartition('/')[2]}"
    rows = tables.from_parquet(work.read(of_recordings), IndexRow, work.uri(of_recordings))
    marked = [_marked(row, changes) if row.id in changes.reasons else row for row in rows]
    work.replace(of_recordings, tables.to_parquet(marked, IndexRow))
    utterances = tables.to_arrow(work.read(key), Utterance, work.uri(key))
    kept_N = np.delete(np.arange(len(utterances)), changes.lost_N)
    work.replace(key, tables.arrow_to_parquet(utterances.take(kept_N)))


def _marked(row: IndexRow, changes: _Changes) -> IndexRow:
    reason, lost = changes.reasons[row.id], changes.removed.get(row.id, ())
    removed = tuple(one for place, one in enumerate(row.removed or ()) if place not in lost) or None
    row = replace(row, removed=removed)
    if row.id in changes.whole:
        return replace(row, error=reason, segment_errors=(), untimed=None, clipped=None, dc_offset=None, unused=())
    return replace(row, segment_errors=tuple(dict.fromkeys((*row.segment_errors, reason))))
