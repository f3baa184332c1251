"""Log-mels in numpy: the figures of the features, the clock of their frames, and the features of a waveform.

What a recogniser on onnxruntime needs without torch; `log_mel.py` computes the same on a device.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.records import RATE_HZ

if TYPE_CHECKING:
    from torch import Tensor

HOP = 160
WINDOW = 400
NUM_FFT = 512
NUM_MELS = 80
PREEMPHASIS = 0.97
SUBSAMPLING = 8
"""Feature frames for one output frame of a student."""
LOG_FLOOR = 2.0**-24
Counts = TypeVar("Counts", int, NDArray[np.int64], "Tensor")
"""Numbers of samples or frames: one, or an array or a tensor of any shape."""
_LINEAR_HZ, _LINEAR_MEL, _HZ_PER_MEL = 1000.0, 15.0, 200.0 / 3.0
_LOG_STEP = np.log(6.4) / 27.0
"""Slaney's scale is linear up to 1000 Hz and logarithmic above."""


def causal_output_frames(num_features: Counts) -> Counts:
    """Number of a streaming student's output frames for `num_features` feature frames.

    Its convolutions look back: three times half of the frames, rounded down, and one more.
    """
    return (num_features + 6) // SUBSAMPLING + 1


def log_mels(samples_T: NDArray[np.int16], num_mels: int = NUM_MELS) -> NDArray[np.float32]:
    """Log-mels (F, D) of samples at 16 kHz, not normalised: one frame for 10 ms."""
    wave_T = pcm.to_float(samples_T)
    emphasised_T = np.zeros(len(wave_T) + NUM_FFT, np.float32)  # frames are centred, with zeros around the audio
    own_T = emphasised_T[NUM_FFT // 2 : NUM_FFT // 2 + len(wave_T)]
    own_T[:1] = wave_T[:1]
    own_T[1:] = wave_T[1:] - np.float32(PREEMPHASIS) * wave_T[:-1]
    frames_FT = sliding_window_view(emphasised_T, NUM_FFT)[::HOP][: len(samples_T) // HOP]
    spectrum_FN = np.fft.rfft(frames_FT * _window())
    power_FN = np.square(spectrum_FN.real) + np.square(spectrum_FN.imag)
    mels_FD: NDArray[np.float32] = np.log(power_FN @ _transposed_filters(num_mels) + np.float32(LOG_FLOOR))
    return mels_FD


def filters(num_mels: int, num_fft: int) -> NDArray[np.float32]:
    """Mel filter bank (D, N), the weights of FFT bins in each band: Slaney's scale, each band of equal area."""
    centre_D = _hz(np.linspace(0.0, _mel(RATE_HZ / 2), num_mels + 2))
    bin_N = np.linspace(0, RATE_HZ // 2, num_fft // 2 + 1)
    width_D = np.diff(centre_D)
    slope_ND = centre_D[None] - bin_N[:, None]
    rising_ND, falling_ND = -slope_ND[:, :-2] / width_D[:-1], slope_ND[:, 2:] / width_D[1:]
    filters_ND = np.maximum(0.0, np.minimum(rising_ND, falling_ND)) * (2.0 / (centre_D[2:] - centre_D[:-2]))
    return np.ascontiguousarray(filters_ND.T, np.float32)


def _mel(hz: float) -> float:
    """A frequency above 1000 Hz on Slaney's scale."""
    return float(_LINEAR_MEL + np.log(hz / _LINEAR_HZ) / _LOG_STEP)


def _hz(mel_D: NDArray[np.float64]) -> NDArray[np.float64]:
    log_D = _LINEAR_HZ * np.exp(_LOG_STEP * (mel_D - _LINEAR_MEL))
    return np.where(mel_D >= _LINEAR_MEL, log_D, _HZ_PER_MEL * mel_D)


@functools.cache
def _window() -> NDArray[np.float32]:
    """A symmetric Hann window in the middle of the FFT."""
    side = (NUM_FFT - WINDOW) // 2
    return np.pad(np.hanning(WINDOW), side).astype(np.float32)


@functools.cache
def _transposed_filters(num_mels: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(filters(num_mels, NUM_FFT).T)
