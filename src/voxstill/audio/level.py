"""The level of audio: what is measured of it before it is rounded to int16, and the gain that brings it to a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.audio.loudness import loudness_lufs
from voxstill.core import pcm
from voxstill.core.records import Normalization

Gain = float | Normalization
"""A gain in dB, or the normalization that it is computed by."""
PEAK_DBFS = -1.0
"""The highest peak after any normalization: the maximum of EBU R 128."""
RMS_DBFS = -20.0
"""Mean level after `rms`: speech has peaks 12 to 18 dB above it."""
LOUDNESS_LUFS = -23.0
"""Loudness after `loudness`: the target of EBU R 128."""
MAX_GAIN_DB = 100.0
"""The highest gain: what needs more is the rounding noise of 24-bit audio."""
MAX_CLIPPED = 0.001
"""Share of clipped samples above which a recording is distorted."""
MAX_DC_OFFSET = 0.01
"""Distance of the mean from 0, as a share of full scale, above which the hardware that recorded it was at fault."""
_FULL_SCALE = (pcm.FULL_SCALE - 1) / pcm.FULL_SCALE  # the loudest positive sample of 16 bits
_LARGE = 1e9
"""Peak of a float file above which the squares of samples, or their sums, are too large for float32."""
_PART = 1 << 16  # samples whose float32 sums are exact enough
_MAX_INT16, _MAX_INT32 = 2**15 - 1, 2**31 - 1
_MAX_ROWS = 16  # of more, a row is too short for vector instructions


class Level(NamedTuple):
    """What is measured of the samples of a file as shares of full scale, before any gain and before they are clipped.

    `clipped` is the share of samples at or beyond full scale, `dc_offset` the mean of the samples.
    """

    peak: float
    clipped: float
    dc_offset: float


class LevelMeter:
    """Measures float samples block by block."""

    def __init__(self) -> None:
        self._peak = self._sum = 0.0
        self._num_clipped = self._num_measured = self._num_samples = 0

    def add(self, block: NDArray[np.float32], mono_T: NDArray[np.float32]) -> None:
        """Add a block: the samples of the channels that are used, of any shape, and what is made of them."""
        peak = max(float(block.max(initial=0.0)), -float(block.min(initial=0.0)))
        if peak >= _FULL_SCALE:
            self._num_clipped += int(np.count_nonzero(np.abs(block) >= _FULL_SCALE))
        self._peak = max(self._peak, peak)
        self._num_measured += block.size
        self._sum += float(mono_T.sum())
        self._num_samples += len(mono_T)

    @property
    def level(self) -> Level:
        """The level of all blocks so far."""
        return Level(self._peak, self._num_clipped / max(1, self._num_measured), self._sum / max(1, self._num_samples))


def level_of(samples_T: NDArray[np.int16]) -> Level:
    """The level of samples that are those of the file, bit for bit."""
    num_samples, loudest = len(samples_T), pcm.FULL_SCALE - 1
    if not num_samples:
        return Level(0.0, 0.0, 0.0)
    highest, lowest = int(np.maximum.reduce(samples_T)), int(np.minimum.reduce(samples_T))
    num_clipped = 0
    if highest >= loudest or lowest <= -loudest:
        num_clipped = int(np.count_nonzero(samples_T >= loudest) + np.count_nonzero(samples_T <= -loudest))
    peak = max(highest, -lowest)
    return Level(peak / pcm.FULL_SCALE, num_clipped / num_samples, _sum(samples_T, peak) / num_samples / pcm.FULL_SCALE)


def _sum(samples_T: NDArray[np.int16], peak: int) -> int:
    """The sum of samples, in the narrowest integers that no sum of samples up to this peak overflows.

    Sums of int16 need no cast: below a quarter of full scale they take half the time of those of int32, which take
    half the time of those of int64.
    """
    rows = min(_MAX_INT16 // max(1, peak), _MAX_ROWS)
    if rows > 1 and len(samples_T) > rows:
        width = len(samples_T) // rows
        row_sums_T = np.add.reduce(samples_T[: rows * width].reshape(rows, width), axis=0, dtype=np.int16)
        return _sum(row_sums_T, peak * rows) + _sum(samples_T[rows * width :], peak)
    part = _MAX_INT32 // max(1, peak)
    starts = range(0, len(samples_T), part)
    return sum(int(np.add.reduce(samples_T[start : start + part], dtype=np.int32)) for start in starts)


def gain_db(parts: Sequence[NDArray[np.float32]], target: Normalization) -> float:
    """The gain in dB that brings a recording of float samples, to the target; 0 for silence and `none`."""
    peak = max((max(float(part_T.max(initial=0.0)), -float(part_T.min(initial=0.0))) for part_T in parts), default=0.0)
    if target == "none" or not peak:
        return 0.0
    if peak > _LARGE:
        return gain_db([part_T / np.float32(peak) for part_T in parts], target) - 20 * math.log10(peak)
    highest = min(PEAK_DBFS - 20 * math.log10(peak), MAX_GAIN_DB)
    if target == "rms":
        return min(RMS_DBFS - _rms_db(parts), highest)
    if target == "loudness":
        return min(LOUDNESS_LUFS - _loudness_lufs(parts, peak), highest)
    return highest


def quantized(samples_T: NDArray[np.float32], gain_db: float | None) -> NDArray[np.int16]:
    """The samples as int16 after a gain in dB; None leaves them as they are.

    Gains are applied here alone, so that every read of a file gives the same samples.
    """
    return pcm.quantize(samples_T if gain_db is None else samples_T * np.float32(10 ** (gain_db / 20)))


def normalized(samples_T: NDArray[np.float32], gain: Gain) -> tuple[NDArray[np.int16], float | None]:
    """All samples of a recording as int16 after its gain, and that gain in dB; None if there is none."""
    if isinstance(gain, str):
        parts = [samples_T[start : start + _PART] for start in range(0, len(samples_T), _PART)]
        in_db = None if gain == "none" else gain_db(parts, gain)
    else:
        in_db = gain
    return quantized(samples_T, in_db), in_db


def _rms_db(parts: Sequence[NDArray[np.float32]]) -> float:
    """Level around the mean in dBFS: a DC offset is not a sound."""
    num = sum(map(len, parts))
    mean = sum(float(part_T.sum()) for part_T in parts) / num
    power = sum(float(np.dot(part_T, part_T)) for part_T in parts) / num - mean**2
    return 10 * math.log10(power) if power > 0 else -math.inf


def _loudness_lufs(parts: Sequence[NDArray[np.float32]], peak: float) -> float:
    """Integrated loudness; what lies below the gates of the standard is measured with its peak at full scale."""
    lufs = loudness_lufs(parts)
    if math.isfinite(lufs):
        return lufs
    return loudness_lufs(part_T / np.float32(peak) for part_T in parts) + 20 * math.log10(peak)
