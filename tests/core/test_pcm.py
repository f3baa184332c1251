"""Samples as floats: exact, and back to the same samples."""

from __future__ import annotations

import numpy as np

from voxstill.audio import codec
from voxstill.core import pcm


def test_every_sample_is_exact_as_a_float_and_comes_back() -> None:
    samples_T = np.arange(-32_768, 32_768).astype(np.int16)
    floats_T = pcm.to_float(samples_T)
    assert floats_T.dtype == np.float32
    assert np.array_equal(floats_T.astype(np.float64) * 32_768, samples_T)
    assert np.array_equal(codec.quantize(floats_T), samples_T)
