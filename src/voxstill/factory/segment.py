"""Files in, recordings and utterances out: a row for every file, whatever is in it, and what is wrong with it."""

from __future__ import annotations

import io
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from voxstill import tables
from voxstill.audio import codec, vad
from voxstill.audio.decoder import Decoder
from voxstill.config import Segment, Source
from voxstill.errors import DataError, StorageError, VoxstillError
from voxstill.factory import extract, scan
from voxstill.factory.manifests import Found, hash64
from voxstill.records import Recording, Utterance, fingerprint
from voxstill.store import Blob, Store, fetch, is_local, read_many, shown

UNREADABLE = "cannot be read"
"""How the error of a recording begins that storage did not give: it is tried again by the next index."""
Standing = Literal["new", "done", "again", "changed", "edited"]
_SLACK_MS = 250  # a manifest may round up this much past the end of the audio
_PARTS_AT_ONCE = 256
_FILES_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow(Recording):
    """A recording as the index writes it: with a fingerprint of what the source said of it then."""

    said: str | None = None

    @property
    def is_unreadable(self) -> bool:
        """Whether storage is at fault, and not the file."""
        return self.error is not None and self.error.partition(":")[0] == UNREADABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """One file: its recording and, where that has no error, its utterances."""

    recording: IndexRow
    utterances: tuple[Utterance, ...] = ()


@dataclass(frozen=True, slots=True)
class Index:
    """Makes the work of the index for the engine: files in, one `Indexed` for each out, in order.

    Without `reading` nothing is cached, and files are decoded in the worker itself.
    """

    cfg: Segment
    source: Source
    seed: int
    reading: extract.Reading | None = None

    def __call__(self) -> Indexing:
        """The work itself; it needs nothing but the options."""
        return Indexing(self, self.reading.decoder() if self.reading is not None else None)


@dataclass(frozen=True, slots=True)
class Indexing:
    """Files of a chunk become rows; what is far away is read ahead."""

    make: Index
    decoder: Decoder | None

    def __call__(self, files: Sequence[scan.File], _: Any) -> list[Indexed]:
        """One row for each file, in order."""
        cache = self.make.reading.cache if self.make.reading is not None else None
        decode = self.decoder.decode if self.decoder is not None else codec.decode
        options = self.make.cfg, self.make.source, self.make.seed
        with closing(read_many((file.found[0].uri for file in files if _is_far(file)), cache=cache)) as far:
            return [index(file, *options, next(far) if _is_far(file) else None, decode) for file in files]

    def close(self) -> None:
        """End the decoder."""
        if self.decoder is not None:
            self.decoder.close()


def index(
    file: scan.File,
    cfg: Segment,
    source: Source,
    seed: int,
    blob: Blob | StorageError | None = None,
    decode: Callable[..., codec.Audio] = codec.decode,
) -> Indexed:
    """Read (unless `blob` was), decode and divide one file; whatever is wrong with it is its recording's `error`."""
    first = file.found[0]
    if first.error is not None:
        return set_aside(file, first.error)
    try:
        blob = fetch(first.uri) if blob is None else blob
        if isinstance(blob, StorageError):
            raise blob
        if first.etag and blob.etag and first.etag != blob.etag:
            return set_aside(file, f"{UNREADABLE}: it changed while it was indexed")
        return _divide(file, _decode(file, blob, decode), blob, cfg, source, seed)
    except StorageError as error:
        return set_aside(file, f"{UNREADABLE}: {error.why}")
    except DataError as error:
        return set_aside(file, f"{error.what}: {error.why}")
    except VoxstillError:
        raise  # not the file's fault
    except Exception as error:
        return set_aside(file, f"cannot be decoded: {type(error).__name__}: {error}")


def set_aside(file: scan.File, reason: str) -> Indexed:
    """The row of a file that cannot be used; the words before the colon say why in a way that can be counted."""
    first = file.found[0]
    return Indexed(
        recording=IndexRow(
            id=file.id, uri=first.uri, etag=first.etag, num_bytes=first.num_bytes, error=reason, said=file.said
        )
    )


def _is_far(file: scan.File) -> bool:
    return file.found[0].error is None and not is_local(file.found[0].uri)


