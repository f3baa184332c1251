"""What the tables of an index hold already, and what a new index has to do about each file of the source."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import level
from voxstill.core.errors import DataError, StorageError
from voxstill.core.records import content_hash, hash64
from voxstill.indexing.archives import ArchiveCheck, Archives
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.folder_splits import is_held_out
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.part_columns import flattened, hex64, num_beyond, removed_ids
from voxstill.indexing.scan import SourceFile
from voxstill.storage import parquet, tables
from voxstill.storage.arrays import numpy_array
from voxstill.storage.fetch import RefusedError, fetch
from voxstill.storage.figures import IndexFigures
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local

if TYPE_CHECKING:
    import pyarrow as pa

_PARTS_AT_ONCE = 256
_FILES_AT_ONCE = 4096
_RECORDING_COLUMNS = (
    *("id", "uri", "error", "etag", "origin", "said", "content_hash"),
    *("segment_errors", "untimed", "speaker_doubts", "clipped", "dc_offset", "removed"),
)
_SOUND, _UNREADABLE = 0, 1
"""States of a row; the kinds of all other failures follow, as they come."""


class Status(StrEnum):
    """What the tables know of a file of the source."""

    NEW = "new"
    """It was never indexed."""
    DONE = "done"
    """It is as it was: nothing to do."""
    RETRY = "retry"
    """Nothing was made of it, and there is reason to try again."""
    CHANGED = "changed"
    """Another version of the file was indexed, of other content as far as that is known."""
    EDITED = "edited"
    """The source says other things of it than when it was indexed."""


class IndexState:
    """What the tables of an index hold, in columns: 58 bytes for a recording with its utterance, no objects.

    A recording may have several rows, since one that could not be used is tried again; a sound one has the last word.
    """

    def __init__(self, work: Store, recordings: str, utterances: str) -> None:
        self._work, self._recordings, self._utterances = work, recordings, utterances
        self._parts: set[str] = set()
        self._states: dict[str, int] = {"": _SOUND, FailureKind.UNREADABLE: _UNREADABLE}
        """Each kind of failure with its number, which is the state of a row."""
        none_N = np.empty(0, np.uint64)
        self._id_N, self._metadata_N, self._uri_N, self._state_N = none_N, none_N, none_N, np.empty(0, np.uint16)
        self._content_N = self._sound_uri_N = self._utterance_id_N = self._removed_id_N = none_N
        self._sound_row_N: NDArray[np.int64] | None = None
        self._milliseconds = self._supervised_ms = self._num_supervised = 0
        self._splits: Counter[str] = Counter()
        self._segment_reasons: Counter[str] = Counter()
        self._untimed, self._speaker_doubts = Counter[str](), Counter[str]()
        self.num_times_added = 0
        """Recordings of which the source has word times, as `missing` saw it, and the tables none."""
        self._num_clipped = self._num_offset = 0
        self._archives = Archives(work.uri("unpacked/"))
        self._held_out = array("Q")
        """The recordings of the tables that the source holds out."""
        self.read()

    def read(self) -> bool:
        """Take in the parts that were added since the last time, and return whether there were any.

        A part of utterances is the commit of both.
        """
        keys = (entry.key for entry in self._work.list(self._utterances) if entry.key.endswith(".parquet"))
        new = sorted(set(keys) - self._parts)
        self._parts.update(new)
        ids, uris, states, utterance_ids = array("Q"), array("Q"), array("H"), array("Q")
        hashes, contents, left_out_ids = array("Q"), array("Q"), array("Q")
        with ThreadPoolExecutor(tables.READERS) as pool:
            for first in range(0, len(new), _PARTS_AT_ONCE):
                for recordings, utterances in pool.map(self._read, new[first : first + _PARTS_AT_ONCE]):
                    ids.frombytes(hex64(recordings["id"]))
                    for column, numbers in (("said", hashes), ("content_hash", contents)):
                        is_there = column in recordings.column_names
                        numbers.frombytes(hex64(recordings[column]) if is_there else bytes(8 * len(recordings)))
                    uris.extend(map(hash64, recordings["uri"].to_pylist()))
                    states.extend(map(self._state, recordings["error"].to_pylist()))
                    self._note_archives(recordings)
                    utterance_ids.extend(map(hash64, utterances["id"].to_pylist()))
                    left_out_ids.extend(map(hash64, removed_ids(recordings)))
                    self._segment_reasons.update(map(_kind, flattened(recordings, "segment_errors")))
                    self._untimed.update(flattened(recordings, "untimed"))
                    self._speaker_doubts.update(map(_kind, flattened(recordings, "speaker_doubts")))
                    self._num_clipped += num_beyond(recordings, "clipped", level.MAX_CLIPPED)
                    self._num_offset += num_beyond(recordings, "dc_offset", level.MAX_DC_OFFSET)
                    self._splits.update(utterances["split"].to_pylist())
                    spans_ms = numpy_array(utterances["end_ms"]) - numpy_array(utterances["start_ms"])
                    self._milliseconds += int(spans_ms.sum())
                    if "supervised" in utterances.column_names:  # tables of earlier versions lack it
                        is_supervised_N = np.array(utterances["supervised"].to_pylist(), bool)  # null is false
                        self._num_supervised += int(is_supervised_N.sum())
                        self._supervised_ms += int(spans_ms[is_supervised_N].sum())
        id_N, state_N = _joined(self._id_N, ids), _joined(self._state_N, states)
        order_N = np.lexsort((state_N, id_N))
        self._id_N, self._state_N = id_N[order_N], state_N[order_N]
        del id_N, state_N, ids, states
        self._metadata_N = _joined(self._metadata_N, hashes)[order_N]
        self._content_N = _joined(self._content_N, contents)[order_N]
        self._uri_N = _joined(self._uri_N, uris)[order_N]
        del order_N, hashes, contents, uris
        self._sound_uri_N = np.sort(self._uri_N[self._state_N == _SOUND])
        self._sound_row_N = None
        self._utterance_id_N = _joined(self._utterance_id_N, utterance_ids)
        self._utterance_id_N.sort()
        self._removed_id_N = np.sort(_joined(self._removed_id_N, left_out_ids))
        return bool(new)

    def __contains__(self, recording_id: str) -> bool:
        return bool(self._rows(recording_id))

    def missing(self, files: Iterable[SourceFile]) -> bytearray:
        """For each file, 1 where it is to be indexed: it is new, or there is reason to try it again.

        DataError if a file, or what the source says of it, is not what it was, or where an id is taken.
        """
        mask = bytearray()
        refused: dict[Status, SourceFile] = {}
        counts: Counter[Status] = Counter()
        archives = ArchiveCheck(self._archives)
        source = iter(files)
        while batch := list(itertools.islice(source, _FILES_AT_ONCE)):
            for file, is_done in zip(batch, self._are_done(batch), strict=True):
                status = Status.DONE if is_done else self.status(file)
                mask.append(status in (Status.NEW, Status.RETRY))
                self.num_times_added += not is_done and self._lacks_times(file)
                if is_done and any(is_held_out(entry.split or entry.implied_split) for entry in file.entries):
                    self._held_out.append(int(file.id, 16))
                if is_done or status == Status.NEW or _holds(self._sound_uri_N, file.entries[0].uri):
                    archives.add(file.entries[0], is_kept=status != Status.NEW)
                if status == Status.NEW:
                    self._refuse_taken(file)
                if status in (Status.CHANGED, Status.EDITED):
                    counts[status] += 1
                    refused.setdefault(status, file)
        if Status.CHANGED in refused:
            raise self._changed(refused[Status.CHANGED].entries[0], counts[Status.CHANGED])
        if rewritten := archives.rewritten():
            raise self._changed(rewritten[0], len(rewritten))
        if Status.EDITED in refused:
            raise self._edited(refused[Status.EDITED].entries[0], counts[Status.EDITED])
        return mask

    def num_kept_in_training(self) -> int:
        """How many recordings the source holds out, as `missing` saw it, and the tables give to training."""
        held_out_N = np.unique(np.frombuffer(self._held_out, np.uint64))
        is_learnt_N = np.zeros(len(held_out_N), np.bool_)
        for key in sorted(self._parts) if len(held_out_N) else ():
            part = _columns(self._work, key, ("recording_id", "split"))
            id_N = np.frombuffer(hex64(part["recording_id"]), np.uint64)
            is_train_N = np.array([split == "train" for split in part["split"].to_pylist()], np.bool_)
            is_learnt_N |= np.isin(held_out_N, id_N[is_train_N])
        return int(is_learnt_N.sum())

    def left(self, files: Iterable[SourceFile]) -> Iterator[str]:
        """The ids of the files that were never indexed."""
        source = iter(files)
        while batch := list(itertools.islice(source, _FILES_AT_ONCE)):
            for file, is_done in zip(batch, self._are_done(batch), strict=True):
                if not is_done and self.status(file) == Status.NEW:
                    yield file.id

    def refuse_versions(self) -> None:
        """DataError if two versions of a file were indexed.

        Parts of an index do that where the source is changed while they run: none of them sees what others add.
        """
        num_ids, num_versions = _num_repeated(self._utterance_id_N), _num_repeated(self._sound_uri_N)
        if num_versions:
            raise DataError(
                f"the source was changed while parts of `{self._work.uri(self._utterances)}` were made",
                code="source-changed",
                why=f"{num_versions} files were indexed in two versions, {num_ids} ids of utterances are there twice",
                fix="index into another work folder, and do not change the source while it runs",
            )

    def status(self, file: SourceFile) -> Status:
        """What is known of a file.

        One that storage did not give is tried again, and so is a damaged one of which the source now says something
        else: nothing was made of either.
        """
        rows = self._rows(file.id)
        if not rows:
            return self._status_of_version(file) if _holds(self._sound_uri_N, file.entries[0].uri) else Status.NEW
        metadata_N, state_N = self._metadata_N[rows.start : rows.stop], self._state_N[rows.start : rows.stop]
        is_same_N = _is_same(metadata_N, file)
        if state_N[0] == _SOUND:
            return Status.DONE if is_same_N[0] else Status.EDITED
        return Status.DONE if (is_same_N & (state_N > _UNREADABLE)).any() else Status.RETRY

    def _status_of_version(self, file: SourceFile) -> Status:
        """What is known of a file that was indexed with another etag: a local one of equal content is the same."""
        uri = file.entries[0].uri
        if self._sound_row_N is None:  # few need it
            row_N = np.flatnonzero(self._state_N == _SOUND)
            self._sound_row_N = row_N[np.argsort(self._uri_N[row_N], kind="stable")]
        value = np.uint64(hash64(uri))
        start, end = (int(self._sound_uri_N.searchsorted(value, side)) for side in ("left", "right"))
        row_N = self._sound_row_N[start:end]
        row_N = row_N[self._content_N[row_N] != 0]
        if not len(row_N) or not is_local(uri):
            return Status.CHANGED
        try:
            content = int(content_hash(fetch(uri).data), 16)
        except (StorageError, RefusedError):
            return Status.CHANGED
        same_N = row_N[self._content_N[row_N] == content]
        if not len(same_N):
            return Status.CHANGED
        return Status.DONE if _is_same(self._metadata_N[same_N], file).any() else Status.EDITED

    def _lacks_times(self, file: SourceFile) -> bool:
        """Whether a sound file is in the tables as it is described now, but for word times."""
        rows = self._rows(file.id)
        is_sound = bool(rows) and self._state_N[rows.start] == _SOUND
        return is_sound and self._metadata_N[rows.start] == int(file.untimed_hash, 16) != int(file.metadata_hash, 16)

    def shared_contents(self) -> NDArray[np.uint64]:
        """The contents that several recordings have, sorted; duplicates of others count too."""
        content_N = np.sort(self._content_N[self._content_N != 0])
        return np.unique(content_N[1:][content_N[1:] == content_N[:-1]])

    def figures(self, recipe: str) -> IndexFigures:
        """How many there are of everything, and why recordings cannot be used; of an address the best row counts."""
        order_N = np.lexsort((self._state_N, self._uri_N))
        uri_N, state_N = self._uri_N[order_N], self._state_N[order_N]
        is_first_N = np.ones(len(uri_N), np.bool_)
        np.not_equal(uri_N[1:], uri_N[:-1], out=is_first_N[1:])
        names = list(self._states)
        counts = np.bincount(state_N[is_first_N], minlength=len(names)).tolist()
        reasons = {name: count for name, count in zip(names[1:], counts[1:], strict=True) if count}
        duplicates = reasons.pop(FailureKind.DUPLICATE, 0)
        return IndexFigures(
            recipe=recipe,
            recordings=sum(counts),
            damaged=sum(reasons.values()),
            duplicates=duplicates,
            utterances=len(self._utterance_id_N),
            removed=len(self._removed_id_N) or None,
            hours=self._milliseconds / 3_600_000,
            splits=dict(sorted(self._splits.items())),
            supervised=self._num_supervised or None,
            supervised_hours=self._supervised_ms / 3_600_000 if self._num_supervised else None,
            reasons=dict(sorted(reasons.items(), key=lambda item: -item[1])),
            damaged_segments=self._segment_reasons.total(),
            segment_reasons=dict(self._segment_reasons.most_common()),
            clipped=self._num_clipped,
            dc_offset=self._num_offset,
            untimed=dict(self._untimed.most_common()) or None,
            speaker_doubts=dict(self._speaker_doubts.most_common()) or None,
        )

    def refuse_doubled(self) -> None:
        """DataError if an id stands twice among the utterances."""
        if (self._utterance_id_N[1:] == self._utterance_id_N[:-1]).any():
            raise tables.doubled_ids(self._work.uri(self._utterances), "utterances")

    def _are_done(self, files: Sequence[SourceFile]) -> list[bool]:
        """Which of the files are sound and described as they were: nearly all, so all are looked up at once."""
        if not len(self._id_N):
            return [False] * len(files)
        id_N = np.array([int(file.id, 16) for file in files], np.uint64)
        metadata_N = np.array([int(file.metadata_hash, 16) for file in files], np.uint64)
        index_N = np.minimum(self._id_N.searchsorted(id_N), len(self._id_N) - 1)
        is_sound_N = (self._id_N[index_N] == id_N) & (self._state_N[index_N] == _SOUND)
        done: list[bool] = (is_sound_N & (self._metadata_N[index_N] == metadata_N)).tolist()
        return done

    def _rows(self, recording_id: str) -> range:
        value = np.uint64(int(recording_id, 16))
        start = end = int(self._id_N.searchsorted(value))
        while end < len(self._id_N) and self._id_N[end] == value:
            end += 1
        return range(start, end)

    def with_free_ids(self, file: SourceFile) -> SourceFile:
        """The file, with another id for each sample of a tar whose own is taken by a row of the tables."""
        if not any(self._is_taken(entry) and entry.sample is not None for entry in file.entries):
            return file
        entries = (entry.renamed() if self._is_taken(entry) and entry.sample else entry for entry in file.entries)
        return replace(file, entries=tuple(entries))

    def _is_taken(self, entry: SourceEntry) -> bool:
        id_ = entry.utterance_id
        return id_ is not None and any(_holds(id_N, id_) for id_N in (self._utterance_id_N, self._removed_id_N))

    def _refuse_taken(self, file: SourceFile) -> None:
        for entry in file.entries:
            if entry.sample is None and self._is_taken(entry):
                raise DataError(
                    f"the id `{entry.utterance_id}` is already used",
                    code="id-twice",
                    why=f"{entry.where} gives it to `{redact_uri(entry.uri)}`, `{self._work.root}` to another file",
                    fix="give each utterance its own id, or index into another work folder; if the audio was moved, "
                    "leave a link at its old place and index that",
                )

    def _changed(self, first: SourceEntry, num_files: int) -> DataError:
        more = f" and {num_files - 1} more files have" if num_files > 1 else " has"
        return DataError(
            f"`{redact_uri(first.uri)}`{more} changed since `{self._work.root}` was made",
            code="source-changed",
            why="the labels there are of the earlier content of the files",
            fix="index into another work folder, or restore the old files with their modification times",
        )

    def _edited(self, first: SourceEntry, num_files: int) -> DataError:
        more = f" and {num_files - 1} more files" if num_files > 1 else ""
        at = f" ({first.where})" if first.where else ""
        return DataError(
            f"the source has other metadata for `{redact_uri(first.uri)}`{at}{more} than when it was indexed",
            code="source-changed",
            why=f"what was made in `{self._work.root}` depends on the earlier words, speakers and splits",
            fix="index into another work folder (copy `labels` there, and nothing is labelled twice), or undo the edit",
        )

    def _read(self, key: str) -> tuple[pa.Table, pa.Table]:
        name = key.rpartition("/")[2]
        recordings = _columns(self._work, f"{self._recordings}/{name}", _RECORDING_COLUMNS)
        return recordings, _columns(self._work, key, ("id", "start_ms", "end_ms", "split", "supervised"))

    def _note_archives(self, recordings: pa.Table) -> None:
        """Take in the tars of which a part of the recordings holds members."""
        names = ("uri", "error", "etag", "origin")
        columns = (recordings[name].to_pylist() if name in recordings.column_names else [] for name in names)
        for uri, error, etag, origin in itertools.zip_longest(*columns):
            if error is None and "#" in uri:
                self._archives.add(uri, etag, origin)

    def _state(self, error: str | None) -> int:
        return _SOUND if error is None else self._states.setdefault(Failure.parse(error).kind, len(self._states))


def _is_same(metadata_N: NDArray[np.uint64], file: SourceFile) -> NDArray[np.bool_]:
    """Which hashes are of what is known of a file: tables have 0 for none, and none of times that were added since."""
    hashes = (int(file.metadata_hash, 16), int(file.untimed_hash, 16), 0)
    return np.isin(metadata_N, np.array(hashes, np.uint64))


def _columns(work: Store, key: str, names: Sequence[str]) -> pa.Table:
    """Columns of one part of a table, those that it has; DataError if it is torn."""
    import pyarrow as pa

    file = parquet.decode(work.read(key), work.uri(key))
    try:
        return file.read(columns=[name for name in names if name in file.schema_arrow.names], use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise parquet.refused(error, work.uri(key)) from None


def _kind(reason: str) -> str:
    return Failure.parse(reason).kind


def _joined(before_N: NDArray[Any], more: array[int]) -> NDArray[Any]:
    return np.concatenate([before_N, np.frombuffer(more, before_N.dtype)])


def _holds(sorted_N: NDArray[np.uint64], text: str) -> bool:
    value = np.uint64(hash64(text))
    at = int(sorted_N.searchsorted(value))
    return at < len(sorted_N) and bool(sorted_N[at] == value)


def _num_repeated(sorted_N: NDArray[np.uint64]) -> int:
    return int(np.count_nonzero(sorted_N[1:] == sorted_N[:-1]))
