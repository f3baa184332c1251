"""Augmentation of log-mel features: tempo, VTLP, noise and SpecAugment; draws come from the generator passed in.

All functions work on a whole padded batch on its device. Noise is added as power in the mel bands, which is exact up to
the phase between speech and noise.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Generator, Tensor

from voxstill.core.config import Augment
from voxstill.core.records import RATE_HZ
from voxstill.nn.log_mel import frame_mask, mel_filters
from voxstill.nn.mel import LOG_FLOOR, NUM_FFT, NUM_MELS, PREEMPHASIS, WINDOW

BABBLE_SHARE = 0.6
"""Share of synthetic noises that are babble, made of other utterances of the batch."""
TALKERS = 4
"""The most utterances in babble."""


def uniform(generator: Generator, size: tuple[int, ...], low: float, high: float) -> Tensor:
    """Draw uniformly from [low, high) on the generator's device."""
    return torch.rand(size, generator=generator, device=generator.device) * (high - low) + low


def word_runs(
    first_BU: Tensor, token_len_B: Tensor, timed_B: Tensor, prob: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Choose a random run of whole words in a share of the utterances; returns first and end tokens, (B,) each.

    `first_BU` is true where a token begins a word. Utterances that are not chosen, or without times (`timed_B`), keep
    all of their tokens.
    """
    num, longest = first_BU.shape
    position_U = torch.arange(longest, device=first_BU.device)
    first_BU = first_BU & (position_U < token_len_B[:, None])
    word_BU = first_BU.cumsum(1) - 1
    num_words_B = first_BU.sum(1)
    length_B = (uniform(generator, (num,), 0, 1) * num_words_B).floor().long() + 1
    start_B = (uniform(generator, (num,), 0, 1) * (num_words_B - length_B + 1)).floor().long()
    cut_B = timed_B & (num_words_B > 1) & (uniform(generator, (num,), 0, 1) < prob)
    inside_BU = (word_BU >= start_B[:, None]) & (word_BU < (start_B + length_B)[:, None])
    inside_BU &= position_U < token_len_B[:, None]
    begin_B = torch.where(cut_B, inside_BU.to(torch.uint8).argmax(1), 0)
    return begin_B, torch.where(cut_B, begin_B + inside_BU.sum(1), token_len_B)


def stretch(mel_BFD: Tensor, frames_B: Tensor, factor_B: Tensor) -> tuple[Tensor, Tensor]:
    """Make each utterance `factor` times as long, by interpolation between its own frames; returns new frame counts."""
    new_B = (frames_B * factor_B).floor().long().clamp(min=1)
    position_BF = (
        torch.arange(int(new_B.max()), device=mel_BFD.device)[None]
        * ((frames_B - 1).clamp(min=0) / (new_B - 1).clamp(min=1))[:, None]
    )
    position_BF = torch.minimum(position_BF, (frames_B - 1).clamp(min=0)[:, None].to(position_BF.dtype))
    low_BF = position_BF.floor().long()
    high_BF = torch.minimum(low_BF + 1, (frames_B - 1).clamp(min=0)[:, None])
    share_BF1 = (position_BF - low_BF)[..., None]
    index = [frame_BF[..., None].expand(-1, -1, mel_BFD.shape[2]) for frame_BF in (low_BF, high_BF)]
    return torch.lerp(mel_BFD.gather(1, index[0]), mel_BFD.gather(1, index[1]), share_BF1), new_B


def vtlp(mel_BFD: Tensor, factor_B: Tensor) -> Tensor:
    """VTLP: read the mel axis at `factor` times its position, as of another vocal tract (Jaitly and Hinton 2013)."""
    num_mels = mel_BFD.shape[2]
    position_BD = (torch.arange(num_mels, device=mel_BFD.device)[None] * factor_B[:, None]).clamp(max=num_mels - 1)
    low_BD = position_BD.floor().long()
    high_BD = (low_BD + 1).clamp(max=num_mels - 1)
    index = [bin_BD[:, None].expand(-1, mel_BFD.shape[1], -1) for bin_BD in (low_BD, high_BD)]
    return torch.lerp(mel_BFD.gather(2, index[0]), mel_BFD.gather(2, index[1]), (position_BD - low_BD)[:, None])


def coloured_noise(generator: Generator, num: int, num_frames: int, num_mels: int) -> Tensor:
    """Draw log-mels (B, F, D) of noise from white to brown, pre-emphasised and with a periodogram's variance."""
    centre_D, num_bins_D = bands(num_mels, generator.device)
    slope_B = uniform(generator, (num,), 0.0, 2.0)  # power goes with frequency to the minus this: 0 white, 1 pink
    mean_BD = preemphasis_gain(centre_D).log() - slope_B[:, None] * (centre_D / 1000).log()
    # measured on white noise: the logarithm of a mean over n bins has a deviation of about 1.25 / sqrt(n)
    white_BFD = torch.randn(num, num_frames, num_mels, generator=generator, device=generator.device)
    return mean_BD[:, None] + white_BFD * 1.25 / num_bins_D.sqrt()


@functools.cache
def bands(num_mels: int = NUM_MELS, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Centre frequency in Hz of each mel band, and its number of independent FFT bins (at least 1), on a device."""
    filters_DN = mel_filters(num_mels).double()
    hz_N = torch.arange(filters_DN.shape[1]) * (RATE_HZ / NUM_FFT)
    weight_D = filters_DN.sum(1)
    num_bins_D = weight_D.square() / filters_DN.square().sum(1) * (WINDOW / NUM_FFT)
    centre_D = (filters_DN @ hz_N.double()) / weight_D
    return centre_D.float().to(device), num_bins_D.clamp(min=1).float().to(device)


def preemphasis_gain(hz_D: Tensor) -> Tensor:
    """Factor by which pre-emphasis multiplies the power at a frequency."""
    return 1 + PREEMPHASIS**2 - 2 * PREEMPHASIS * torch.cos(2 * math.pi * hz_D / RATE_HZ)


def babble(mel_BFD: Tensor, frames_B: Tensor) -> Tensor:
    """Log-mels of babble (B, F, D) for each utterance: the sum of up to `TALKERS` others, looped to its length."""
    num, num_frames, _ = mel_BFD.shape
    position_F = torch.arange(num_frames, device=mel_BFD.device)
    voice_BFD, power_BFD = mel_BFD.exp(), torch.zeros_like(mel_BFD)
    for talker in range(1, min(TALKERS, num - 1) + 1):
        other_B = torch.roll(torch.arange(num, device=mel_BFD.device), talker)
        turn_BF = position_F[None] % frames_B[other_B].clamp(min=1)[:, None]
        power_BFD += voice_BFD[other_B[:, None], turn_BF]
    return power_BFD.clamp(min=LOG_FLOOR).log()


def add_noise(mel_BFD: Tensor, frames_B: Tensor, chosen_B: Tensor, cfg: Augment, generator: Generator) -> Tensor:
    """Add babble or coloured noise to the chosen utterances at a random signal-to-noise ratio."""
    num, num_frames, num_mels = mel_BFD.shape
    mask_BF = frame_mask(frames_B, num_frames)
    noise_BFD = coloured_noise(generator, num, num_frames, num_mels)
    if num > 1:
        babble_B = uniform(generator, (num,), 0, 1) < BABBLE_SHARE
        noise_BFD = torch.where(babble_B[:, None, None], babble(mel_BFD, frames_B), noise_BFD)
    centre_D, num_bins_D = bands(num_mels, mel_BFD.device)
    weight_D = num_bins_D / preemphasis_gain(centre_D)  # back to the power of the audio itself

    def power(log_BFD: Tensor) -> Tensor:
        return ((log_BFD.exp() @ weight_D) * mask_BF).sum(1).clamp(min=1e-12)

    snr_B = uniform(generator, (num,), cfg.min_snr_db, cfg.max_snr_db)
    gain_B = power(mel_BFD).log() - power(noise_BFD).log() - snr_B * (math.log(10) / 10)
    noisy_BFD = torch.logaddexp(mel_BFD, noise_BFD + gain_B[:, None, None])
    return torch.where(chosen_B[:, None, None], noisy_BFD, mel_BFD)


def vary_level(features_BFD: Tensor, frames_B: Tensor, cfg: Augment, generator: Generator) -> Tensor:
    """Make log-mels of each utterance louder or fainter by up to `cfg.gain_db`; padding stays zero."""
    if not cfg.gain_db:
        return features_BFD
    gain_db_B = uniform(generator, (len(features_BFD),), -cfg.gain_db, cfg.gain_db)
    mask_BF = frame_mask(frames_B, features_BFD.shape[1])
    return features_BFD + (gain_db_B[:, None] * mask_BF * (math.log(10) / 10))[..., None]


def spec_augment(features_BFD: Tensor, frames_B: Tensor, cfg: Augment, generator: Generator) -> Tensor:
    """SpecAugment (Park et al. 2019): set random spans of time and of mel bands to zero, the mean of the features.

    A time mask is at most a fifth of the utterance.
    """
    num, num_frames, num_mels = features_BFD.shape
    keep_BFD = torch.ones_like(features_BFD, dtype=torch.bool)
    frame_F = torch.arange(num_frames, device=features_BFD.device)[None]
    for _ in range(cfg.time_masks):
        longest_B = torch.minimum(frames_B.float() / 5, torch.full_like(frames_B, cfg.time_mask_ms // 10).float())
        width_B = uniform(generator, (num,), 0, 1) * longest_B
        start_B = uniform(generator, (num,), 0, 1) * (frames_B - width_B)
        hidden_BF = (frame_F >= start_B[:, None]) & (frame_F < (start_B + width_B)[:, None])
        keep_BFD &= ~hidden_BF[..., None]
    band_D = torch.arange(num_mels, device=features_BFD.device)[None]
    for _ in range(cfg.mel_masks):
        width_B = uniform(generator, (num,), 0, cfg.mel_mask_bins + 1)
        start_B = uniform(generator, (num,), 0, 1) * (num_mels - width_B)
        keep_BFD &= ~((band_D >= start_B[:, None]) & (band_D < (start_B + width_B)[:, None]))[:, None]
    return features_BFD * keep_BFD
