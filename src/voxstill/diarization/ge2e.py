"""Embeddings of voices by the GE2E network of Resemblyzer (Wan et al. 2018), whose weights are a file in its wheel.

The package itself is not imported: it would ask for builds from source. Its network is three LSTM layers and a linear
one over 40 mel bands of power, and the features here are the same as librosa's.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor, nn

from voxstill.core import pcm
from voxstill.core.errors import ConfigError, first_line
from voxstill.diarization import weights
from voxstill.nn import mel

NUM_MELS = 40
_NUM_FFT = 400
_SIZE = 256
_WINDOWS_AT_ONCE = 256


class Ge2e(nn.Module):
    """The network, with the names of the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(NUM_MELS, _SIZE, 3, batch_first=True)
        self.linear = nn.Linear(_SIZE, _SIZE)

    def forward(self, mels_WFD: Tensor) -> Tensor:
        """Embeddings (W, 256) of unit length of windows of mel power (W, F, 40)."""
        _, (hidden_LWE, _) = self.lstm(mels_WFD)
        embedding_WE = torch.relu(self.linear(hidden_LWE[-1]))
        return nn.functional.normalize(embedding_WE, dim=1)


def load() -> Ge2e:
    """Load the network; ConfigError if its file is missing or is another one."""
    path = weights.path()
    network = Ge2e()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
        network.load_state_dict({name: state[name] for name in network.state_dict()})
    except Exception as error:  # a file of any content
        raise ConfigError(
            f"`{path}` is not a checkpoint of this network",
            code="diarization-fails",
            why=first_line(error),
            fix=f"{weights.INSTALL} --force-reinstall",
        ) from None
    return network.eval().requires_grad_(False)


def embed(network: Ge2e, mels_WFD: NDArray[np.float32]) -> NDArray[np.float32]:
    """Embeddings (W, 256) of windows of mel power."""
    parts = [np.zeros((0, _SIZE), np.float32)]
    with torch.inference_mode():
        for start in range(0, len(mels_WFD), _WINDOWS_AT_ONCE):
            windows_WFD = np.ascontiguousarray(mels_WFD[start : start + _WINDOWS_AT_ONCE])
            parts.append(network(torch.from_numpy(windows_WFD)).numpy())
    return np.concatenate(parts)


def mel_power(samples_T: NDArray[np.int16]) -> NDArray[np.float32]:
    """Mel power (F, 40) of samples of which 200 stand on each side of the first and of the last frame's centre."""
    frames_FT = sliding_window_view(pcm.to_float(samples_T), _NUM_FFT)[:: mel.HOP]
    spectrum_FN = np.fft.rfft(frames_FT * _window())
    power_FN = np.square(spectrum_FN.real) + np.square(spectrum_FN.imag)
    return np.asarray(power_FN @ _filters(), np.float32)


@functools.cache
def _window() -> NDArray[np.float32]:
    """A periodic Hann window."""
    return np.hanning(_NUM_FFT + 1)[:-1].astype(np.float32)


@functools.cache
def _filters() -> NDArray[np.float32]:
    return np.ascontiguousarray(mel.filters(NUM_MELS, _NUM_FFT).T)