def _divide(
    file: scan.File,
    by_channel: Mapping[int | None, codec.Audio],
    blob: Blob,
    cfg: Segment,
    source: Source,
    seed: int,
) -> Indexed:
    """Utterances of a sound file. Words that were written for more than one piece belong to none of them."""
    audio = next(iter(by_channel.values()))
    duration_ms = codec.samples_to_ms(len(audio.samples_T))
    if duration_ms < cfg.min_ms:
        raise DataError("too short", why=f"it lasts {duration_ms} ms and `segment.min_ms` is {cfg.min_ms}")
    utterances: dict[str, Utterance] = {}
    for found in file.found:
        start, end = _stretch(found, duration_ms)
        if found.channel not in by_channel:
            continue
        split = scan.split_of(found, source, seed)
        for piece in _pieces(found, by_channel[found.channel], (start, end), cfg):
            whole = piece == (start, end)
            id_ = found.id if whole and found.id else fingerprint(file.id, found.channel, *piece)
            utterances[id_] = Utterance(
                id=id_,
                recording_id=file.id,
                uri=found.uri,
                channel=found.channel,
                start_ms=piece[0],
                end_ms=piece[1],
                split=split,
                language=found.language or source.language,
                speaker=found.speaker,
                dialect=found.dialect,
                dataset=found.dataset or source.dataset,
                text=found.text if whole else None,
            )
    if not utterances:
        raise DataError("no speech", why="the voice-activity detector heard none")
    first = file.found[0]
    recording = IndexRow(
        id=file.id,
        uri=first.uri,
        etag=first.etag or blob.etag,
        num_bytes=first.num_bytes or len(blob.data),
        codec=audio.codec,
        rate_hz=audio.rate_hz,
        num_channels=audio.num_channels,
        duration_ms=duration_ms,
        said=file.said,
    )
    return Indexed(recording=recording, utterances=tuple(utterances.values()))


def _decode(file: scan.File, blob: Blob, decode: Callable[..., codec.Audio]) -> dict[int | None, codec.Audio]:
    """The channels that are spoken of; one in which nobody made a sound is absent, unless all are."""
    found: dict[int | None, codec.Audio] = {}
    silent = None
    for channel in dict.fromkeys(each.channel for each in file.found):
        try:
            found[channel] = decode(blob.data, channel=channel)
        except DataError as error:
            if error.what != "silent":
                raise
            silent = error
    if silent is not None and not found:
        raise silent
    return found


def _stretch(found: Found, duration_ms: int) -> vad.Span:
    """What the manifest means of the file; where that lies past its end, the manifest speaks of other audio."""
    start, end = found.start_ms or 0, duration_ms if found.end_ms is None else found.end_ms
    if start >= duration_ms or end > duration_ms + _SLACK_MS:
        why = f"the manifest knows {start} to {end} ms, the audio ends at {duration_ms} ms"
        raise DataError("beyond the end", why=why)
    return start, min(end, duration_ms)


def _pieces(found: Found, audio: codec.Audio, stretch: vad.Span, cfg: Segment) -> list[vad.Span]:
    start, end = stretch
    by_hand = found.text is not None or found.start_ms is not None or found.end_ms is not None
    if by_hand and end - start <= cfg.max_ms:
        return [stretch]
    samples_T = audio.samples_T[codec.ms_to_samples(start) : codec.ms_to_samples(end)]
    return [(start + left, start + right) for left, right in vad.utterances(samples_T, cfg)]


# ---------------------------------------------------------------------------------------------- what is there already


