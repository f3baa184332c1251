"""Uploads to samples: decoded in guarded processes, within limits, and cut into utterances by the VAD."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any

from numpy.typing import NDArray

from voxstill.audio import vad
from voxstill.audio.decoder import Decoder
from voxstill.audio.sample_file import SampleFile
from voxstill.core import pcm
from voxstill.core.config import Config, Segment
from voxstill.core.errors import DataError, StorageError
from voxstill.core.records import RATE_HZ, Normalization
from voxstill.decoding.loaded import Samples
from voxstill.serving.errors import RequestError, in_one_line

MOST_WAITING = 256
"""Uploads that may wait for a decoder."""
REQUEST_MS = 60_000
"""Audio of one request that waits or is transcribed at once: a long recording leaves room for others."""
_PCM_S_PER_BYTE = 1 / (2 * RATE_HZ)
"""Audio in a byte of a container of which nothing was decoded yet: 16-bit samples."""
_MEAN_SHARE = 0.05
"""Weight of the last upload in the mean of its container."""


@dataclass(frozen=True, slots=True)
class DecodedUpload:
    """The samples of a recording, read by slices, and its utterances in ms from its start."""

    samples_T: vad.Samples
    spans_ms: Sequence[vad.Span]
    warning: str | None

    @property
    def duration_ms(self) -> int:
        """How long it is."""
        return pcm.samples_to_ms(len(self.samples_T))

    def utterance(self, span_ms: vad.Span) -> Samples:
        """The samples of one utterance."""
        start_ms, end_ms = span_ms
        return self.samples_T[pcm.ms_to_samples(start_ms) : pcm.ms_to_samples(end_ms)]


class TooLongError(DataError):
    """A recording has more audio than the server takes."""


class UploadDecoder:
    """Decodes uploads in `serve.decoders` processes side by side."""

    def __init__(self, cfg: Config) -> None:
        self._cfg = cfg
        self._threads = ThreadPoolExecutor(cfg.serve.decoders, thread_name_prefix="decode")
        self._decoders: queue.SimpleQueue[Decoder] = queue.SimpleQueue()
        for _ in range(cfg.serve.decoders):
            self._decoders.put(Decoder(cfg.engine.decode_s, cfg.engine.decode_mb))
        self._waiting_s: list[float] = []
        self._s_per_byte: dict[bytes, float] = {}

    @property
    def waiting_s(self) -> float:
        """Seconds of audio that wait to be decoded, by their bytes and containers; of one at most `REQUEST_MS`."""
        return sum(self._waiting_s)

    @asynccontextmanager
    async def decode(self, file: IO[bytes], segment: Segment) -> AsyncIterator[DecodedUpload]:
        """The samples of a file, as long as the block lasts.

        RequestError where it is no audio, too long, or too many wait to be decoded.
        """
        if len(self._waiting_s) >= MOST_WAITING:
            raise RequestError(429, f"{len(self._waiting_s)} uploads wait to be decoded", retry_s=1)
        num_bytes = file.seek(0, 2)
        file.seek(0)
        magic = file.read(2)  # tells containers apart, and there are few of them
        guessed_s = min(num_bytes * self._s_per_byte.get(magic, _PCM_S_PER_BYTE), REQUEST_MS / 1000)
        with _LimitedSampleFile(self._cfg.audio.normalize, self._cfg.serve.max_audio_s) as sink:
            self._waiting_s.append(guessed_s)
            try:
                decoding = asyncio.wrap_future(self._threads.submit(self._decode, file, sink, segment))
                upload = await asyncio.shield(decoding)
            except TooLongError as error:
                raise RequestError(413, in_one_line(error), param="file", code=error.code) from None
            except DataError as error:
                message = f"the audio cannot be read: {in_one_line(error)}"
                raise RequestError(400, message, param="file", code="invalid_audio") from None
            except StorageError as error:
                raise RequestError(503, in_one_line(error), code=error.code, retry_s=10) from None
            except asyncio.CancelledError:
                await asyncio.wait([decoding])  # a decoder still reads and writes the files
                raise
            finally:
                self._waiting_s.remove(guessed_s)
            s_per_byte = upload.duration_ms / 1000 / num_bytes
            mean = self._s_per_byte.get(magic, s_per_byte)
            self._s_per_byte[magic] = mean + _MEAN_SHARE * (s_per_byte - mean)
            yield upload

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(cancel_futures=True)
        while not self._decoders.empty():
            self._decoders.get().close()

    def _decode(self, file: IO[bytes], sink: SampleFile, segment: Segment) -> DecodedUpload:
        decoder = self._decoders.get()
        try:
            fault = decoder.decode_blocks(_FileBytes(file), sink, as_float=sink.is_float)
        finally:
            self._decoders.put(decoder)
        sink.normalize()
        spans_ms = [] if sink.is_silent else vad.segment(sink, segment)
        return DecodedUpload(sink, spans_ms, None if fault is None else in_one_line(fault))


class _FileBytes:
    """The bytes of an open file, read where they are sliced."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._num_bytes = file.seek(0, 2)

    def __len__(self) -> int:
        return self._num_bytes

    def __getitem__(self, part: slice, /) -> bytes:
        start, end, _ = part.indices(self._num_bytes)
        self._file.seek(start)
        return self._file.read(max(0, end - start))


class _LimitedSampleFile(SampleFile):
    """A file of samples that takes no more than the server's limit."""

    def __init__(self, normalization: Normalization, limit_s: float) -> None:
        super().__init__(normalization)
        self._limit_s = limit_s

    def write(self, samples_T: NDArray[Any], /) -> None:
        """Add samples; TooLongError above the limit."""
        if len(self) + len(samples_T) > self._limit_s * RATE_HZ:
            raise TooLongError(
                "the recording is too long",
                code="audio-too-long",
                why=f"it has more than {self._limit_s:g} s of audio",
                fix="split it, or start the server with a larger `serve.max_audio_s`",
            )
        super().write(samples_T)
