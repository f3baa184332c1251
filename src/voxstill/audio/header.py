"""Read what the header of a WAV or a FLAC says of its audio, from the first bytes of the file alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from voxstill.audio import flac, wav

HEAD_BYTES = 512
"""The first bytes of a file, in which the headers of nearly all WAV and FLAC files end."""
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE  # format tags of WAV
_SUBTYPES = {
    (_PCM, 1): "pcm_u8",
    (_PCM, 2): "pcm_16",
    (_PCM, 3): "pcm_24",
    (_PCM, 4): "pcm_32",
    (_FLOAT, 4): "float",
    (_FLOAT, 8): "double",
}
_RATES_HZ = range(1_000, 768_001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Codec, rate, channels and length of the audio of a file, as its header states them."""

    codec: str
    rate_hz: int
    num_channels: int
    num_samples: int

    @property
    def duration_ms(self) -> int:
        """Length in whole milliseconds."""
        return self.num_samples * 1000 // self.rate_hz


def read_header(head: bytes, num_bytes: int) -> Header | None:
    """What the first bytes of a file of `num_bytes` state; None if they state no length, or one that cannot be.

    WAV is read up to its data chunk (RIFF, little endian), which must lie within the file; of FLAC the STREAMINFO
    (RFC 9639, section 8.2).
    """
    header = _read_flac(head) if head[:4] == b"fLaC" else _read_wav(head, num_bytes)
    return header if header is not None and header.num_samples > 0 and header.rate_hz in _RATES_HZ else None


def _read_flac(head: bytes) -> Header | None:
    info = flac.stream_info(head)
    if info is None or info.num_samples is None:
        return None
    return Header(codec="flac", rate_hz=info.rate_hz, num_channels=info.num_channels, num_samples=info.num_samples)


def _read_wav(head: bytes, num_bytes: int) -> Header | None:
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    audio_format = None
    for start, name, size in wav.chunks(head, 12, "little"):
        if name == b"fmt " and size >= 16 and start + 16 <= len(head):
            audio_format = struct.unpack_from("<HHIIHH", head, start)
            if audio_format[0] == _EXTENSIBLE and size >= 26 and start + 26 <= len(head):
                audio_format = (*struct.unpack_from("<H", head, start + 24), *audio_format[1:])
        if name == b"data":
            if audio_format is None or start + size > num_bytes:
                return None
            tag, num_channels, rate_hz, _, block, _ = audio_format
            subtype = _SUBTYPES.get((tag, block // num_channels)) if num_channels else None
            if subtype is None or block % num_channels:
                return None
            return Header(codec=subtype, rate_hz=rate_hz, num_channels=num_channels, num_samples=size // block)
    return None
