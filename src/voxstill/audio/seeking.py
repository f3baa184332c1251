"""Decode one stretch of a long file: seek to it, so that the hours before it are not decoded.

libsndfile seeks to the sample in WAV and FLAC; elsewhere FFmpeg seeks to a frame before, and the times of the frames
say where they are. Decoding begins a little earlier, as codecs and the resampler need some samples to settle.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

import numpy as np
import soundfile
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.audio.byte_source import ByteSource, as_file
from voxstill.audio.faults import no_audio
from voxstill.audio.mono import MonoResampler
from voxstill.audio.sandbox import FFMPEG_OPTIONS
from voxstill.core import pcm
from voxstill.core.errors import DataError

MAX_MS = 600_000
"""Longest stretch."""
_LEAD_MS = 200
_PACKED = struct.Struct("<ii")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recording, in milliseconds from its start."""

    start_ms: int
    end_ms: int

    def pack(self) -> bytes:
        """Eight bytes."""
        return _PACKED.pack(self.start_ms, self.end_ms)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """What `pack` packed."""
        return cls(*_PACKED.unpack(data))


def decode_stretch(
    data: ByteSource, stretch: Stretch, channel: int | None = None, gain_db: float = 0.0
) -> NDArray[np.int16]:
    """The samples of a stretch at 16 kHz, fewer where the file ends before; DataError if there are none."""
    mono = MonoResampler(channel, MAX_MS / 1000 + 60, gain_db or "none")
    lead_ms = min(stretch.start_ms, _LEAD_MS)
    head = data[:12]
    is_plain = head[:4] == b"fLaC" or (head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:] == b"WAVE")
    reader = _read_with_libsndfile if is_plain else _read_with_ffmpeg
    try:
        reader(data, mono, stretch.start_ms - lead_ms, stretch.end_ms)
    except DataError:
        raise
    except Exception as error:  # of libsndfile and of FFmpeg, which have many
        raise DataError(
            "cannot be decoded", code="audio-damaged", why=f"{type(error).__name__}: {error}", fix="repair the file"
        ) from None
    samples_T = mono.finish() if mono.num_samples else np.zeros(0, np.int16)
    start, end = (pcm.ms_to_samples(ms) for ms in (lead_ms, lead_ms + stretch.end_ms - stretch.start_ms))
    if len(samples_T) <= start:
        raise DataError(
            "no audio",
            code="source-changed",
            why=f"it ends before {stretch.start_ms} ms",
            fix="run `voxstill index` again",
        )
    return samples_T[start:end]


def write_stretch(stretch: Stretch, channel: int | None, gain_db: float, data: ByteSource, sink: codec.Sink) -> None:
    """Decode a stretch into a sink."""
    sink.write(decode_stretch(data, stretch, channel, gain_db))


class Collected:
    """A sink that keeps what is written."""

    def __init__(self) -> None:
        self.clear()

    def samples(self) -> NDArray[np.int16]:
        """All of them, in one array."""
        return np.concatenate([np.zeros(0, np.int16), *self._parts])

    def write(self, samples_T: NDArray[np.int16], /) -> None:
        """Keep the next samples."""
        self._parts.append(samples_T)

    def clear(self) -> None:
        """Forget all samples."""
        self._parts: list[NDArray[np.int16]] = []


def _read_with_libsndfile(data: ByteSource, mono: MonoResampler, start_ms: int, end_ms: int) -> None:
    with soundfile.SoundFile(as_file(data)) as file:
        start, end = (ms * file.samplerate // 1000 for ms in (start_ms, end_ms))
        if start < file.frames:
            file.seek(start)
            mono.add(file.read(end - start, dtype="float32", always_2d=True), file.samplerate)


def _read_with_ffmpeg(data: ByteSource, mono: MonoResampler, start_ms: int, end_ms: int) -> None:
    import av

    with av.open(as_file(data), metadata_errors="replace", container_options=FFMPEG_OPTIONS) as container:
        stream = container.streams.best("audio")
        if stream is None:
            raise no_audio("it has no audio stream")
        stream.codec_context.thread_count = 1
        first_s = float((stream.start_time or 0) * (stream.time_base or 0))
        container.seek(int((first_s + start_ms / 1000) * 1_000_000), backward=True)
        for frame in container.decode(stream):
            at_ms = 1000 * ((frame.time or 0.0) - first_s)
            if at_ms >= end_ms:
                break
            block_TC = codec.frame_samples(frame, as_integers=False)
            cut = max(0, round((start_ms - at_ms) * frame.sample_rate / 1000))
            if cut < len(block_TC):
                mono.add(block_TC[cut:], frame.sample_rate)
