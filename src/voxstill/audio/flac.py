"""The header of a FLAC file (STREAMINFO), and the MD5 in it of the samples (RFC 9639, section 8.2)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from voxstill.audio.byte_source import ByteSource
from voxstill.core.errors import DataError

_MIN_BYTES = 42
"""Of the marker, the header of the first block and STREAMINFO."""
_INT16_BITS = 16
_RATES_HZ = dict(
    enumerate((88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000), 1)
)
"""By their code in a frame."""
_WHOLE_TYPES = {1: np.int8, 2: np.int16, 4: np.int32}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """What the header states; `num_samples` and `md5` are None if the encoder did not know them."""

    rate_hz: int
    num_channels: int
    bits: int
    num_samples: int | None
    md5: bytes | None


def stream_info(data: ByteSource) -> StreamInfo | None:
    """The header of a file; None if it is not FLAC."""
    head = data[:_MIN_BYTES]
    if head[:4] != b"fLaC" or len(head) < _MIN_BYTES or head[4] & 0x7F:
        return None
    packed = int.from_bytes(head[18:26], "big")  # 20 bits of rate, 3 of channels, 5 of bits, 36 of samples
    md5 = head[26:42]
    return StreamInfo(
        rate_hz=packed >> 44,
        num_channels=(packed >> 41 & 7) + 1,
        bits=(packed >> 36 & 31) + 1,
        num_samples=packed & (1 << 36) - 1 or None,
        md5=md5 if any(md5) else None,
    )


def rate_fault(data: ByteSource) -> DataError | None:
    """The error where the header has another rate than the first frame, which has a checksum of its own; else None.

    The MD5 is of the samples alone. Only the usual rates have a code in a frame (RFC 9639, section 9.1.2).
    """
    info = stream_info(data)
    if info is None:
        return None
    at, is_last = 4, False
    while not is_last and at + 4 <= len(data):
        block = data[at : at + 4]
        is_last = bool(block[0] & 0x80)
        at += 4 + int.from_bytes(block[1:], "big")
    frame = data[at : at + 3]
    if len(frame) < 3 or frame[0] != 0xFF or frame[1] & 0xFE != 0xF8:
        return None
    rate_hz = _RATES_HZ.get(frame[2] & 15, info.rate_hz)
    if rate_hz == info.rate_hz:
        return None
    return DataError(
        "damaged",
        code="audio-damaged",
        why=f"its header says {info.rate_hz:,} Hz, and its first frame {rate_hz:,} Hz",
        fix="get an intact copy of the file",
    )


def head_without_length(data: ByteSource) -> bytes:
    """The first bytes of the file with its stated length set to unknown, as libsndfile would stop there.

    No bytes where it is no FLAC, or states none.
    """
    info = stream_info(data)
    if info is None or info.num_samples is None:
        return b""
    head = data[:26]
    return head[:21] + bytes([head[21] & 0xF0, 0, 0, 0, 0])


class SampleHash:
    """The MD5 of decoded samples as an encoder computes it: interleaved, in whole bytes, little-endian.

    `block_type` is the shortest type of samples that it takes: those of 16 bits need no conversion.
    """

    def __init__(self, bits: int) -> None:
        self.block_type: Literal["int16", "int32"] = "int16" if bits <= _INT16_BITS else "int32"
        self._bits, self._width = bits, (bits + 7) // 8
        self._md5 = hashlib.md5(usedforsecurity=False)

    def add(self, block_TC: NDArray[np.int16] | NDArray[np.int32]) -> None:
        """Add the next samples, scaled to all bits of their type."""
        native_TC: NDArray[Any] = np.ascontiguousarray(block_TC)
        if unused := 8 * block_TC.itemsize - self._bits:
            native_TC = native_TC >> unused
        if (kind := _WHOLE_TYPES.get(self._width)) is not None:
            self._md5.update(native_TC.astype(kind, copy=False).data)
        else:
            bytes_N4 = native_TC.view(np.uint8).reshape(-1, 4)
            packed_N3 = np.empty((len(bytes_N4), self._width), np.uint8)
            for place in range(self._width):  # byte by byte is five times as fast as all at once
                packed_N3[:, place] = bytes_N4[:, place]
            self._md5.update(packed_N3.data)

    def digest(self) -> bytes:
        """The MD5 of all samples so far."""
        return self._md5.digest()
