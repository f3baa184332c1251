"""Augmentation of waveforms: speed, reverberation, noise and gain; every draw comes from the generator passed in.

All functions work on a whole batch padded with zeros, on its device, and padding stays zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from voxstill.core import pcm
from voxstill.core.config import Augment
from voxstill.nn.augment_features import BABBLE_SHARE, TALKERS, uniform

RECORDED_SHARE = 0.5
"""Share of noises that are recordings, where there are any."""
_SAMPLES_BEFORE_PEAK = 40  # of a room impulse response; they belong to its direct sound
_TAPS = 8  # of the interpolation filter, to each side
_ROLL_OFF = 0.95
_SILENCE = 1e-5  # root mean square below which audio counts as silent; full scale is 1


@dataclass(frozen=True)
class NoiseBank:
    """Noise recordings, concatenated, and room impulse responses: those of `augment.noise` and `augment.rirs`.

    `noise_T` is int16; recording r is the `length_R[r]` samples from `start_R[r]` on. Each response in `rir_RK`
    begins with its direct sound.
    """

    noise_T: Tensor
    start_R: Tensor
    length_R: Tensor
    rir_RK: Tensor

    @staticmethod
    def from_recordings(noises: list[Tensor], rirs: list[Tensor]) -> NoiseBank:
        """Build the bank from one int16 tensor for each recording and each response; empty recordings are left out."""
        noises = [noise for noise in noises if len(noise)]
        length_R = torch.tensor([len(noise) for noise in noises], dtype=torch.long)
        direct = [
            response.float()[max(int(response.abs().argmax()) - _SAMPLES_BEFORE_PEAK, 0) :]
            for response in rirs
            if len(response) and response.any()
        ]
        rir_RK = torch.nn.utils.rnn.pad_sequence(direct, batch_first=True) if direct else torch.zeros(0, 1)
        return NoiseBank(
            torch.cat(noises) if noises else torch.zeros(0, dtype=torch.int16),
            length_R.cumsum(0) - length_R,
            length_R,
            functional.normalize(rir_RK, dim=1),
        )

    def to(self, device: torch.device) -> NoiseBank:
        """A copy on a device."""
        return NoiseBank(
            self.noise_T.to(device), self.start_R.to(device), self.length_R.to(device), self.rir_RK.to(device)
        )


def sample_mask(len_B: Tensor, num_samples: int) -> Tensor:
    """Mask (B, T), true where a sample belongs to the utterance and is not padding."""
    return torch.arange(num_samples, device=len_B.device)[None] < len_B[:, None]


def power(wave_BT: Tensor, len_B: Tensor) -> Tensor:
    """Mean square of each utterance's own samples (B,); padding must be zero."""
    return wave_BT.square().sum(1) / len_B.clamp(min=1)


def speed_perturb(wave_BT: Tensor, len_B: Tensor, factor_B: Tensor) -> tuple[Tensor, Tensor]:
    """Speed perturbation: make each utterance `factor` times as long by resampling, which changes its pitch as well.

    Band-limited interpolation (Smith and Gossett 1984), 16 samples wide, low-pass at the lower of both rates. A length
    is floor(length * factor) in single precision, at least 1.
    """
    new_B = (len_B * factor_B).floor().long().clamp(min=1)
    position_BT = torch.arange(int(new_B.max()), device=wave_BT.device)[None] / factor_B[:, None]
    first_BT = position_BT.floor()
    cutoff_B1 = _ROLL_OFF * factor_B.clamp(max=1)[:, None]
    last, resampled_BT = wave_BT.shape[1] - 1, torch.zeros_like(position_BT)
    for tap in range(1 - _TAPS, _TAPS + 1):
        index_BT = first_BT + tap
        distance_BT = position_BT - index_BT
        window_BT = (distance_BT * (math.pi / 2 / _TAPS)).cos().square()
        sample_BT = wave_BT.gather(1, index_BT.clamp(0, last).long()) * ((index_BT >= 0) & (index_BT <= last))
        resampled_BT += sample_BT * window_BT * torch.sinc(distance_BT * cutoff_B1) * cutoff_B1
    return resampled_BT * sample_mask(new_B, resampled_BT.shape[1]), new_B


def reverberate(wave_BT: Tensor, len_B: Tensor, rir_BK: Tensor) -> Tensor:
    """Convolve each utterance with its room impulse response; lengths and loudness stay as they were.

    A response begins with the direct sound, so the times of words stay.
    """
    num_samples = wave_BT.shape[1]
    size = num_samples + rir_BK.shape[1] - 1
    wet_BT = torch.fft.irfft(torch.fft.rfft(wave_BT, size) * torch.fft.rfft(rir_BK, size), size)[:, :num_samples]
    wet_BT = wet_BT * sample_mask(len_B, num_samples)
    gain_B = (power(wave_BT, len_B) / power(wet_BT, len_B).clamp(min=_SILENCE**2)).sqrt()
    scaled_BT: Tensor = wet_BT * gain_B[:, None]
    return scaled_BT


def mix(wave_BT: Tensor, len_B: Tensor, noise_BT: Tensor, snr_db_B: Tensor) -> Tensor:
    """Add noise to utterances at a signal-to-noise ratio of mean powers; nothing is added where either is silent."""
    noise_BT = noise_BT * sample_mask(len_B, wave_BT.shape[1])
    speech_B, noise_B = power(wave_BT, len_B), power(noise_BT, len_B)
    gain_B = (speech_B / noise_B.clamp(min=_SILENCE**2) * 10 ** (-snr_db_B / 10)).sqrt()
    return wave_BT + noise_BT * torch.where(noise_B > _SILENCE**2, gain_B, 0)[:, None]


