"""Whatever audio comes in, 16 kHz mono int16 goes out whole, or a reason says why not. Samples become ms only here.

libsndfile reads WAV and FLAC, FFmpeg everything else, and each is the other's second opinion; what is plain and sound
is read without either. No header is believed: audio is read to its end, counted, and only then held against the length
that the header promised.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import soundfile
import soxr
from miniaudio import ffi, lib
from numpy.typing import NDArray

from voxstill.errors import DataError
from voxstill.records import RATE_HZ

MAX_S = 6 * 3600.0
"""Longest recording: six hours are 0.7 GB of samples. More is most likely a file made to fill memory."""
_RATES_HZ = range(1_000, 768_001)  # telephones in the snow to the fastest studio converters
_MAX_CHANNELS = 64
_BLOCK = 1 << 16  # samples read at a time
_MAX_BAD_PACKETS = 2  # tags and half frames at either end of an MP3 look like this many
_PLAIN = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16)
_STREAMINFO = {bytes([last, 0, 0, 34]) for last in (0x00, 0x80)}  # RFC 9639, section 8.1
_PLAIN_FLAC = RATE_HZ << 8 | 0 << 5 | 15  # rate, channels - 1, bits - 1 (section 8.2)
_STRAY_BYTES = 256  # behind the data of a WAV: padding of careless writers, 8 ms if it were sound
_INDEXED = ("mov", "matroska", "asf", "aiff", "caf", "au", "w64", "nistsphere")  # FFmpeg reads, not guesses, a length


class SilentError(DataError):
    """Every sample of the channel is zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """Decoded audio, and what it was before: `codec`, `rate_hz` and `num_channels` are as found in the file."""

    samples_T: NDArray[np.int16]
    codec: str
    rate_hz: int
    num_channels: int


def decode(data: bytes, *, channel: int | None = None, max_s: float = MAX_S) -> Audio:
    """The whole of the audio at 16 kHz, one channel or the mean of all; 16 kHz mono int16 comes out bit by bit.

    DataError with a short reason as `what`: not audio, no audio, truncated, damaged, silent, not finite, too long,
    impossible rate, impossible channels, changing rate, no such channel.
    """
    for fast in (as_it_is, _plain_flac):
        if (audio := fast(data, channel=channel, max_s=max_s)) is not None:
            return audio
    readers: list[_Reader] = [_libsndfile, _ffmpeg]
    if not (data[:4] == b"fLaC" or (data[:4] in (b"RIFF", b"RIFX", b"RF64") and data[8:12] == b"WAVE")):
        readers.reverse()
    faults = []
    for reader in readers:
        mono = _Mono(channel, max_s)
        end = reader(data, mono)
        samples_T = mono.finish()
        fault = end.fault or _shortfall(data, mono, end)
        if fault is not None:
            faults.append((mono.num_samples, fault))
            continue
        if not len(samples_T):
            raise DataError("no audio", why="there is not one sample in it at 16 kHz", fix="remove the file")
        if not samples_T.any():
            raise SilentError("silent", why="every sample is zero at 16 bits", fix="remove the file")
        return Audio(samples_T=samples_T, codec=end.codec, rate_hz=mono.rate_hz, num_channels=mono.num_channels)
    raise max(faults, key=lambda each: each[0])[1]  # that of the decoder which got furthest, the first where even


