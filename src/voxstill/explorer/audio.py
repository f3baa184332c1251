"""The audio of one utterance as a WAV: from its shard by the place in the tar, else from its source by seeking."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.audio.read_utterances import Reading, changed, samples
from voxstill.audio.seeking import MAX_MS, Stretch
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.records import Utterance, recording_id
from voxstill.explorer.columns import Row
from voxstill.storage import shard_format
from voxstill.storage.fetch import fetch, local_etag, open_uri
from voxstill.storage.retry import storage_error
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path, split_range

SEEK_MS = 60_000
"""A source that ends later than this is not decoded from its start."""


@dataclass(frozen=True, slots=True)
class Sound:
    """Samples at 16 kHz, and where they were read."""

    samples_T: NDArray[np.int16]
    is_of_shard: bool

    def wav(self) -> bytes:
        """The samples as a WAV."""
        return codec.encode(self.samples_T, "wav")


class Sounds:
    """Reads audio in one decoder process, for one listener at a time."""

    def __init__(self, work: Store, reading: Reading) -> None:
        self._work, self._reading = work, reading
        self._decoder = reading.decoder()
        self._lock = threading.Lock()
        self._unchanged: set[tuple[str, str]] = set()
        threading.Thread(target=self._start, name="start of the decoder", daemon=True).start()

    def read(self, row: Row) -> Sound:
        """The audio of a row of the joined file; VoxstillError where there is none."""
        with self._lock:
            if row.get("tar") is not None:
                try:
                    return Sound(self._of_shard(row), is_of_shard=True)
                except VoxstillError:  # shards may be moved or cleaned; the source is the same audio
                    return Sound(self._of_source(row), is_of_shard=False)
            return Sound(self._of_source(row), is_of_shard=False)

    def close(self) -> None:
        """End the decoder."""
        with self._lock:
            self._decoder.close()

    def _start(self) -> None:
        """Start the decoder's process before somebody waits for it: that takes half a second."""
        with self._lock, contextlib.suppress(VoxstillError):
            self._decoder.decode(b"no audio")

    def _of_shard(self, row: Row) -> NDArray[np.int16]:
        address = shard_format.tar_address(self._work, row["tar"])
        blob = fetch(f"{address}#{row['tar_offset']}+{row['tar_bytes']}", self._reading.cache)
        return self._decoder.decode(blob.data).samples_T

    def _check_unchanged(self, utterance: Utterance) -> None:
        """DataError where the file is another than was indexed; it is read only where its time is another."""
        try:
            stat = os.stat(local_path(utterance.uri))
        except OSError as error:
            raise storage_error("read", utterance.uri, error) from None
        version = (utterance.recording_id, local_etag(stat))
        if version in self._unchanged or recording_id(utterance.uri, version[1], 0) == utterance.recording_id:
            return
        fault = changed(fetch(utterance.uri), utterance.recording_id, self._reading.contents)
        if fault is not None:
            raise fault
        self._unchanged.add(version)

    def _of_source(self, row: Row) -> NDArray[np.int16]:
        utterance = Utterance(
            id=row["id"],
            recording_id=row["recording_id"],
            uri=row["uri"],
            channel=row["channel"],
            start_ms=row["start_ms"],
            end_ms=row["end_ms"],
            gain_db=row["gain_db"],
        )
        if utterance.duration_ms > MAX_MS:
            raise DataError(
                "the utterance is too long to listen to",
                code="audio-too-long",
                why=f"it has {utterance.duration_ms / 1000:.0f} s",
                fix="",
            )
        address, byte_range = split_range(utterance.uri)
        if utterance.end_ms > SEEK_MS and is_local(address) and byte_range is None:
            self._check_unchanged(utterance)
            with open_uri(utterance.uri) as data:
                return self._decoder.decode_stretch(
                    data,
                    Stretch(utterance.start_ms, utterance.end_ms),
                    channel=utterance.channel,
                    gain_db=utterance.gain_db or 0.0,
                )
        [(_, sound)] = samples([utterance], self._reading.cache, self._decoder.decode, self._reading.contents)
        if isinstance(sound, VoxstillError):
            raise sound
        return sound
