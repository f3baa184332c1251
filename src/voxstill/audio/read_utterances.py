"""Read and decode the audio of utterances: all samples of each, or the error that says why not.

`Decode` does so as a stage of the engine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.audio.contents import ContentHashes
from voxstill.audio.decoder import Decoder
from voxstill.core import pcm
from voxstill.core.config import Config
from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.core.records import Utterance, content_hash, recording_id
from voxstill.engine import StageWork
from voxstill.storage.cache import Cache
from voxstill.storage.fetch import Blob, RefusedError, fetch, read_many
from voxstill.storage.uri import is_local, local_path

RETRY_PAUSES_S = (0.5, 2.0)
"""Before what storage refused is read again; time-outs and broken connections are retried below, for longer."""
_RECORDING_ID = re.compile(r"[0-9a-f]{16}")


class ChangedError(DataError):
    """A recording is another than was indexed: what is known of its utterances is not of this audio."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a worker reads audio: its cache, and the limits in which a recording is decoded; pickled with the work.

    By its `contents` a file that was only touched since it was indexed is distinguished from one that has changed.
    """

    cache: Cache | None
    decode_s: float
    decode_mb: int
    contents: ContentHashes | None = None

    def decoder(self) -> Decoder:
        """Start a decoder process; the caller closes it."""
        return Decoder(self.decode_s, self.decode_mb)


def reading(cfg: Config) -> Reading:
    """The `Reading` of a configuration; ConfigError where its cache cannot be written."""
    cache = None if cfg.cache.folder is None else Cache.open(cfg.cache.folder, cfg.cache.max_gb)
    work = str(local_path(cfg.work).expanduser().absolute()) if is_local(cfg.work) else cfg.work
    return Reading(cache, cfg.engine.decode_s, cfg.engine.decode_mb, ContentHashes(work))


def samples(
    utterances: Sequence[Utterance],
    cache: Cache | None = None,
    decode: Callable[..., codec.Audio] = codec.decode,
    contents: ContentHashes | None = None,
) -> Iterator[tuple[Utterance, NDArray[np.int16] | VoxstillError]]:
    """Yield each utterance once, with all of its 16 kHz samples or with the error that names what is wrong.

    A recording is read and decoded once for all of its utterances, which therefore follow one another. One decoded
    recording is held at a time; those far away are read ahead. `decode` is that of this process, or of a `Decoder`.
    """
    by_source: dict[tuple[str, int | None, float | None], list[Utterance]] = {}
    for utterance in utterances:
        by_source.setdefault((utterance.uri, utterance.channel, utterance.gain_db), []).append(utterance)
    with closing(read_many((uri for uri, *_ in by_source if not is_local(uri)), cache=cache)) as remote_blobs:
        for (uri, channel, gain_db), members in by_source.items():
            try:
                blob = fetch(uri) if is_local(uri) else _or_raise(next(remote_blobs))
            except (StorageError, RefusedError) as error:
                yield from ((utterance, error) for utterance in members)
                continue
            unchanged = []
            errors = {id_: changed(blob, id_, contents) for id_ in {member.recording_id for member in members}}
            for utterance in members:
                if (stale := errors[utterance.recording_id]) is not None:
                    yield utterance, stale
                else:
                    unchanged.append(utterance)
            if not unchanged:
                continue
            try:
                recording_T = decode(blob.data, channel=channel, gain="none" if gain_db is None else gain_db).samples_T
            except DataError as error:  # any other is not the recording's fault
                other = _other_content(blob, unchanged[0].recording_id, contents)
                yield from ((utterance, other or error) for utterance in unchanged)
                continue
            del blob  # one encoded recording less while the caller works; the allocator keeps its pages, too
            yield from ((utterance, stretch(recording_T, utterance)) for utterance in unchanged)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The audio of a chunk: one array, where each utterance begins in it, and why some have none."""

    samples_T: NDArray[np.int16]
    bounds: NDArray[np.int64]
    errors: tuple[VoxstillError | None, ...]
    """A StorageError may pass, a DataError is of the audio."""

    def samples_of(self, i: int) -> NDArray[np.int16]:
        """The samples of the i-th utterance; none where it has an error."""
        return self.samples_T[self.bounds[i] : self.bounds[i + 1]]


