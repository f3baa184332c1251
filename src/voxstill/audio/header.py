"""Read what the header of a WAV or a FLAC says of its audio, from the first bytes of the file alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass

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
    """What the first bytes of a file of `num_bytes` state; None where they state no length, or one that cannot be.

    WAV is read up to its data chunk (RIFF, little endian), which must lie within the file; of FLAC the STREAMINFO
    (RFC 9639, section 8.2).
    """
    header = _read_flac(head) if head[:4] == b"fLaC" else _read_wav(head, num_bytes)
    return header if header is not None and header.num_samples > 0 and header.rate_hz in _RATES_HZ else None


def _read_flac(head: bytes) -> Header | None:
    if len(head) < 42 or head[4] & 0x7F:
        return None
    fields = int.from_bytes(head[18:26], "big")
    return Header(
        codec="flac",
        rate_hz=fields >> 44,
        num_channels=(fields >> 41 & 7) + 1,
        num_samples=fields & (1 << 36) - 1,
    )


def _read_wav(head: bytes, num_bytes: int) -> Header | None:
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    position, audio_format = 12, None
    while position + 8 <= len(head):
        name, size = struct.unpack_from("<4sI", head, position)
        position += 8
        if name == b"fmt " and size >= 16 and position + 16 <= len(head):
            audio_format = struct.unpack_from("<HHIIHH", head, position)
            if audio_format[0] == _EXTENSIBLE and size >= 26 and position + 26 <= len(head):
                audio_format = (*struct.unpack_from("<H", head, position + 24), *audio_format[1:])
        if name == b"data":
            if audio_format is None or position + size > num_bytes:
                return None
            tag, num_channels, rate_hz, _, block, _ = audio_format
            subtype = _SUBTYPES.get((tag, block // num_channels)) if num_channels else None
            if subtype is None or block % num_channels:
                return None
            return Header(codec=subtype, rate_hz=rate_hz, num_channels=num_channels, num_samples=size // block)
        position += size + size % 2
    return None