def recorded(noise_bank: NoiseBank, num: int, num_samples: int, generator: Generator) -> Tensor:
    """Draw a stretch of a random noise recording for each of `num` utterances (B, T); short recordings are looped."""
    recording_B = torch.randint(len(noise_bank.start_R), (num,), generator=generator, device=generator.device)
    length_B = noise_bank.length_R[recording_B]
    offset_B = (uniform(generator, (num,), 0, 1) * length_B).long()
    position_BT = (offset_B[:, None] + torch.arange(num_samples, device=offset_B.device)) % length_B[:, None]
    return pcm.to_wave(noise_bank.noise_T[noise_bank.start_R[recording_B][:, None] + position_BT])


def coloured(num: int, num_samples: int, generator: Generator) -> Tensor:
    """Draw stationary noise from white to brown (B, T)."""
    white_BT = torch.randn(num, num_samples, generator=generator, device=generator.device)
    slope_B = uniform(generator, (num,), 0.0, 2.0)  # power goes with frequency to the minus this: 0 white, 1 pink
    spectrum_BN = torch.fft.rfft(white_BT)
    bin_N = torch.arange(spectrum_BN.shape[1], device=slope_B.device).clamp(min=1)
    noise_BT: Tensor = torch.fft.irfft(spectrum_BN * bin_N ** (-slope_B[:, None] / 2), num_samples)
    return noise_BT


def babble(wave_BT: Tensor, len_B: Tensor) -> Tensor:
    """Babble noise (B, T) for each utterance: the sum of up to four others of the batch, looped to its length."""
    num, num_samples = wave_BT.shape
    position_T, babble_BT = torch.arange(num_samples, device=wave_BT.device), torch.zeros_like(wave_BT)
    for talker in range(1, min(TALKERS, num - 1) + 1):
        other_B = torch.roll(torch.arange(num, device=wave_BT.device), talker)
        babble_BT += wave_BT[other_B].gather(1, position_T[None] % len_B[other_B].clamp(min=1)[:, None])
    return babble_BT


def reverberate_some(
    wave_BT: Tensor, len_B: Tensor, cfg: Augment, noise_bank: NoiseBank, generator: Generator
) -> Tensor:
    """Reverberate a random share of the utterances, each with a random room impulse response."""
    if not len(noise_bank.rir_RK) or not cfg.rir_prob:
        return wave_BT
    rir_B = torch.randint(len(noise_bank.rir_RK), (len(wave_BT),), generator=generator, device=generator.device)
    wet_BT = reverberate(wave_BT, len_B, noise_bank.rir_RK[rir_B])
    chosen_B = uniform(generator, (len(wave_BT),), 0, 1) < cfg.rir_prob
    return torch.where(chosen_B[:, None], wet_BT, wave_BT)


def apply_gain(wave_BT: Tensor, cfg: Augment, generator: Generator) -> Tensor:
    """Make each utterance louder or quieter by up to `cfg.gain_db`."""
    if not cfg.gain_db:
        return wave_BT
    gain_db_B = uniform(generator, (len(wave_BT),), -cfg.gain_db, cfg.gain_db)
    return wave_BT * 10 ** (gain_db_B / 20)[:, None]


def choose_noise(num: int, cfg: Augment, noise_bank: NoiseBank, generator: Generator) -> tuple[Tensor, Tensor]:
    """Choose the utterances that get recorded noise and those that get synthetic noise, (B,) each; none gets both."""
    noisy_B = uniform(generator, (num,), 0, 1) < cfg.noise_prob
    recorded_B = uniform(generator, (num,), 0, 1) < (RECORDED_SHARE if len(noise_bank.start_R) else 0)
    return noisy_B & recorded_B, noisy_B & ~recorded_B


def add_recorded_noise(
    wave_BT: Tensor, len_B: Tensor, chosen_B: Tensor, cfg: Augment, noise_bank: NoiseBank, generator: Generator
) -> Tensor:
    """Add recorded noise to the chosen utterances at a random signal-to-noise ratio."""
    if not len(noise_bank.start_R):
        return wave_BT
    noise_BT = recorded(noise_bank, len(wave_BT), wave_BT.shape[1], generator)
    snr_db_B = uniform(generator, (len(wave_BT),), cfg.min_snr_db, cfg.max_snr_db)
    return torch.where(chosen_B[:, None], mix(wave_BT, len_B, noise_BT, snr_db_B), wave_BT)


def add_synthetic_noise(wave_BT: Tensor, len_B: Tensor, chosen_B: Tensor, cfg: Augment, generator: Generator) -> Tensor:
    """Add babble of the batch or coloured noise to the chosen utterances at a random signal-to-noise ratio."""
    num, num_samples = wave_BT.shape
    noise_BT = coloured(num, num_samples, generator)
    if num > 1:
        babble_B = uniform(generator, (num,), 0, 1) < BABBLE_SHARE
        noise_BT = torch.where(babble_B[:, None], babble(wave_BT, len_B), noise_BT)
    snr_db_B = uniform(generator, (num,), cfg.min_snr_db, cfg.max_snr_db)
    return torch.where(chosen_B[:, None], mix(wave_BT, len_B, noise_BT, snr_db_B), wave_BT)