@dataclass
class Decode(StageWork):
    """The first stage of labelling and of alignment: fetch and decode a chunk, each recording once."""

    reading: Reading
    _decoder: Decoder = field(init=False, repr=False, compare=False)

    def open(self) -> None:
        """Start the decoder."""
        self._decoder = self.reading.decoder()

    def __call__(self, utterances: Sequence[Utterance], payload: object) -> Decoded:
        """Decode every utterance; one that cannot be read has an error in the place of samples."""
        samples_by_id: dict[str, NDArray[np.int16]] = {}
        errors: dict[str, VoxstillError] = {}
        todo = utterances
        for pause_s in (*RETRY_PAUSES_S, None):
            for utterance, audio in samples(todo, self.reading.cache, self._decoder.decode, self.reading.contents):
                if isinstance(audio, VoxstillError):
                    errors[utterance.id] = audio
                else:
                    samples_by_id[utterance.id] = audio.copy()  # a slice would hold the whole recording
            todo = [utterance for utterance in todo if isinstance(errors.get(utterance.id), StorageError)]
            if not todo or pause_s is None:
                break
            time.sleep(pause_s)
            for utterance in todo:
                del errors[utterance.id]
        ordered = [samples_by_id.get(utterance.id, np.zeros(0, np.int16)) for utterance in utterances]
        bounds = np.cumsum([0, *(len(samples_T) for samples_T in ordered)], dtype=np.int64)
        return Decoded(
            np.concatenate(ordered) if ordered else np.zeros(0, np.int16),
            bounds,
            tuple(errors.get(utterance.id) for utterance in utterances),
        )

    def close(self) -> None:
        """End the decoder."""
        self._decoder.close()


def changed(blob: Blob, indexed_as: str, contents: ContentHashes | None = None) -> ChangedError | None:
    """The error of a recording that has changed since it was indexed under this id; None if it has not.

    A file on this machine of another etag has not where `contents` know that its content is the same.
    Also None if that cannot be known: the source gave neither version nor size, now or then, or the id is not one
    that the index made.
    """
    if blob.etag is None or not _RECORDING_ID.fullmatch(indexed_as):
        return None
    versions = [(blob.etag, 0), (None, blob.num_bytes), (None, len(blob.data)), (None, 0)]
    if indexed_as in (recording_id(blob.uri, etag, num_bytes) for etag, num_bytes in versions):
        return None
    if contents is not None and is_local(blob.uri) and contents.is_same(indexed_as, content_hash(blob.data)):
        return None
    return _changed_error(f"its version is now {blob.etag} and it has {blob.num_bytes} bytes")


def _other_content(blob: Blob, indexed_as: str, contents: ContentHashes | None) -> ChangedError | None:
    """The error of a recording of the same time and size whose bytes are others, as on a disk that decays."""
    if contents is None or not _RECORDING_ID.fullmatch(indexed_as):
        return None
    if not contents.is_other(indexed_as, content_hash(blob.data)):
        return None
    return _changed_error("it cannot be decoded any more, and its bytes are others")


def _changed_error(why: str) -> ChangedError:
    return ChangedError(
        "changed since it was indexed", code="source-changed", why=why, fix="run `voxstill index` again"
    )


def stretch(recording_T: NDArray[np.int16], utterance: Utterance) -> NDArray[np.int16] | DataError:
    """Cut the samples of an utterance out of its recording; DataError if the recording no longer has them all."""
    start, end, one_ms = (pcm.ms_to_samples(ms) for ms in (utterance.start_ms, utterance.end_ms, 1))
    if len(recording_T) < end - one_ms:
        return DataError(
            "shorter than when it was indexed",
            code="source-changed",
            why=f"{pcm.samples_to_ms(len(recording_T))} ms are there and it ends at {utterance.end_ms} ms",
            fix="run `voxstill index` again",
        )
    # the part of a millisecond at the end of a recording belongs to its last utterance: else it would be lost
    return recording_T[start:] if len(recording_T) - end < one_ms else recording_T[start:end]


def _or_raise(blob: Blob | StorageError | RefusedError) -> Blob:
    if not isinstance(blob, Blob):
        raise blob
    return blob