class Done:
    """What the tables of an index hold, in columns: 50 bytes for a recording with its utterance, no objects.

    A recording may have several rows, since one that could not be used is tried again; a sound one has the last word.
    """

    def __init__(self, work: Store, recordings: str, utterances: str) -> None:
        self._work, self._recordings, self._utterances = work, recordings, utterances
        self._parts: set[str] = set()
        self._reasons: dict[str, int] = {"": 0, UNREADABLE: 1}
        """Each reason with its number, which is the state of a row: 0 is sound."""
        none_N = np.empty(0, np.uint64)
        self._id_N, self._said_N, self._uri_N, self._state_N = none_N, none_N, none_N, np.empty(0, np.uint16)
        self._sound_uri_N = self._utterance_id_N = none_N
        self._milliseconds = 0
        self._splits: Counter[str] = Counter()
        self.read()

    def read(self) -> None:
        """Take in the parts that were added since the last time; a part of utterances is the commit of both."""
        keys = (entry.key for entry in self._work.list(self._utterances) if entry.key.endswith(".parquet"))
        new = sorted(set(keys) - self._parts)
        self._parts.update(new)
        ids, said, uris, states, utterance_ids = array("Q"), array("Q"), array("Q"), array("H"), array("Q")
        with ThreadPoolExecutor(tables.READERS) as pool:
            for first in range(0, len(new), _PARTS_AT_ONCE):
                for recordings, utterances in pool.map(self._read, new[first : first + _PARTS_AT_ONCE]):
                    ids.frombytes(_hex64(recordings["id"]))
                    known = "said" in recordings.column_names
                    said.frombytes(_hex64(recordings["said"]) if known else bytes(8 * len(recordings)))
                    uris.extend(map(hash64, recordings["uri"].to_pylist()))
                    states.extend(map(self._state, recordings["error"].to_pylist()))
                    utterance_ids.extend(map(hash64, utterances["id"].to_pylist()))
                    self._splits.update(utterances["split"].to_pylist())
                    spans_ms = utterances["end_ms"].to_numpy() - utterances["start_ms"].to_numpy()
                    self._milliseconds += int(spans_ms.sum())
        id_N, state_N = _joined(self._id_N, ids), _joined(self._state_N, states)
        order_N = np.lexsort((state_N, id_N))
        self._id_N, self._state_N = id_N[order_N], state_N[order_N]
        del id_N, state_N, ids, states
        self._said_N = _joined(self._said_N, said)[order_N]
        self._uri_N = _joined(self._uri_N, uris)[order_N]
        del order_N, said, uris
        self._sound_uri_N = np.sort(self._uri_N[self._state_N == 0])
        self._utterance_id_N = _joined(self._utterance_id_N, utterance_ids)
        self._utterance_id_N.sort()

    def __contains__(self, recording_id: str) -> bool:
        return bool(self._rows(recording_id))

    def missing(self, files: Iterable[scan.File]) -> bytearray:
        """For each file, 1 where it is to be indexed: it is new, or there is reason to try it again.

        DataError where a file, or what the source says of it, is not what it was, or where an id is taken.
        """
        mask = bytearray()
        refused: dict[Standing, scan.File] = {}
        counts: Counter[Standing] = Counter()
        source = iter(files)
        while some := list(itertools.islice(source, _FILES_AT_ONCE)):
            for file, is_settled in zip(some, self._are_settled(some), strict=True):
                standing = "done" if is_settled else self.standing(file)
                mask.append(standing in ("new", "again"))
                if standing == "new":
                    self._refuse_taken(file)
                if standing in ("changed", "edited"):
                    counts[standing] += 1
                    refused.setdefault(standing, file)
        if "changed" in refused:
            raise self._changed(refused["changed"].found[0], counts["changed"])
        if "edited" in refused:
            raise self._edited(refused["edited"].found[0], counts["edited"])
        return mask

    def standing(self, file: scan.File) -> Standing:
        """What to do about a file.

        One that storage did not give is tried again, and so is a damaged one of which the source now says something
        else: nothing was made of either.
        """
        rows = self._rows(file.id)
        if not rows:
            return "changed" if _holds(self._sound_uri_N, file.found[0].uri) else "new"
        said_N, state_N = self._said_N[rows.start : rows.stop], self._state_N[rows.start : rows.stop]
        as_before_N = (said_N == int(file.said, 16)) | (said_N == 0)
        if state_N[0] == 0:
            return "done" if as_before_N[0] else "edited"
        return "done" if (as_before_N & (state_N > 1)).any() else "again"

    def figures(self) -> dict[str, Any]:
        """How many there are of everything, and why recordings cannot be used; of an address the best row counts."""
        order_N = np.lexsort((self._state_N, self._uri_N))
        uri_N, state_N = self._uri_N[order_N], self._state_N[order_N]
        is_first_N = np.ones(len(uri_N), np.bool_)
        np.not_equal(uri_N[1:], uri_N[:-1], out=is_first_N[1:])
        names = list(self._reasons)
        counts = np.bincount(state_N[is_first_N], minlength=len(names)).tolist()
        reasons = {name: count for name, count in zip(names[1:], counts[1:], strict=True) if count}
        return {
            "recordings": sum(counts),
            "damaged": sum(reasons.values()),
            "utterances": len(self._utterance_id_N),
            "hours": self._milliseconds / 3_600_000,
            "splits": dict(sorted(self._splits.items())),
            "reasons": dict(sorted(reasons.items(), key=lambda item: -item[1])),
        }

    def _are_settled(self, files: Sequence[scan.File]) -> list[bool]:
        """Which of the files are sound here and said to be what they were: nearly all, so all are looked up at once."""
        if not len(self._id_N):
            return [False] * len(files)
        id_N = np.array([int(file.id, 16) for file in files], np.uint64)
        said_N = np.array([int(file.said, 16) for file in files], np.uint64)
        at_N = np.minimum(self._id_N.searchsorted(id_N), len(self._id_N) - 1)
        is_sound_N = (self._id_N[at_N] == id_N) & (self._state_N[at_N] == 0)
        are: list[bool] = (is_sound_N & (self._said_N[at_N] == said_N)).tolist()
        return are

    def _rows(self, recording_id: str) -> range:
        value = np.uint64(int(recording_id, 16))
        start = end = int(self._id_N.searchsorted(value))
        while end < len(self._id_N) and self._id_N[end] == value:
            end += 1
        return range(start, end)

    def _refuse_taken(self, file: scan.File) -> None:
        for each in file.found:
            if each.id is not None and _holds(self._utterance_id_N, each.id):
                raise DataError(
                    f"the id `{each.id}` is taken",
                    why=f"{each.where} gives it to `{shown(each.uri)}`, `{self._work.root}` to another file",
                    fix="give each utterance its own id, or index into another work folder",
                )

    def _changed(self, first: Found, num_files: int) -> DataError:
        more = f" and {num_files - 1} more files have" if num_files > 1 else " has"
        return DataError(
            f"`{shown(first.uri)}`{more} changed since `{self._work.root}` was made",
            why="the labels there are of what the files held then",
            fix="index into another work folder, or put the old files back with their times",
        )

    def _edited(self, first: Found, num_files: int) -> DataError:
        more = f" and {num_files - 1} more files" if num_files > 1 else ""
        at = f" ({first.where})" if first.where else ""
        return DataError(
            f"the source says other things of `{shown(first.uri)}`{at}{more} than when it was indexed",
            why=f"what was made in `{self._work.root}` rests on the words, speakers and splits of then",
            fix="index into another work folder (copy `labels` there, and nothing is labelled twice), or undo the edit",
        )

    def _read(self, key: str) -> tuple[Any, Any]:
        name = key.rpartition("/")[2]
        recordings = _columns(self._work, f"{self._recordings}/{name}", ("id", "uri", "error", "said"))
        return recordings, _columns(self._work, key, ("id", "start_ms", "end_ms", "split"))

    def _state(self, error: str | None) -> int:
        return 0 if error is None else self._reasons.setdefault(error.partition(":")[0], len(self._reasons))


def _columns(work: Store, key: str, names: Sequence[str]) -> Any:
    """Columns of one part of a table, those that it has; DataError where it is torn."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(work.read(key)))
        return file.read(columns=[name for name in names if name in file.schema_arrow.names])
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"`{work.uri(key)}` is not a table", why=str(error).splitlines()[0], fix="remove the file and run again"
        ) from None


def _hex64(column: Any) -> bytes:
    """A column of 16 hexadecimal digits as 64-bit numbers, 0 where there are none."""
    digits = "".join(each or 16 * "0" for each in column.to_pylist())
    return np.frombuffer(bytes.fromhex(digits), ">u8").astype(np.uint64).tobytes()


def _joined(before_N: NDArray[Any], more: array[int]) -> NDArray[Any]:
    return np.concatenate([before_N, np.frombuffer(more, before_N.dtype)])


def _holds(sorted_N: NDArray[np.uint64], text: str) -> bool:
    value = np.uint64(hash64(text))
    at = int(sorted_N.searchsorted(value))
    return at < len(sorted_N) and bool(sorted_N[at] == value)
