"""Samples that Python has in memory already: an array of any rate as 16 kHz mono int16."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from voxstill.audio.level import Gain, normalized
from voxstill.core import pcm
from voxstill.core.errors import DataError
from voxstill.core.records import RATE_HZ


def from_array(
    samples_T: NDArray[np.float32] | NDArray[np.int16], rate_hz: int, gain: Gain = "none"
) -> NDArray[np.int16]:
    """Resample mono samples, float in [-1, 1] or int16, to 16 kHz int16 after a gain.

    DataError if they are no such audio.
    """
    is_int16 = samples_T.dtype.newbyteorder("=") == np.int16
    if samples_T.ndim == 1 and samples_T.dtype.kind in "iu" and not is_int16:
        raise DataError(
            f"samples of the type {samples_T.dtype} have no known full scale",
            code="audio-argument",
            why="full scale depends on the bit depth of the recording: 8, 24 or 32",
            fix="divide them by their full scale, 2**31 for 32 bits, and give float32 in [-1, 1]",
        )
    if samples_T.ndim != 1 or not (is_int16 or samples_T.dtype.kind == "f"):
        raise DataError(
            "not mono samples",
            code="audio-argument",
            why=f"an array of the shape {samples_T.shape} and the type {samples_T.dtype}",
            fix="give one channel, as float32 in [-1, 1] or as int16",
        )
    if is_int16 and rate_hz == RATE_HZ and gain == "none":
        return samples_T.astype(np.int16, copy=False)
    float_T = pcm.to_float(samples_T.astype(np.int16, copy=False)) if is_int16 else samples_T.astype(np.float32)
    if not np.isfinite(float_T).all():
        raise DataError(
            "not finite",
            code="audio-argument",
            why="a sample is infinite or not a number",
            fix="remove such values first",
        )
    return normalized(float_T if rate_hz == RATE_HZ else soxr.resample(float_T, rate_hz, RATE_HZ), gain)[0]
