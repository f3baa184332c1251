"""Decode and encode audio: any file to 16 kHz mono int16 samples, samples to FLAC or WAV.

libsndfile reads WAV and FLAC, FFmpeg everything else, and each is tried where the other fails; intact FLAC with an MD5
and 16 kHz mono WAV are read without either. Lengths in headers are not trusted: audio is decoded to its end, its
samples are counted, and the count is compared with what the header states, as is the MD5 of a FLAC.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import soundfile
from _miniaudio import ffi, lib  # what `miniaudio` wraps, which also loads an HTTP client
from numpy.typing import NDArray

from voxstill.audio import flac, wav
from voxstill.audio.byte_source import ByteSource, as_file
from voxstill.audio.faults import INCOMPLETE, damaged, decode_fault, length_fault, no_audio, page_fault
from voxstill.audio.level import Gain, Level, level_of, normalized
from voxstill.audio.mono import MonoResampler
from voxstill.audio.sandbox import FFMPEG_OPTIONS
from voxstill.core import pcm
from voxstill.core.errors import DataError
from voxstill.core.records import RATE_HZ

if TYPE_CHECKING:
    from av import AudioFrame, AudioStream
    from av.container import InputContainer

MAX_S = 6 * 3600.0
"""Longest recording: six hours are 0.7 GB of samples. A longer one is most likely a decompression bomb."""
_BLOCK = 1 << 16  # samples read at a time
_MAX_BAD_PACKETS = 2  # tags and half frames at either end of an MP3 look like this many
_WAV_16K_MONO = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16) + b"data"
_WAV_HEADER = 44  # bytes
_STREAMINFO = {bytes([last, 0, 0, 34]) for last in (0x00, 0x80)}  # RFC 9639, section 8.1
_FLAC_FORMAT_16K_MONO = RATE_HZ << 8 | 0 << 5 | 15  # rate, channels - 1, bits - 1 (section 8.2)
_STATES_DURATION = (
    "mov",
    "matroska",
    "asf",
    "aiff",
    "caf",
    "au",
    "w64",
    "nistsphere",
)  # formats whose duration FFmpeg reads rather than estimates


class SilentError(DataError):
    """Every sample of the channel is zero; `num_samples` at 16 kHz where the file was decoded in this process."""

    num_samples = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """Decoded 16 kHz mono audio; `codec`, `rate_hz` and `num_channels` are those of the file.

    `file_level` is None if the samples are those of the file, bit for bit.
    """

    samples_T: NDArray[np.int16]
    codec: str
    rate_hz: int
    num_channels: int
    file_level: Level | None = None
    gain_db: float | None = None
    """The gain that was applied before the samples were rounded."""
    louder_channel: int | None = None
    """The channel taken in place of the mix, in which the channels cancel."""

    @property
    def measured_level(self) -> Level:
        """What is measured of the samples of the file."""
        return self.file_level or level_of(self.samples_T)


class Sink(Protocol):
    """Where the samples of a recording go as they are decoded."""

    def write(self, samples_T: NDArray[Any], /) -> None:
        """Take the next samples, int16 or float32."""
        ...

    def clear(self) -> None:
        """Forget all samples: the recording is decoded again, by another decoder or of another channel."""
        ...


def decode(data: bytes, *, channel: int | None = None, gain: Gain = "none", max_s: float = MAX_S) -> Audio:
    """Decode a whole file to 16 kHz: one channel or the mean of all; 16 kHz mono int16 comes out bit-exact.

    Where the channels cancel one another in their mean, the loudest takes its place. `gain` is applied to the float
    samples, before they are rounded: so none are clipped and those of quiet audio keep their resolution.
    DataError with a short reason as `what`: not audio, no audio, truncated, damaged, silent, not finite, too long,
    impossible rate, impossible channels, changing rate, no such channel.
    """
    for fast in (read_plain_wav, _plain_flac):
        if (audio := fast(data, channel=channel, max_s=max_s)) is not None:
            return amplified(audio, gain)
    faults, header, stated_s = [], flac.stream_info(data), None
    readers = _readers(data)
    if header is not None and header.num_samples is not None and header.md5 is not None:
        readers = _decode_with_dr_flac, *readers
    for reader in readers:
        mono = MonoResampler(channel, max_s, gain, header)
        end = reader(data, mono)
        stated_s = end.stated_s or stated_s  # libsndfile decodes what is left of an MP3 and knows no length
        end = end._replace(stated_s=stated_s)
        samples_T = mono.finish()
        fault = _fault(data, mono, end)
        if fault is not None:
            if reader is not _decode_with_dr_flac:  # which does not say what is wrong
                faults.append((mono.num_samples, fault))
            continue
        if not len(samples_T):
            raise no_audio("it has no samples at 16 kHz")
        if (louder := mono.louder_channel) is not None:
            return replace(decode(data, channel=louder, gain=gain, max_s=max_s), louder_channel=louder)
        if not samples_T.any():
            silent = SilentError(
                "silent", code="audio-empty", why="every sample is zero at 16 bits", fix="remove the file"
            )
            silent.num_samples = len(samples_T)
            raise silent
        return Audio(
            samples_T=samples_T,
            codec=end.codec,
            rate_hz=mono.rate_hz,
            num_channels=mono.num_channels,
            file_level=mono.meter.level,
            gain_db=mono.gain_db,
        )
    raise max(faults, key=lambda fault: fault[0])[1]  # of the decoder that decoded most, the first of equals


def decode_blocks(data: ByteSource, sink: Sink, *, as_float: bool = False, max_s: float = MAX_S) -> DataError | None:
    """Decode a file of any length in constant memory: the samples that `decode` returns go to `sink`, block by block.

    They have no gain, and are float32 where `as_float`. What a truncated or damaged file holds is written all the same;
    its fault is returned. Silence is not an error. DataError if there is nothing to write.
    """
    header, stated_s, channel = flac.stream_info(data), None, None
    faults = list[tuple[int, DataError]]()

    def attempt(reader: _Reader) -> tuple[MonoResampler, DataError | None]:
        nonlocal stated_s
        sink.clear()
        mono = MonoResampler(channel, max_s, "peak" if as_float else "none", header, sink.write)
        end = reader(data, mono)
        stated_s = end.stated_s or stated_s
        mono.finish()
        return mono, _fault(data, mono, end._replace(stated_s=stated_s))

    readers = _readers(data)
    for reader in readers:
        mono, fault = attempt(reader)
        if fault is None:
            break
        faults.append((mono.num_samples, fault))
    else:
        best = max(range(len(readers)), key=lambda i: faults[i][0])
        reader, fault = readers[best], faults[best][1]
        if not faults[best][0] or fault.what not in INCOMPLETE:
            raise fault
        if reader is not readers[-1]:
            mono, _ = attempt(reader)
    if not mono.num_written:
        raise no_audio("it has no samples at 16 kHz")
    if (channel := mono.louder_channel) is not None:
        attempt(reader)
    return fault


def read_plain_wav(data: bytes, *, channel: int | None = None, max_s: float = MAX_S, copy: bool = True) -> Audio | None:
    """Read an intact 16 kHz mono 16-bit WAV, which needs no decoder; None for anything else and for silence.

    Without `copy` the samples are those in `data`, and cannot be written to. libsndfile gives the same samples in ten
    times the time.
    """
    if data[:4] != b"RIFF" or data[8 : _WAV_HEADER - 4] != _WAV_16K_MONO or channel not in (None, 0):
        return None
    num_bytes = int.from_bytes(data[_WAV_HEADER - 4 : _WAV_HEADER], "little")
    if num_bytes != len(data) - _WAV_HEADER:  # other chunks follow, or it is not intact
        chunk = wav.data_chunk(data)
        if chunk is None or chunk.num_present < num_bytes or chunk.num_unexplained:
            return None
    if num_bytes % 2 or num_bytes > 2 * max_s * RATE_HZ:
        return None
    samples_T = np.frombuffer(data, "<i2", num_bytes // 2, _WAV_HEADER).astype(np.int16, copy=copy)
    is_silent = not any(data[_WAV_HEADER : _WAV_HEADER + 64]) and not samples_T.any()  # most begin with some noise
    if is_silent:
        return None
    return Audio(samples_T=samples_T, codec="pcm_16", rate_hz=RATE_HZ, num_channels=1)


def amplified(audio: Audio, gain: Gain) -> Audio:
    """The audio of an intact 16 kHz mono int16 file after a gain; without one it stays as it is."""
    if gain == "none":
        return audio
    samples_T, gain_db = normalized(pcm.to_float(audio.samples_T), gain)
    return replace(audio, samples_T=samples_T, file_level=audio.measured_level, gain_db=gain_db)


def decode_stored(data: bytes, out: NDArray[np.int16] | None = None) -> Audio:
    """Decode a file that voxstill wrote: as `decode`, but without verifying the MD5 of a whole FLAC.

    The samples may lie in `out`, where it has the length of a FLAC, as fresh memory costs a fifth of the time.
    """
    return read_plain_wav(data) or _plain_flac(data, skip_md5=True, out=out) or decode(data)


def _plain_flac(
    data: bytes,
    *,
    channel: int | None = None,
    max_s: float = MAX_S,
    skip_md5: bool = False,
    out: NDArray[np.int16] | None = None,
) -> Audio | None:
    """Decode an intact 16 kHz mono 16-bit FLAC; None for anything else and for silence.

    libsndfile gives the same samples in two to three times the time. After those that the header states one more is
    requested, twice, since reading stops at bytes that are not a frame. A frame with a wrong checksum is dropped;
    a frame of another file in its place is detected by the MD5 of the whole, which takes a quarter of the time
    (`skip_md5`).
    """
    if data[:4] != b"fLaC" or data[4:8] not in _STREAMINFO or len(data) < 42 or channel not in (None, 0):
        return None
    stream_format, num_samples = divmod(int.from_bytes(data[18:26], "big"), 1 << 36)
    if stream_format != _FLAC_FORMAT_16K_MONO or not 0 < num_samples <= max_s * RATE_HZ:
        return None
    decoder = lib.ma_dr_flac_open_memory(data, len(data), ffi.NULL)
    if not decoder:
        return None
    try:
        # `miniaudio.flac_read_s16` copies them twice
        samples_T = out if out is not None and len(out) == num_samples else np.empty(num_samples, np.int16)
        read, one_more = lib.ma_dr_flac_read_pcm_frames_s16, ffi.new("ma_int16 *")
        num_decoded = read(decoder, num_samples, ffi.cast("ma_int16 *", ffi.from_buffer(samples_T)))
        num_decoded += read(decoder, 1, one_more) or read(decoder, 1, one_more)
    except MemoryError:
        return None
    finally:
        lib.ma_dr_flac_close(decoder)
    if num_decoded != num_samples or not (samples_T[:32].any() or samples_T.any()):
        return None
    if not skip_md5 and hashlib.md5(samples_T.data, usedforsecurity=False).digest() != data[26:42]:
        return None
    return Audio(samples_T=samples_T, codec="flac", rate_hz=RATE_HZ, num_channels=1)


def encode(samples_T: NDArray[np.int16], form: Literal["flac", "wav"]) -> bytes:
    """Encode samples as a lossless 16 kHz mono file; equal samples give equal bytes."""
    sink = io.BytesIO()
    soundfile.write(sink, samples_T, RATE_HZ, format=form.upper(), subtype="PCM_16")
    return sink.getvalue()


class _DecodeResult(NamedTuple):
    """How decoding ended: `fault` is None if it reached the end; `stated_s` is the header's duration where known."""

    codec: str
    fault: DataError | None
    stated_s: float | None


