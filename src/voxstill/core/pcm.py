"""Scale and clock of audio samples: int16 to floats of -1 to 1, and samples at 16 kHz to milliseconds and seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import RATE_HZ

if TYPE_CHECKING:
    from torch import Tensor

FULL_SCALE = 32_768
"""The int16 value of a float of 1; both ways are exact, as it is a power of two."""


def to_float(samples_T: NDArray[np.int16]) -> NDArray[np.float32]:
    """The samples as float32 between -1 and 1."""
    return samples_T.astype(np.float32) / np.float32(FULL_SCALE)


def to_wave(audio: Tensor) -> Tensor:
    """The samples of a tensor of any shape as float32 between -1 and 1; float audio is scaled so already."""
    wave = audio.float()
    return wave if audio.is_floating_point() else wave / FULL_SCALE


def quantize(samples_T: NDArray[np.float32]) -> NDArray[np.int16]:
    """Convert float samples of -1 to 1 to the nearest int16; louder ones are clipped."""
    return to_int16(samples_T * np.float32(FULL_SCALE))


def to_int16(scaled_T: NDArray[np.float32]) -> NDArray[np.int16]:
    """Round float samples that are on the scale of int16 to the nearest; louder ones are clipped."""
    rounded_T: NDArray[np.float32] = np.rint(scaled_T)
    return np.clip(rounded_T, -FULL_SCALE, FULL_SCALE - 1, out=rounded_T).astype(np.int16)


def ms_to_samples(ms: int) -> int:
    """Number of samples in `ms` milliseconds, rounded down."""
    return ms * RATE_HZ // 1000


def samples_to_ms(num_samples: int) -> int:
    """Whole milliseconds in `num_samples`, rounded down so that a time is never past the end of the audio."""
    return num_samples * 1000 // RATE_HZ


def samples_to_s(num_samples: float) -> float:
    """Seconds in `num_samples`."""
    return num_samples / RATE_HZ
