"""16-bit PCM in pieces of any number of bytes to int16 samples at 16 kHz."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.records import RATE_HZ


class PcmStream:
    """Converts little-endian mono PCM of `rate_hz` to int16 at 16 kHz as it arrives."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._half = b""  # the first byte of a sample whose second is still to come
        self._resampler = _resampler(rate_hz)

    def feed(self, data: bytes) -> NDArray[np.int16]:
        """Convert the next bytes; some samples may come with the bytes after them."""
        data = self._half + data
        num_bytes = len(data) // 2 * 2
        self._half = data[num_bytes:]
        samples_T = np.frombuffer(data[:num_bytes], "<i2").astype(np.int16)
        return samples_T if self._rate_hz == RATE_HZ else self._resample(samples_T, last=False)

    def flush(self) -> NDArray[np.int16]:
        """Return the samples that are left; what is fed afterwards begins again."""
        self._half = b""
        if self._rate_hz == RATE_HZ:
            return np.zeros(0, np.int16)
        samples_T = self._resample(np.zeros(0, np.int16), last=True)
        self._resampler = _resampler(self._rate_hz)
        return samples_T

    def _resample(self, samples_T: NDArray[np.int16], *, last: bool) -> NDArray[np.int16]:
        return pcm.to_int16(self._resampler.resample_chunk(samples_T.astype(np.float32), last=last))


def _resampler(rate_hz: int) -> soxr.ResampleStream:
    """In float32: for int16 soxr adds a dither, which depends on where the pieces end."""
    return soxr.ResampleStream(rate_hz, RATE_HZ, 1, dtype="float32")
