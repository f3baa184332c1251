"""How a student hears: samples become what its model takes, plain or augmented, and are counted in its frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

from voxstill.config import Augment
from voxstill.nn import augment, waves
from voxstill.nn.frontend import (
    EXTRACTOR,
    FRAME_MS,
    HOP,
    NUM_MELS,
    Frontend,
    feature_frames,
    mel_filters,
    normalise,
    output_frames,
)
from voxstill.nn.waves import NoiseBank
from voxstill.records import RATE_HZ

_WHISPER_FFT = 400
_VARIANCE_FLOOR = 1e-7  # of transformers' Wav2Vec2FeatureExtractor


class Hearing(Protocol):
    """One way to hear."""

    @property
    def longest_ms(self) -> int | None:
        """The most audio that the model takes at once, and takes of each utterance, silence behind the speech."""
        ...

    @property
    def aligns(self) -> bool:
        """Whether each token needs an output frame of its own."""
        ...

    @property
    def hears_mels(self) -> bool:
        """Whether the vocal tract can be changed and bands be masked."""
        ...

    @property
    def frame_ms(self) -> int:
        """Length of an output frame."""
        ...

    @property
    def extractor(self) -> Mapping[str, Any]:
        """The same features as `transformers` describes them, to be saved beside a student."""
        ...

    def frames(self, num_samples: Any, tempo: Any = None) -> Any:
        """Output frames of so many samples, made `tempo` times as long (arrays or tensors of any shape)."""
        ...

    def move(self, device: torch.device) -> None:
        """What it needs to a device."""
        ...

    def plain(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """What the model takes, and how much of it belongs to each utterance (B,)."""
        ...

    def augmented(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, progress: float, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of disturbed audio, and the length of an output frame in milliseconds of the audio as it was."""
        ...

    def audible(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """What `augmented` makes late in the training, as samples (B, T) for people to listen to, and their number."""
        ...


class Mels:
    """Log-mel features as Parakeet takes them; see `voxstill.nn.frontend`. Equal to a `Hearing`."""

    frame_ms = FRAME_MS
    hears_mels = aligns = True
    longest_ms = None

    def __init__(self, cfg: Augment, noise_bank: NoiseBank | None = None, num_mels: int = NUM_MELS) -> None:
        self._cfg, self._noise_bank = cfg, noise_bank or NoiseBank.of([], [])
        self.frontend = Frontend(num_mels)

    @property
    def extractor(self) -> Mapping[str, Any]:
        """What `transformers` calls a ParakeetFeatureExtractor."""
        return {**EXTRACTOR, "feature_size": self.frontend.num_mels}

    def frames(self, num_samples: Any, tempo: Any = None) -> Any:
        """One for 80 ms, rounded up; it is feature frames that are stretched."""
        features = feature_frames(num_samples)
        return output_frames(features if tempo is None else _stretched(features, tempo))

    def move(self, device: torch.device) -> None:
        """Move the filters and the noise bank to a device."""
        self.frontend.to(device)
        self._noise_bank = self._noise_bank.to(device)

    def plain(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised features (B, F, D) and their frames (B,)."""
        features_BFD, frames_B = self.frontend(audio_BT, audio_len_B)
        return features_BFD, frames_B

    def augmented(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, progress: float, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rooms, recorded noise and gain on samples; tempo, vocal tract, noise that is made and masks on features."""
        mel_BFD, frames_B, before_B = self.disturbed(audio_BT, audio_len_B, tempo_B, generator)
        features_BFD = normalise(mel_BFD, frames_B)
        if progress >= self._cfg.spec_augment_start:
            features_BFD = augment.mask_spans(features_BFD, frames_B, self._cfg, generator)
        return features_BFD, frames_B, FRAME_MS * before_B / frames_B.clamp(min=1)

    def disturbed(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-mels (B, F, D) before they are normalised, their frames (B,), and those before the tempo (B,)."""
        cfg, noise_bank, num = self._cfg, self._noise_bank, len(audio_BT)
        wave_BT = waves.full_scale(audio_BT)
        recorded_B, made_B = waves.which_noise(num, cfg, noise_bank, generator)
        wave_BT = waves.in_rooms(wave_BT, audio_len_B, cfg, noise_bank, generator)
        wave_BT = waves.with_recorded(wave_BT, audio_len_B, recorded_B, cfg, noise_bank, generator)
        mel_BFD, before_B = self.frontend.log_mel(waves.gained(wave_BT, cfg, generator), audio_len_B)
        mel_BFD, frames_B = augment.stretch(mel_BFD, before_B, tempo_B)
        mel_BFD = augment.warp_mels(mel_BFD, augment.uniform(generator, (num,), 1 - cfg.vtlp, 1 + cfg.vtlp))
        return augment.add_noise(mel_BFD, frames_B, made_B, cfg, generator), frames_B, before_B

    def audible(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Samples with these features; what a student cannot tell apart, such as phases, is made up."""
        mel_BFD, frames_B, _ = self.disturbed(audio_BT, audio_len_B, tempo_B, generator)
        features_BFD = normalise(mel_BFD, frames_B)
        masked_BFD = augment.mask_spans(features_BFD, frames_B, self._cfg, generator)
        mean_B1D = torch.stack([mel_FD[:frames].mean(0) for mel_FD, frames in zip(mel_BFD, frames_B, strict=True)])
        heard_BFD = torch.where(masked_BFD == features_BFD, mel_BFD, mean_B1D[:, None])
        return self.frontend.sounding(heard_BFD, frames_B, generator), frames_B * HOP


class Samples:
    """Samples as wav2vec 2.0 and its kin take them; a stack of convolutions makes frames of them. A `Hearing`.

    Masks are the model's own, as its checkpoint has them.
    """

    hears_mels, aligns = False, True
    longest_ms = None

    def __init__(
        self,
        cfg: Augment,
        noise_bank: NoiseBank | None = None,
        *,
        kernels: Sequence[int],
        strides: Sequence[int],
        normalises: bool = True,
    ) -> None:
        self._cfg, self._noise_bank = cfg, noise_bank or NoiseBank.of([], [])
        self._layers, self._normalises = (tuple(kernels), tuple(strides)), normalises
        self.frame_ms = int(np.prod(strides)) * 1000 // RATE_HZ

    @property
    def extractor(self) -> Mapping[str, Any]:
        """What `transformers` calls a Wav2Vec2FeatureExtractor."""
        return {
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "do_normalize": self._normalises,
            "feature_size": 1,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": RATE_HZ,
        }

    def frames(self, num_samples: Any, tempo: Any = None) -> Any:
        """What the convolutions leave, which pad nothing."""
        return conv_frames(num_samples if tempo is None else _stretched(num_samples, tempo), *self._layers)

    def move(self, device: torch.device) -> None:
        """Move the noise bank to a device."""
        self._noise_bank = self._noise_bank.to(device)

    def plain(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """Samples (B, T), of zero mean and unit deviation where the model was trained so, and their number (B,)."""
        return self._scaled(waves.full_scale(audio_BT), audio_len_B), audio_len_B

    def augmented(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, progress: float, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Speed, rooms, noise and gain."""
        wave_BT, len_B = self.disturbed(audio_BT, audio_len_B, tempo_B, generator)
        return self._scaled(wave_BT, len_B), len_B, self.frame_ms * audio_len_B / len_B

    def disturbed(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Samples (B, T) before they are scaled, and their number (B,)."""
        cfg, noise_bank = self._cfg, self._noise_bank
        wave_BT, len_B = waves.full_scale(audio_BT), audio_len_B
        if cfg.tempo:
            wave_BT, len_B = waves.speed(wave_BT, len_B, tempo_B)
        recorded_B, made_B = waves.which_noise(len(wave_BT), cfg, noise_bank, generator)
        wave_BT = waves.in_rooms(wave_BT, len_B, cfg, noise_bank, generator)
        wave_BT = waves.with_recorded(wave_BT, len_B, recorded_B, cfg, noise_bank, generator)
        if cfg.noise_prob:
            wave_BT = waves.with_made(wave_BT, len_B, made_B, cfg, generator)
        return waves.gained(wave_BT, cfg, generator), len_B

    def audible(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """The samples before they are scaled."""
        return self.disturbed(audio_BT, audio_len_B, tempo_B, generator)

    def _scaled(self, wave_BT: Tensor, len_B: Tensor) -> Tensor:
        if not self._normalises:
            return wave_BT
        own_BT, count_B1 = waves.own(len_B, wave_BT.shape[1]), len_B[:, None].clamp(min=1)
        centred_BT = (wave_BT - (wave_BT * own_BT).sum(1, keepdim=True) / count_B1) * own_BT
        variance_B1 = centred_BT.square().sum(1, keepdim=True) / count_B1
        return centred_BT / (variance_B1 + _VARIANCE_FLOOR).sqrt()


class Windows:
    """Log-mel features of 30 s, silence behind the speech, as Whisper takes them (Radford et al. 2022). A `Hearing`."""

    hears_mels, aligns = False, False
    longest_ms = 30_000

    frame_ms = 20

    def __init__(self, cfg: Augment, noise_bank: NoiseBank | None = None, num_mels: int = 80) -> None:
        self._cfg, self._samples = cfg, Samples(cfg, noise_bank, kernels=(), strides=())
        self._window, self._mels_DN = torch.hann_window(_WHISPER_FFT), mel_filters(num_mels, _WHISPER_FFT)

    @property
    def extractor(self) -> Mapping[str, Any]:
        """What `transformers` calls a WhisperFeatureExtractor."""
        return {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": len(self._mels_DN),
            "chunk_length": self.longest_ms // 1000,
            "hop_length": HOP,
            "n_fft": _WHISPER_FFT,
            "padding_value": 0.0,
            "return_attention_mask": False,
            "sampling_rate": RATE_HZ,
        }

    def frames(self, num_samples: Any, tempo: Any = None) -> Any:
        """One for 20 ms, rounded up."""
        return -(-(num_samples if tempo is None else _stretched(num_samples, tempo)) // (2 * HOP))

    def move(self, device: torch.device) -> None:
        """Move the filters and the noise bank to a device."""
        self._samples.move(device)
        self._window, self._mels_DN = self._window.to(device), self._mels_DN.to(device)

    def plain(self, audio_BT: Tensor, audio_len_B: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, D, F) and how many frames of them are speech (B,)."""
        return self._features(waves.full_scale(audio_BT)), audio_len_B // HOP

    def augmented(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, progress: float, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Speed, rooms, noise and gain on samples, masks on features."""
        wave_BT, len_B = self._samples.disturbed(audio_BT, audio_len_B, tempo_B, generator)
        features_BFD = self._features(wave_BT).transpose(1, 2)
        if progress >= self._cfg.spec_augment_start:
            features_BFD = augment.mask_spans(features_BFD, len_B // HOP, self._cfg, generator)
        return features_BFD.transpose(1, 2), len_B // HOP, self.frame_ms * audio_len_B / len_B

    def audible(
        self, audio_BT: Tensor, audio_len_B: Tensor, tempo_B: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """The samples that features are made of."""
        return self._samples.audible(audio_BT, audio_len_B, tempo_B, generator)

    def _features(self, wave_BT: Tensor) -> Tensor:
        num_samples = self.longest_ms * RATE_HZ // 1000
        wave_BT = functional.pad(wave_BT[:, :num_samples], (0, max(num_samples - wave_BT.shape[1], 0)))
        stft_BNF = torch.stft(wave_BT, _WHISPER_FFT, HOP, window=self._window, return_complex=True)[..., :-1]
        mel_BDF = self._mels_DN @ (stft_BNF.real.square() + stft_BNF.imag.square())
        log_BDF = mel_BDF.clamp(min=1e-10).log10()
        return (torch.maximum(log_BDF, log_BDF.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


def conv_frames(num_samples: Any, kernels: Sequence[int], strides: Sequence[int]) -> Any:
    """Frames after a stack of convolutions without padding (arrays or tensors of any shape)."""
    count = num_samples
    for kernel, stride in zip(kernels, strides, strict=True):
        count = (count - kernel) // stride + 1
    return count * (count > 0)


def _stretched(count: Any, tempo: Any) -> Any:
    """floor(count * tempo) in single precision, at least 1: the same on the host and on the device."""
    if isinstance(count, Tensor):
        return (count.float() * tempo).floor().long().clamp(min=1)
    return np.maximum(np.floor(np.float32(count) * tempo), 1).astype(np.int64)
