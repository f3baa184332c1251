"""Samples as floats: exact, and back to the same samples."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from voxstill.core import pcm


def test_every_sample_is_exact_as_a_float_and_comes_back() -> None:
    samples_T = np.arange(-32_768, 32_768).astype(np.int16)
    floats_T = pcm.to_float(samples_T)
    assert floats_T.dtype == np.float32
    assert np.array_equal(floats_T.astype(np.float64) * 32_768, samples_T)
    assert np.array_equal(pcm.quantize(floats_T), samples_T)


def test_a_tensor_has_the_same_floats_as_an_array() -> None:
    samples_T = np.arange(-32_768, 32_768).astype(np.int16)
    wave_T = pcm.to_wave(torch.from_numpy(samples_T))
    assert wave_T.dtype == torch.float32
    assert np.array_equal(wave_T.numpy(), pcm.to_float(samples_T))
    assert torch.equal(pcm.to_wave(wave_T.double()), wave_T)  # float audio is scaled already


@given(hnp.arrays(np.float32, st.integers(0, 200), elements=st.floats(-4, 4, width=32)))
def test_quantizing_rounds_to_the_nearest_and_clips(samples_T: NDArray[np.float32]) -> None:
    got = pcm.quantize(samples_T).astype(np.float64)
    assert np.all(np.abs(got - np.clip(samples_T.astype(np.float64) * 32768, -32768, 32767)) <= 0.5)


@given(st.integers(0, 10**7))
def test_milliseconds_survive_a_visit_to_samples(ms: int) -> None:
    assert pcm.samples_to_ms(pcm.ms_to_samples(ms)) == ms
    assert pcm.ms_to_samples(pcm.samples_to_ms(ms)) <= ms


def test_arithmetic_on_int16_samples_is_rounded_and_clipped_at_their_scale() -> None:
    scaled_T = np.array([0.4, -0.6, 32_767.4, 40_000, -40_000], np.float32)
    assert pcm.to_int16(scaled_T).tolist() == [0, -1, 32_767, 32_767, -32_768]
