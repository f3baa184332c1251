"""Log-mel features on the device, equal to those of extractors in `transformers`; padding changes nothing.

16 kHz, pre-emphasis 0.97, symmetric Hann window of 25 ms every 10 ms, 512-point FFT, 80 Slaney mel bands, natural
logarithm. Then they are normalised in one of three ways. `utterance`: each band to zero mean and unit deviation over
the utterance, as by ParakeetFeatureExtractor. `none`: the log-mels as they are, as by
NemotronAsrStreamingFeatureExtractor. `level`: the same, but speech louder or fainter than a range is brought to its
edge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from voxstill.core import pcm
from voxstill.core.config import Normalization
from voxstill.core.records import RATE_HZ
from voxstill.nn import mel
from voxstill.nn.mel import HOP, LOG_FLOOR, NUM_FFT, NUM_MELS, PREEMPHASIS, SUBSAMPLING, WINDOW, Counts

DEVIATION_FLOOR = 1e-5
_PHASE_ROUNDS = 40
LEVEL_RANGE_DB = 6.0
"""How far from 0 dB, up and down, the level of speech may be for a new student."""
_LOUDEST = 0.2
_DB = math.log(10) / 10
"""A decibel of power in natural logarithms."""
FRAME_MS = 10 * SUBSAMPLING
"""Length of one output frame of a student."""
UNNORMALISED_EXTRACTOR = "NemotronAsrStreamingFeatureExtractor"
"""The extractor of `transformers` with the same log-mels and no normalisation."""


def feature_frames(num_samples: Counts) -> Counts:
    """Number of feature frames of `num_samples` samples: one every 10 ms (ints, arrays or tensors)."""
    return num_samples // HOP


def output_frames(num_features: Counts) -> Counts:
    """Number of a student's output frames for `num_features` feature frames: three halvings, each rounded up."""
    return -(-num_features // SUBSAMPLING)


class LogMel(nn.Module):
    """The log-mel computation as a module without weights; its buffers follow it to the device and are not saved."""

    window: Tensor
    mels_DN: Tensor

    def __init__(
        self,
        num_mels: int = NUM_MELS,
        normalization: Normalization = "utterance",
        level_range_db: float = LEVEL_RANGE_DB,
    ) -> None:
        """`level_range_db` is of `level`."""
        super().__init__()
        self.num_mels, self.normalization, self.level_range_db = num_mels, normalization, level_range_db
        self.register_buffer("window", torch.hann_window(WINDOW, periodic=False), persistent=False)
        self.register_buffer("mels_DN", mel_filters(num_mels), persistent=False)

    @torch.no_grad()
    def unnormalised(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """Log-mels (B, F, D), not yet normalised, and frames (B,) of int16 or float audio (full scale 1)."""
        wave_BT = pcm.to_wave(audio_BT)
        own_BT = torch.arange(wave_BT.shape[1], device=wave_BT.device)[None] < audio_len_B[:, None]
        wave_BT = torch.cat([wave_BT[:, :1], wave_BT[:, 1:] - PREEMPHASIS * wave_BT[:, :-1]], dim=1) * own_BT
        stft_BNF = torch.stft(
            wave_BT, NUM_FFT, HOP, WINDOW, self.window, center=True, pad_mode="constant", return_complex=True
        )
        power_BNF = stft_BNF.real.square() + stft_BNF.imag.square()  # a sum over pairs is eight times slower
        mel_BDF = self.mels_DN @ power_BNF
        return torch.log(mel_BDF + LOG_FLOOR).transpose(1, 2), feature_frames(audio_len_B)

    def forward(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised features (B, F, D) and frames (B,) of audio."""
        mel_BFD, frames_B = self.unnormalised(audio_BT, audio_len_B)
        return self.normalise(mel_BFD, frames_B), frames_B

    @property
    def extractor(self) -> Mapping[str, Any]:
        """The configuration of the same features in `transformers`, saved with a student.

        `level_range_db` is ours: the extractor keeps it and does nothing with it.
        """
        common = {
            "feature_size": self.num_mels,
            "hop_length": HOP,
            "n_fft": NUM_FFT,
            "padding_side": "right",
            "padding_value": 0.0,
            "preemphasis": PREEMPHASIS,
            "return_attention_mask": True,
            "sampling_rate": RATE_HZ,
            "win_length": WINDOW,
        }
        if self.normalization == "utterance":
            return {"feature_extractor_type": "ParakeetFeatureExtractor", **common}
        own = {"level_range_db": self.level_range_db} if self.normalization == "level" else {}
        return {"feature_extractor_type": UNNORMALISED_EXTRACTOR, **common, **own}

    def normalise(self, mel_BFD: Tensor, frames_B: Tensor) -> Tensor:
        """Normalise log-mels as the student needs them; padding becomes zero."""
        if self.normalization == "utterance":
            return normalise(mel_BFD, frames_B)
        mask_BF1 = frame_mask(frames_B, mel_BFD.shape[1])[..., None]
        if self.normalization == "none":
            return mel_BFD * mask_BF1
        level_B = level(mel_BFD, frames_B)
        excess_B = level_B - level_B.clamp(-self.level_range_db, self.level_range_db)
        return (mel_BFD - excess_B[:, None, None] * _DB) * mask_BF1

    @torch.no_grad()
    def invert(self, mel_BFD: Tensor, frames_B: Tensor, generator: torch.Generator) -> Tensor:
        """Invert log-mels to samples (B, T), 160 a frame, with phases by Griffin and Lim (1984) from random ones."""
        mask_BF = frame_mask(frames_B, mel_BFD.shape[1])
        mel_BDF = ((mel_BFD.exp() - LOG_FLOOR).clamp(min=0) * mask_BF[..., None]).transpose(1, 2)
        power_BNF = (torch.linalg.pinv(self.mels_DN) @ mel_BDF).clamp(min=0)
        magnitude_BNF = functional.pad(power_BNF.sqrt(), (0, 1))  # a centred STFT has a frame more
        stft_options: Any = {
            "n_fft": NUM_FFT,
            "hop_length": HOP,
            "win_length": WINDOW,
            "window": self.window,
            "center": True,
        }
        length = mel_BFD.shape[1] * HOP
        angle_BNF = torch.rand(magnitude_BNF.shape, generator=generator, device=generator.device) * (2 * torch.pi)
        for _ in range(_PHASE_ROUNDS):
            wave_BT = torch.istft(torch.polar(magnitude_BNF, angle_BNF), length=length, **stft_options)
            angle_BNF = torch.stft(wave_BT, pad_mode="constant", return_complex=True, **stft_options).angle()
        wave_BT = torch.istft(torch.polar(magnitude_BNF, angle_BNF), length=length, **stft_options)
        # undo pre-emphasis by division in the frequency domain, padded as its inverse filter is infinite
        spectrum_BN = torch.fft.rfft(wave_BT, 2 * length)
        angle_N = torch.arange(spectrum_BN.shape[1], device=wave_BT.device) * (torch.pi / length)
        deemphasised_BN = spectrum_BN / (1 - torch.polar(torch.full_like(angle_N, PREEMPHASIS), -angle_N))
        samples_BT: Tensor = torch.fft.irfft(deemphasised_BN, 2 * length)[:, :length]
        return samples_BT


def normalise(mel_BFD: Tensor, frames_B: Tensor) -> Tensor:
    """Normalise each utterance and band to zero mean and unit deviation over its own frames; padding becomes zero."""
    centred_BFD = centred(mel_BFD, frames_B)
    count_B11 = frames_B[:, None, None].to(mel_BFD.dtype)
    variance_B1D = centred_BFD.square().sum(1, keepdim=True) / (count_B11 - 1).clamp(min=1)
    return centred_BFD / (variance_B1D.sqrt() + DEVIATION_FLOOR)


def level(mel_BFD: Tensor, frames_B: Tensor) -> Tensor:
    """Speech level (B,) in decibels: the mean over the loudest fifth of the frames of their power over all bands.

    0 is about -19 dB of full scale (RMS of these frames). Noise below the speech hardly changes it, unlike the mean of
    log-mels, which it raises between the words and between the harmonics.
    """
    mask_BF = frame_mask(frames_B, mel_BFD.shape[1])
    power_BF = mel_BFD.logsumexp(2).masked_fill(~mask_BF, -torch.inf)
    num_B = (frames_B * _LOUDEST).ceil().clamp(min=1)
    loudest_BF = power_BF.sort(1, descending=True).values
    chosen_BF = torch.arange(mel_BFD.shape[1], device=mel_BFD.device)[None] < num_B[:, None]
    return torch.where(chosen_BF & mask_BF.any(1, keepdim=True), loudest_BF, 0).sum(1) / num_B / _DB


def centred(mel_BFD: Tensor, frames_B: Tensor) -> Tensor:
    """Subtract the mean of each utterance and band over its own frames; padding becomes zero."""
    mask_BF1 = frame_mask(frames_B, mel_BFD.shape[1])[..., None]
    count_B11 = frames_B[:, None, None].to(mel_BFD.dtype)
    mean_B1D = (mel_BFD * mask_BF1).sum(1, keepdim=True) / count_B11.clamp(min=1)
    return (mel_BFD - mean_B1D) * mask_BF1


def frame_mask(frames_B: Tensor, num_frames: int) -> Tensor:
    """Mask (B, F), true where a frame belongs to the utterance and is not padding."""
    return torch.arange(num_frames, device=frames_B.device)[None] < frames_B[:, None]


def mel_filters(num_mels: int = NUM_MELS, num_fft: int = NUM_FFT) -> Tensor:
    """Mel filter bank (D, N), the weights of FFT bins in each band: Slaney's scale, each band of equal area."""
    return torch.from_numpy(mel.filters(num_mels, num_fft))
