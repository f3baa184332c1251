"""The one scale between int16 samples and floats of -1 to 1; exact, as it is a power of two."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FULL_SCALE = 32_768


def to_float(samples_T: NDArray[np.int16]) -> NDArray[np.float32]:
    """The samples as float32 between -1 and 1."""
    return samples_T.astype(np.float32) / np.float32(FULL_SCALE)