_Reader = Callable[[ByteSource, MonoResampler], _DecodeResult]


def _readers(data: ByteSource) -> tuple[_Reader, ...]:
    """The decoders in the order in which they are tried."""
    head = data[:12]
    if head[:4] == b"fLaC" or (head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:] == b"WAVE"):
        return _decode_with_libsndfile, _decode_with_ffmpeg
    return _decode_with_ffmpeg, _decode_with_libsndfile


def _fault(data: ByteSource, mono: MonoResampler, end: _DecodeResult) -> DataError | None:
    """What is wrong with a file that was decoded to its end, or as far as that goes; None if nothing is."""
    fault = page_fault(data, mono) or end.fault or length_fault(data, mono, end.stated_s)
    return fault or mono.checksum_fault() or flac.rate_fault(data)


_UNREADABLE = _DecodeResult("flac", damaged("dr_flac cannot read it"), None)
_DR_FLAC_READ = {"int16": lib.ma_dr_flac_read_pcm_frames_s16, "int32": lib.ma_dr_flac_read_pcm_frames_s32}


class _ForwardReader(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types
    """A sound file that is never seeked: soundfile seeks after each block, which fails in a FLAC of unknown length."""

    def seekable(self) -> bool:
        """No."""
        return False


def _decode_with_dr_flac(data: ByteSource, mono: MonoResampler) -> _DecodeResult:
    """Decode with dr_flac a FLAC with a length and an MD5, in half the time of libsndfile.

    What it cannot decode it leaves out silently: length and MD5 reveal it, and another reader gives the reason.
    """
    decoder = lib.ma_dr_flac_open_memory(data, len(data), ffi.NULL)
    if not decoder:
        return _UNREADABLE
    try:
        block_TC = np.empty((_BLOCK, decoder.channels), mono.block_type)
        buffer, read = ffi.from_buffer(block_TC), _DR_FLAC_READ[mono.block_type]
        pointer = ffi.cast(f"ma_{mono.block_type} *", buffer)
        # reading stops once at bytes that are not a frame
        while num_decoded := read(decoder, _BLOCK, pointer) or read(decoder, _BLOCK, pointer):
            mono.add(block_TC[:num_decoded], decoder.sampleRate)
        return _DecodeResult("flac", None, None)
    except (DataError, MemoryError):
        return _UNREADABLE
    finally:
        lib.ma_dr_flac_close(decoder)


def _decode_with_libsndfile(data: ByteSource, mono: MonoResampler) -> _DecodeResult:
    """Decode with libsndfile, the fastest for WAV and FLAC."""
    codec = ""
    try:
        with _ForwardReader(as_file(data, flac.head_without_length(data))) as file:
            codec = "flac" if file.format == "FLAC" else file.subtype.lower()
            mono.expect(file.samplerate, file.channels)
            while len(block_TC := file.read(_BLOCK, dtype=mono.block_type, always_2d=True)):
                mono.add(block_TC, file.samplerate)
                if len(block_TC) < _BLOCK:
                    break
        return _DecodeResult(codec, None, None)
    except (soundfile.SoundFileError, RuntimeError, ValueError, MemoryError) as error:
        return _DecodeResult(codec, decode_fault(codec, mono, error), None)


def _decode_with_ffmpeg(data: ByteSource, mono: MonoResampler) -> _DecodeResult:
    """Decode with FFmpeg the audio stream that it considers best."""
    import av

    codec, stated_s = "", None
    try:
        with av.open(as_file(data), metadata_errors="replace", container_options=FFMPEG_OPTIONS) as container:
            stream = container.streams.best("audio")
            if stream is None:
                return _DecodeResult("", no_audio("it has no audio stream"), None)
            stream.codec_context.thread_count = 1
            codec = stream.codec_context.name
            stated_s = _ffmpeg_duration_s(data, container, stream)
            fault = None
            bad_after: list[int] = []  # samples decoded before each bad packet
            for packet in container.demux(stream):
                try:
                    frames = packet.decode()
                except (av.error.FFmpegError, ValueError) as error:
                    bad_after.append(mono.num_samples)
                    fault = fault or decode_fault(codec, mono, error)
                    if len(bad_after) > _MAX_BAD_PACKETS:
                        break
                    continue
                for frame in frames:
                    mono.add(frame_samples(frame, mono.block_type != "float32"), frame.sample_rate)
        # Bad packets before the first samples or after the last are tags; between samples, or many, they are damage.
        if len(bad_after) <= _MAX_BAD_PACKETS and mono.num_samples and set(bad_after) <= {0, mono.num_samples}:
            fault = None
        return _DecodeResult(codec, fault, stated_s)
    except DataError:
        raise
    except Exception as error:  # FFmpeg's errors, and PyAV's many for an unknown codec
        return _DecodeResult(codec, decode_fault(codec, mono, error), stated_s)


def frame_samples(frame: AudioFrame, as_integers: bool) -> NDArray[np.float32] | NDArray[np.int32]:
    """Samples of an FFmpeg frame, shape [T, C]: between -1 and 1, or where they are whole numbers scaled to int32."""
    samples: NDArray[Any] = frame.to_ndarray()
    samples_TC = samples.T if frame.format.is_planar else samples.reshape(-1, frame.layout.nb_channels)
    if samples_TC.dtype.kind == "f":
        return samples_TC.astype(np.float32, copy=False)
    if as_integers and samples_TC.dtype.kind == "i":
        return samples_TC.astype(np.int32) << (32 - 8 * samples_TC.dtype.itemsize)
    half = float(2 ** (8 * samples_TC.dtype.itemsize - 1))
    middle = half if samples_TC.dtype.kind == "u" else 0.0
    return ((samples_TC.astype(np.float64) - middle) / half).astype(np.float32)


def _ffmpeg_duration_s(data: ByteSource, container: InputContainer, stream: AudioStream) -> float | None:
    """Duration in seconds where the container states it; elsewhere FFmpeg would estimate it from the bit rate."""
    start = 10 + int("".join(f"{byte:07b}" for byte in data[6:10]), 2) if data[:3] == b"ID3" else 0
    head = data[start : start + 200]
    stated = container.format.name.startswith(_STATES_DURATION) or (b"Xing" in head or b"Info" in head)
    if stated and stream.duration is not None:
        return float(stream.duration * stream.time_base)
    if stated and container.duration is not None and len(container.streams) == 1:
        return float(container.duration / 1e6)
    return None
