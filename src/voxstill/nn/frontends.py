"""Frontends: audio to the input of a student's model, with or without augmentation, and the count of its frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional

from voxstill.core import pcm
from voxstill.core.config import Augment
from voxstill.core.records import RATE_HZ
from voxstill.nn import augment_features, augment_waveform
from voxstill.nn.augment_waveform import NoiseBank
from voxstill.nn.log_mel import (
    FRAME_MS,
    LogMel,
    centred,
    feature_frames,
    mel_filters,
    output_frames,
)
from voxstill.nn.mel import HOP, Counts, causal_output_frames

Factors = NDArray[np.float32] | Tensor
"""Factors of lengths, of the kind and shape of the counts beside them."""
_WHISPER_FFT = 400
_VARIANCE_FLOOR = 1e-7  # of transformers' Wav2Vec2FeatureExtractor


class Frontend(Protocol):
    """Feature extraction and augmentation for one family of models."""

    @property
    def max_duration_ms(self) -> int | None:
        """Milliseconds that the model pads every input to, and takes at most; None if it takes any length."""
        ...

    @property
    def is_frame_synchronous(self) -> bool:
        """Whether the model is frame-synchronous: each token needs an output frame of its own."""
        ...

    @property
    def has_mel_features(self) -> bool:
        """Whether the features are log-mels, so that VTLP and masks of mel bands apply."""
        ...

    @property
    def frame_ms(self) -> int:
        """Length of an output frame in milliseconds."""
        ...

    @property
    def extractor(self) -> Mapping[str, Any]:
        """The configuration of the same features in `transformers`, saved with a student."""
        ...

    def num_frames(self, num_samples: Counts, tempo: Factors | None = None) -> Counts:
        """Number of output frames of so many samples, made `tempo` times as long (arrays or tensors of any shape)."""
        ...

    def move(self, device: torch.device) -> None:
        """Move filters and noise to a device."""
        ...

    def extract(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """Extract the model's input without augmentation; returns it and the length of each utterance in it (B,)."""
        ...

    def extract_augmented(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, progress: float, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Extract the model's input with augmentation; returns input, lengths (B,), and for each utterance the length
        of an output frame in milliseconds of the original audio (B,)."""
        ...

    def to_waveform(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Augmented audio as it is late in the training, as a waveform to listen to (B, T), and its lengths (B,)."""
        ...


class LogMelFrontend:
    """The frontend of Parakeet: log-mel features, see `voxstill.nn.log_mel`. Implements `Frontend`."""

    frame_ms = FRAME_MS
    has_mel_features = is_frame_synchronous = True
    max_duration_ms = None

    def __init__(
        self,
        cfg: Augment,
        noise_bank: NoiseBank | None = None,
        log_mel: LogMel | None = None,
        *,
        is_streaming: bool = False,
    ) -> None:
        """`is_streaming` says that the frames are those of a streaming student."""
        self._cfg, self._noise_bank = cfg, noise_bank or NoiseBank.from_recordings([], [])
        self.log_mel, self._is_streaming = log_mel or LogMel(), is_streaming

    @property
    def extractor(self) -> Mapping[str, Any]:
        """The configuration of an extractor of log-mels of `transformers`."""
        return self.log_mel.extractor

    def num_frames(self, num_samples: Counts, tempo: Factors | None = None) -> Counts:
        """One for 80 ms, rounded up, one or two more for a streaming student; `tempo` applies to feature frames."""
        features = feature_frames(num_samples)
        scaled = features if tempo is None else _scaled_length(features, tempo)
        return causal_output_frames(scaled) if self._is_streaming else output_frames(scaled)

    def move(self, device: torch.device) -> None:
        """Move filters and noise to a device."""
        self.log_mel.to(device)
        self._noise_bank = self._noise_bank.to(device)

    def extract(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """Extract normalised log-mels (B, F, D) and their frames (B,)."""
        features_BFD, frames_B = self.log_mel(audio_BT, audio_len_B)
        return features_BFD, frames_B

    def extract_augmented(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, progress: float, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Reverberation, recorded noise, gain on the waveform; tempo, VTLP, synthetic noise, masks on log-mels."""
        mel_BFD, frames_B, before_B = self.perturb(audio_BT, audio_len_B, tempo_B, generator)
        features_BFD = self.log_mel.normalise(mel_BFD, frames_B)
        if self.log_mel.normalization != "utterance":
            features_BFD = augment_features.vary_level(features_BFD, frames_B, self._cfg, generator)
        if progress >= self._cfg.spec_augment_start:
            features_BFD = self._masked(features_BFD, frames_B, generator)
        return features_BFD, frames_B, FRAME_MS * before_B / frames_B.clamp(min=1)

    def perturb(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Augmented log-mels (B, F, D) before normalisation and masks, frames (B,), and frames before tempo (B,)."""
        cfg, noise_bank, num = self._cfg, self._noise_bank, len(audio_BT)
        wave_BT = pcm.to_wave(audio_BT)
        recorded_B, synthetic_B = augment_waveform.choose_noise(num, cfg, noise_bank, generator)
        wave_BT = augment_waveform.reverberate_some(wave_BT, audio_len_B, cfg, noise_bank, generator)
        wave_BT = augment_waveform.add_recorded_noise(wave_BT, audio_len_B, recorded_B, cfg, noise_bank, generator)
        if self.log_mel.normalization == "utterance":  # `level` would take a gain off again: it is varied after that
            wave_BT = augment_waveform.apply_gain(wave_BT, cfg, generator)
        mel_BFD, before_B = self.log_mel.unnormalised(wave_BT, audio_len_B)
        mel_BFD, frames_B = augment_features.stretch(mel_BFD, before_B, tempo_B)
        mel_BFD = augment_features.vtlp(
            mel_BFD, augment_features.uniform(generator, (num,), 1 - cfg.vtlp, 1 + cfg.vtlp)
        )
        return augment_features.add_noise(mel_BFD, frames_B, synthetic_B, cfg, generator), frames_B, before_B

    def to_waveform(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Invert augmented and masked log-mels to a waveform; phases, which they do not have, are estimated."""
        mel_BFD, frames_B, _ = self.perturb(audio_BT, audio_len_B, tempo_B, generator)
        if self.log_mel.normalization != "utterance":
            mel_BFD = augment_features.vary_level(mel_BFD, frames_B, self._cfg, generator)
        features_BFD = self.log_mel.normalise(mel_BFD, frames_B)
        masked_BFD = self._masked(features_BFD, frames_B, generator)
        mean_B1D = torch.stack([mel_FD[:frames].mean(0) for mel_FD, frames in zip(mel_BFD, frames_B, strict=True)])
        masked_mel_BFD = torch.where(masked_BFD == features_BFD, mel_BFD, mean_B1D[:, None])
        return self.log_mel.invert(masked_mel_BFD, frames_B, generator), frames_B * HOP

    def _masked(self, features_BFD: Tensor, frames_B: Tensor, generator: Generator) -> Tensor:
        """SpecAugment; what is masked becomes the mean of its band, which is zero with `utterance`."""
        if self.log_mel.normalization == "utterance":
            return augment_features.spec_augment(features_BFD, frames_B, self._cfg, generator)
        centred_BFD = centred(features_BFD, frames_B)
        masked_BFD = augment_features.spec_augment(centred_BFD, frames_B, self._cfg, generator)
        return torch.where(masked_BFD == centred_BFD, features_BFD, features_BFD - centred_BFD)


class WaveformFrontend:
    """The frontend of wav2vec 2.0 and its kin: the waveform; the model's own convolutions make frames of it.

    Masks are the model's own, as its checkpoint has them. Implements `Frontend`.
    """

    has_mel_features, is_frame_synchronous = False, True
    max_duration_ms = None

    def __init__(
        self,
        cfg: Augment,
        noise_bank: NoiseBank | None = None,
        *,
        kernels: Sequence[int],
        strides: Sequence[int],
        normalises: bool = True,
    ) -> None:
        self._cfg, self._noise_bank = cfg, noise_bank or NoiseBank.from_recordings([], [])
        self._kernels, self._strides, self._normalises = tuple(kernels), tuple(strides), normalises
        self.frame_ms = pcm.samples_to_ms(int(np.prod(strides)))

    @property
    def extractor(self) -> Mapping[str, Any]:
        """The configuration of a Wav2Vec2FeatureExtractor of `transformers`."""
        return {
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "do_normalize": self._normalises,
            "feature_size": 1,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": RATE_HZ,
        }

    def num_frames(self, num_samples: Counts, tempo: Factors | None = None) -> Counts:
        """Output frames of the convolutions, which have no padding."""
        scaled = num_samples if tempo is None else _scaled_length(num_samples, tempo)
        return conv_frames(scaled, kernels=self._kernels, strides=self._strides)

    def move(self, device: torch.device) -> None:
        """Move noise to a device."""
        self._noise_bank = self._noise_bank.to(device)

    def extract(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """The waveform (B, T), normalised to zero mean and unit deviation if the model needs it, and lengths (B,)."""
        return self._normalised(pcm.to_wave(audio_BT), audio_len_B), audio_len_B

    def extract_augmented(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, progress: float, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Speed perturbation, reverberation, noise and gain."""
        wave_BT, len_B = self.perturb(audio_BT, audio_len_B, tempo_B, generator)
        return self._normalised(wave_BT, len_B), len_B, self.frame_ms * audio_len_B / len_B

    def perturb(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """The augmented waveform (B, T) before normalisation, and its lengths (B,)."""
        cfg, noise_bank = self._cfg, self._noise_bank
        wave_BT, len_B = pcm.to_wave(audio_BT), audio_len_B
        if cfg.tempo:
            wave_BT, len_B = augment_waveform.speed_perturb(wave_BT, len_B, tempo_B)
        recorded_B, synthetic_B = augment_waveform.choose_noise(len(wave_BT), cfg, noise_bank, generator)
        wave_BT = augment_waveform.reverberate_some(wave_BT, len_B, cfg, noise_bank, generator)
        wave_BT = augment_waveform.add_recorded_noise(wave_BT, len_B, recorded_B, cfg, noise_bank, generator)
        if cfg.noise_prob:
            wave_BT = augment_waveform.add_synthetic_noise(wave_BT, len_B, synthetic_B, cfg, generator)
        return augment_waveform.apply_gain(wave_BT, cfg, generator), len_B

    def to_waveform(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """The augmented waveform before normalisation."""
        return self.perturb(audio_BT, audio_len_B, tempo_B, generator)

    def _normalised(self, wave_BT: Tensor, len_B: Tensor) -> Tensor:
        if not self._normalises:
            return wave_BT
        own_BT, count_B1 = augment_waveform.sample_mask(len_B, wave_BT.shape[1]), len_B[:, None].clamp(min=1)
        centred_BT = (wave_BT - (wave_BT * own_BT).sum(1, keepdim=True) / count_B1) * own_BT
        variance_B1 = centred_BT.square().sum(1, keepdim=True) / count_B1
        return centred_BT / (variance_B1 + _VARIANCE_FLOOR).sqrt()


class WhisperFrontend:
    """The frontend of Whisper: log-mel features of 30 s, padded with silence (Radford et al. 2022).

    Implements `Frontend`.
    """

    has_mel_features, is_frame_synchronous = False, False
    max_duration_ms = 30_000

    frame_ms = 20

    def __init__(self, cfg: Augment, noise_bank: NoiseBank | None = None, num_mels: int = 80) -> None:
        self._cfg, self._waveform = cfg, WaveformFrontend(cfg, noise_bank, kernels=(), strides=())
        self._window, self._mels_DN = torch.hann_window(_WHISPER_FFT), mel_filters(num_mels, _WHISPER_FFT)

    @property
    def extractor(self) -> Mapping[str, Any]:
        """The configuration of a WhisperFeatureExtractor of `transformers`."""
        return {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": len(self._mels_DN),
            "chunk_length": self.max_duration_ms // 1000,
            "hop_length": HOP,
            "n_fft": _WHISPER_FFT,
            "padding_value": 0.0,
            "return_attention_mask": False,
            "sampling_rate": RATE_HZ,
        }

    def num_frames(self, num_samples: Counts, tempo: Factors | None = None) -> Counts:
        """One for 20 ms, rounded up."""
        return -(-(num_samples if tempo is None else _scaled_length(num_samples, tempo)) // (2 * HOP))

    def move(self, device: torch.device) -> None:
        """Move filters and noise to a device."""
        self._waveform.move(device)
        self._window, self._mels_DN = self._window.to(device), self._mels_DN.to(device)

    def extract(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """Extract log-mels (B, D, F) of 30 s, and the number of frames of them that are speech (B,)."""
        return self._features(pcm.to_wave(audio_BT)), audio_len_B // HOP

    def extract_augmented(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, progress: float, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Speed perturbation, reverberation, noise and gain on the waveform, masks on log-mels."""
        wave_BT, len_B = self._waveform.perturb(audio_BT, audio_len_B, tempo_B, generator)
        features_BFD = self._features(wave_BT).transpose(1, 2)
        if progress >= self._cfg.spec_augment_start:
            features_BFD = augment_features.spec_augment(features_BFD, len_B // HOP, self._cfg, generator)
        return features_BFD.transpose(1, 2), len_B // HOP, self.frame_ms * audio_len_B / len_B

    def to_waveform(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """The augmented waveform from which features are extracted."""
        return self._waveform.to_waveform(audio_BT, audio_len_B, tempo_B, generator)

    def _features(self, wave_BT: Tensor) -> Tensor:
        num_samples = pcm.ms_to_samples(self.max_duration_ms)
        wave_BT = functional.pad(wave_BT[:, :num_samples], (0, max(num_samples - wave_BT.shape[1], 0)))
        stft_BNF = torch.stft(wave_BT, _WHISPER_FFT, HOP, window=self._window, return_complex=True)[..., :-1]
        mel_BDF = self._mels_DN @ (stft_BNF.real.square() + stft_BNF.imag.square())
        log_BDF = mel_BDF.clamp(min=1e-10).log10()
        return (torch.maximum(log_BDF, log_BDF.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


def conv_frames(num_samples: Counts, kernels: Sequence[int], strides: Sequence[int]) -> Counts:
    """Number of frames after a stack of convolutions without padding (arrays or tensors of any shape)."""
    count = num_samples
    for kernel, stride in zip(kernels, strides, strict=True):
        count = (count - kernel) // stride + 1
    return count * (count > 0)


def _scaled_length(count: Counts, tempo: Factors) -> Counts:
    """floor(count * tempo) in single precision, at least 1: the same on the host and on the device."""
    if isinstance(count, Tensor):
        return (count.float() * torch.as_tensor(tempo)).floor().long().clamp(min=1)
    assert not isinstance(tempo, Tensor)
    scaled: Counts = np.maximum(np.floor(np.float32(count) * tempo), 1).astype(np.int64)
    return scaled