def as_it_is(data: bytes, *, channel: int | None = None, max_s: float = MAX_S) -> Audio | None:
    """The audio of a whole 16 kHz mono 16-bit WAV, which needs no decoder; None for all else, silence included.

    Libsndfile gives the same bits in ten times the time.
    """
    if data[:4] != b"RIFF" or data[12:36] != _PLAIN or data[36:40] != b"data" or channel not in (None, 0):
        return None
    chunk = _wav_data(data)
    if chunk is None or chunk.num_there < chunk.num_promised or chunk.num_there % 2 or chunk.num_unexplained:
        return None
    samples_T = np.frombuffer(data, "<i2", chunk.num_there // 2, offset=44).astype(np.int16)
    if len(samples_T) > max_s * RATE_HZ or not samples_T.any():
        return None
    return Audio(samples_T=samples_T, codec="pcm_16", rate_hz=RATE_HZ, num_channels=1)


def decode_stored(data: bytes) -> Audio:
    """`decode` for what voxstill wrote, which nobody has cut up or glued together: frames answer for themselves."""
    return as_it_is(data) or _plain_flac(data, is_ours=True) or decode(data)


def _plain_flac(
    data: bytes, *, channel: int | None = None, max_s: float = MAX_S, is_ours: bool = False
) -> Audio | None:
    """The audio of a sound 16 kHz mono 16-bit FLAC; None for all else, silence included.

    Libsndfile gives the same bits in two to three times the time. More is asked for than the header promises, twice,
    since reading pauses at what is no frame. A frame with a wrong checksum is left out; that another stands in for it
    is seen by the checksum of the whole, which takes a quarter of the time and is left to others where it `is_ours`.
    """
    if data[:4] != b"fLaC" or data[4:8] not in _STREAMINFO or len(data) < 42 or channel not in (None, 0):
        return None
    about, num_samples = divmod(int.from_bytes(data[18:26], "big"), 1 << 36)
    if about != _PLAIN_FLAC or not 0 < num_samples <= max_s * RATE_HZ:
        return None
    opened = lib.ma_dr_flac_open_memory(data, len(data), ffi.NULL)
    if not opened:
        return None
    try:
        samples_T = np.empty(num_samples + 1, np.int16)  # `miniaudio.flac_read_s16` copies them twice
        into = ffi.cast("ma_int16 *", ffi.from_buffer(samples_T))
        found = lib.ma_dr_flac_read_pcm_frames_s16(opened, len(samples_T), into)
        found += lib.ma_dr_flac_read_pcm_frames_s16(opened, 1, into + num_samples)
    except MemoryError:
        return None
    finally:
        lib.ma_dr_flac_close(opened)
    samples_T = samples_T[:num_samples]
    if found != num_samples or not samples_T.any():
        return None
    if not is_ours and hashlib.md5(samples_T.data, usedforsecurity=False).digest() != data[26:42]:
        return None
    return Audio(samples_T=samples_T, codec="flac", rate_hz=RATE_HZ, num_channels=1)


def encode(samples_T: NDArray[np.int16], form: Literal["flac", "wav"]) -> bytes:
    """The samples in a lossless 16 kHz mono file; equal samples give equal bytes."""
    sink = io.BytesIO()
    soundfile.write(sink, samples_T, RATE_HZ, format=form.upper(), subtype="PCM_16")
    return sink.getvalue()


def quantize(samples_T: NDArray[np.float32]) -> NDArray[np.int16]:
    """Samples of -1 to 1 to the nearest int16; louder ones are clipped."""
    scaled_T: NDArray[np.float32] = np.rint(samples_T * np.float32(32768))
    return np.clip(scaled_T, -32768, 32767, out=scaled_T).astype(np.int16)


def ms_to_samples(ms: int) -> int:
    """Samples in so many milliseconds."""
    return ms * RATE_HZ // 1000


def samples_to_ms(num_samples: int) -> int:
    """Whole milliseconds in so many samples: never past the end of the audio."""
    return num_samples * 1000 // RATE_HZ


class _End(NamedTuple):
    """How a decoder came to its end. `promised_s` is what it read in a header, None where it knows none."""

    codec: str
    fault: DataError | None
    promised_s: float | None


class _Mono:
    """Blocks of any rate and width in, 16 kHz int16 out: never more in memory than the answer and a block."""

    def __init__(self, channel: int | None, max_s: float) -> None:
        self.rate_hz = 0
        self.num_channels = 0
        self.num_samples = 0
        self._channel, self._max_s = channel, max_s
        self._resampler: soxr.ResampleStream | None = None
        self._parts: list[NDArray[np.int16]] = []

    def expect(self, rate_hz: int, num_channels: int) -> None:
        """Refuse a rate or a number of channels that no recording has."""
        if rate_hz not in _RATES_HZ:
            raise DataError("impossible rate", why=f"{rate_hz} Hz", fix="write the file anew with its true rate")
        if not 1 <= num_channels <= _MAX_CHANNELS:
            raise DataError("impossible channels", why=f"{num_channels} of them", fix="write the file anew")

    def add(self, block_TC: NDArray[np.float32], rate_hz: int) -> None:
        """Take the next samples. The number of channels may change on the way, the rate may not."""
        num_samples, num_channels = block_TC.shape
        self.expect(rate_hz, num_channels)
        if not self.rate_hz:
            self.rate_hz = rate_hz
            if rate_hz != RATE_HZ:
                self._resampler = soxr.ResampleStream(rate_hz, RATE_HZ, 1, dtype="float32")
        if rate_hz != self.rate_hz:
            raise DataError("changing rate", why=f"{self.rate_hz} Hz, then {rate_hz} Hz", fix="split the file")
        if self._channel is not None and self._channel >= num_channels:
            raise DataError(
                "no such channel", why=f"channel {self._channel} of {num_channels}", fix="name another channel"
            )
        self.num_samples += num_samples
        self.num_channels = max(self.num_channels, num_channels)
        if self.num_samples > self._max_s * rate_hz:
            raise DataError("too long", why=f"longer than {self._max_s:.0f} s", fix="split the file")
        if self._channel is None and num_channels > 1:
            samples_T = block_TC.mean(axis=1)
        else:
            samples_T = np.ascontiguousarray(block_TC[:, self._channel or 0])
        if not np.isfinite(samples_T).all():
            raise DataError("not finite", why="a sample is infinite or not a number", fix="write the file anew")
        self._keep(samples_T, last=False)

    def finish(self) -> NDArray[np.int16]:
        """All samples."""
        self._keep(np.empty(0, np.float32), last=True)
        return np.concatenate(self._parts) if len(self._parts) != 1 else self._parts[0]

    def _keep(self, samples_T: NDArray[np.float32], *, last: bool) -> None:
        if self._resampler is not None:
            samples_T = self._resampler.resample_chunk(samples_T, last=last)
        if len(samples_T) or not self._parts:
            self._parts.append(quantize(samples_T))


_Reader = Callable[[bytes, _Mono], _End]


class _Forward(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types
    """Read from start to end. Otherwise soundfile seeks after each block, which fails in a FLAC of unknown length."""

    def seekable(self) -> bool:
        """No."""
        return False


def _libsndfile(data: bytes, mono: _Mono) -> _End:
    """WAV and FLAC, 16-bit and small ones above all, at a rate that nothing else reaches."""
    codec = ""
    try:
        with _Forward(io.BytesIO(_without_length(data))) as file:
            codec = "flac" if file.format == "FLAC" else file.subtype.lower()
            mono.expect(file.samplerate, file.channels)
            while len(block_TC := file.read(_BLOCK, dtype="float32", always_2d=True)):
                mono.add(block_TC, file.samplerate)
                if len(block_TC) < _BLOCK:
                    break
        return _End(codec, None, None)
    except (soundfile.SoundFileError, RuntimeError, ValueError, MemoryError) as error:
        return _End(codec, _unreadable(codec, mono, error), None)


def _ffmpeg(data: bytes, mono: _Mono) -> _End:
    """Everything with a name, from the first audio stream that FFmpeg thinks best."""
    import av

    codec, promised_s = "", None
    try:
        with av.open(io.BytesIO(data), metadata_errors="replace") as container:
            stream = container.streams.best("audio")
            if stream is None:
                return _End("", DataError("no audio", why="no stream of it is sound", fix="remove the file"), None)
            stream.codec_context.thread_count = 1
            codec = stream.codec_context.name
            promised_s = _ffmpeg_promise(data, container, stream)
            fault = None
            bad_after: list[int] = []  # samples decoded before each packet that could not be
            for packet in container.demux(stream):
                try:
                    frames = packet.decode()
                except (av.error.FFmpegError, ValueError) as error:
                    bad_after.append(mono.num_samples)
                    fault = fault or _unreadable(codec, mono, error)
                    if len(bad_after) > _MAX_BAD_PACKETS:
                        break
                    continue
                for frame in frames:
                    mono.add(_frame_samples(frame), frame.sample_rate)
        # Junk before the first sound and after the last is a tag; between two sounds, or in numbers, it is damage.
        if len(bad_after) <= _MAX_BAD_PACKETS and mono.num_samples and set(bad_after) <= {0, mono.num_samples}:
            fault = None
        return _End(codec, fault, promised_s)
    except DataError:
        raise
    except Exception as error:  # FFmpeg's own, and PyAV's many ways to say that it knows no such codec
        return _End(codec, _unreadable(codec, mono, error), promised_s)


def _frame_samples(frame: Any) -> NDArray[np.float32]:
    """A frame's samples between -1 and 1, [T, C]."""
    samples: NDArray[Any] = frame.to_ndarray()
    samples_TC = samples.T if frame.format.is_planar else samples.reshape(-1, frame.layout.nb_channels)
    if samples_TC.dtype.kind == "f":
        return samples_TC.astype(np.float32, copy=False)
    half = float(2 ** (8 * samples_TC.dtype.itemsize - 1))
    middle = half if samples_TC.dtype.kind == "u" else 0.0
    return ((samples_TC.astype(np.float64) - middle) / half).astype(np.float32)


def _unreadable(codec: str, mono: _Mono, error: Exception) -> DataError:
    said = (str(error).splitlines() or [""])[0].partition(">: ")[2] or getattr(error, "strerror", "") or str(error)
    if not codec:
        return DataError("not audio", why=said, fix="remove the file, or convert it")
    found_s = mono.num_samples / mono.rate_hz if mono.rate_hz else 0.0
    return DataError("damaged", why=f"after {found_s:.2f} s: {said}", fix="find a sound copy of the file")


def _shortfall(data: bytes, mono: _Mono, end: _End) -> DataError | None:
    """The fault of a file that holds less than it promised, or, told by what follows, more."""
    found_s = mono.num_samples / mono.rate_hz if mono.rate_hz else 0.0
    promised_s, slack_s = end.promised_s, 0.0
    if (chunk := _wav_data(data)) is not None:
        if chunk.num_unexplained > max(_STRAY_BYTES, chunk.num_there // 100):
            why = f"its header knows {found_s:.2f} s, and {chunk.num_unexplained} unexplained bytes follow"
            return DataError("damaged", why=why, fix="mend the header")
        if chunk.num_there >= chunk.num_promised:
            return None
        if not chunk.num_there:
            why = f"0.00 s found, {chunk.num_promised} bytes promised"
            return DataError("truncated", why=why, fix="find a whole copy of the file")
        promised_s = found_s * chunk.num_promised / chunk.num_there
    elif (total := _flac_total(data)) is not None:
        rate_hz = mono.rate_hz or int.from_bytes(data[18:21], "big") >> 4
        promised_s = total / max(1, rate_hz)
    elif promised_s is not None:
        slack_s = max(0.1, 0.01 * promised_s)
    if promised_s is None or found_s >= promised_s - slack_s:
        return None
    return DataError(
        "truncated", why=f"{found_s:.2f} s found, {promised_s:.2f} s promised", fix="find a whole copy of the file"
    )


def _ffmpeg_promise(data: bytes, container: Any, stream: Any) -> float | None:
    """The stream's length in seconds where the container states it; FFmpeg otherwise guesses from the bit rate."""
    start = 10 + int("".join(f"{byte:07b}" for byte in data[6:10]), 2) if data[:3] == b"ID3" else 0
    head = data[start : start + 200]
    stated = container.format.name.startswith(_INDEXED) or (b"Xing" in head or b"Info" in head)
    if stated and stream.duration is not None:
        return float(stream.duration * stream.time_base)
    if stated and container.duration is not None and len(container.streams) == 1:
        return float(container.duration / 1e6)
    return None


def _flac_total(data: bytes) -> int | None:
    """Samples that STREAMINFO promises, None where it does not know (RFC 9639, section 8.2)."""
    if data[:4] != b"fLaC" or len(data) < 42 or data[4] & 0x7F:
        return None
    return int.from_bytes(data[21:26], "big") & (1 << 36) - 1 or None


def _without_length(data: bytes) -> bytes:
    """The file, a FLAC's promised length struck out: libsndfile stops there, whatever follows."""
    if _flac_total(data) is None:
        return data
    return data[:21] + bytes([data[21] & 0xF0, 0, 0, 0, 0]) + data[26:]


class _WavData(NamedTuple):
    num_promised: int
    num_there: int
    num_unexplained: int  # bytes behind the data that are no chunk


def _wav_data(data: bytes) -> _WavData | None:
    """Bytes of a WAV's data chunk; None for other files and for WAVs written to a pipe, which promise nothing."""
    if data[:4] not in (b"RIFF", b"RIFX", b"RF64") or data[8:12] != b"WAVE":
        return None
    order: Literal["little", "big"] = "big" if data[:4] == b"RIFX" else "little"
    long_size = 0
    for at, name, size in _chunks(data, 12, order):
        if name == b"ds64":
            long_size = int.from_bytes(data[at + 8 : at + 16], "little")
        if name == b"data":
            if size == 0xFFFFFFFF and long_size:
                size = long_size  # noqa: PLW2901  # RF64 keeps it elsewhere (EBU Tech 3306)
            if size >= 0x7FFFF000:
                return None
            end = at + size + size % 2
            for follows, _, more in _chunks(data, end, order):
                end = follows + more + more % 2
            return _WavData(size, min(size, len(data) - at), max(0, len(data) - end))
    return None


def _chunks(data: bytes, at: int, order: Literal["little", "big"]) -> Iterator[tuple[int, bytes, int]]:
    """Where each chunk's content starts, its name and its size, up to what cannot be a chunk."""
    while at + 8 <= len(data) and (name := data[at : at + 4]).isascii() and name.decode().isprintable():
        size = int.from_bytes(data[at + 4 : at + 8], order)
        yield at + 8, name, size
        at += 8 + size + size % 2
