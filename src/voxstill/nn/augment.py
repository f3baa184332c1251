"""What is done to log-mel features while training; every draw comes from the generator given.

All of it works on a whole padded batch on the device. Noise is added as power in the mel bands, which is exact up to
the phase between speech and noise.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from voxstill.config import Augment
from voxstill.nn.frontend import NUM_MELS, frame_mask

SPEECH_SHARE = 0.4
"""Share of noises that are other utterances of the batch: babble."""


def uniform(generator: Generator, size: tuple[int, ...], low: float, high: float) -> Tensor:
    """Draws from [low, high) on the generator's device."""
    return torch.rand(size, generator=generator, device=generator.device) * (high - low) + low


def word_runs(
    first_BU: Tensor, token_len_B: Tensor, timed_B: Tensor, prob: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """First token and the one past the last (B,) of a random run of whole words, everything for the others.

    `first_BU` is true where a token begins a word. Only utterances whose times are known are cut.
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
    """Each utterance made `factor` times as long, by interpolation between its own frames."""
    new_B = (frames_B * factor_B).floor().long().clamp(min=1)
    position_BF = (
        torch.arange(int(new_B.max()), device=mel_BFD.device)[None]
        * ((frames_B - 1).clamp(min=0) / (new_B - 1).clamp(min=1))[:, None]
    )
    position_BF = torch.minimum(position_BF, (frames_B - 1).clamp(min=0)[:, None].to(position_BF.dtype))
    low_BF = position_BF.floor().long()
    high_BF = torch.minimum(low_BF + 1, (frames_B - 1).clamp(min=0)[:, None])
    share_BF1 = (position_BF - low_BF)[..., None]
    index = [each[..., None].expand(-1, -1, mel_BFD.shape[2]) for each in (low_BF, high_BF)]
    return torch.lerp(mel_BFD.gather(1, index[0]), mel_BFD.gather(1, index[1]), share_BF1), new_B


def warp_mels(mel_BFD: Tensor, factor_B: Tensor) -> Tensor:
    """The mel axis read at `factor` times its position: a shorter or longer vocal tract (Jaitly and Hinton 2013)."""
    num_mels = mel_BFD.shape[2]
    position_BD = (torch.arange(num_mels, device=mel_BFD.device)[None] * factor_B[:, None]).clamp(max=num_mels - 1)
    low_BD = position_BD.floor().long()
    high_BD = (low_BD + 1).clamp(max=num_mels - 1)
    index = [each[:, None].expand(-1, mel_BFD.shape[1], -1) for each in (low_BD, high_BD)]
    return torch.lerp(mel_BFD.gather(2, index[0]), mel_BFD.gather(2, index[1]), (position_BD - low_BD)[:, None])


def coloured_noise(generator: Generator, num: int, num_frames: int, device: torch.device) -> Tensor:
    """Log-mel power of stationary noise between white and brown, with the scatter of a periodogram (B, F, D)."""
    slope_B = uniform(generator, (num,), -1.5, 0.3)
    band_D = torch.linspace(0, 1, NUM_MELS, device=device)
    octaves_D = torch.log2(0.05 + band_D)  # mel bands are about evenly spaced in pitch above 1 kHz
    tone_BD = slope_B[:, None] * octaves_D[None] * math.log(2)
    scatter_D = 0.9 - 0.5 * band_D  # narrow low bands hold few FFT bins, so they scatter more
    scatter_BFD = torch.randn(num, num_frames, NUM_MELS, generator=generator, device=device) * scatter_D
    return tone_BD[:, None] + scatter_BFD


def add_noise(mel_BFD: Tensor, frames_B: Tensor, cfg: Augment, generator: Generator) -> Tensor:
    """A share of the utterances gets noise at a drawn ratio; the others stay as they are."""
    num, num_frames, _ = mel_BFD.shape
    mask_BF = frame_mask(frames_B, num_frames)
    noise_BFD = coloured_noise(generator, num, num_frames, mel_BFD.device)
    if num > 1:
        other_B = torch.roll(torch.arange(num, device=mel_BFD.device), 1)
        # the other utterance is repeated as often as needed, so that babble never ends before the speech
        turn_BF = torch.arange(num_frames, device=mel_BFD.device)[None] % frames_B[other_B].clamp(min=1)[:, None]
        speech_BFD = mel_BFD[other_B].gather(1, turn_BF[..., None].expand(-1, -1, mel_BFD.shape[2]))
        babble_B = uniform(generator, (num,), 0, 1) < SPEECH_SHARE
        noise_BFD = torch.where(babble_B[:, None, None], speech_BFD, noise_BFD)
    count_B = (mask_BF.sum(1) * mel_BFD.shape[2]).clamp(min=1)

    def power(log_BFD: Tensor) -> Tensor:
        return ((log_BFD.exp() * mask_BF[..., None]).sum((1, 2)) / count_B).clamp(min=1e-12)

    snr_B = uniform(generator, (num,), cfg.min_snr_db, cfg.max_snr_db)
    gain_B = power(mel_BFD).log() - power(noise_BFD).log() - snr_B * (math.log(10) / 10)
    noisy_BFD = torch.logaddexp(mel_BFD, noise_BFD + gain_B[:, None, None])
    chosen_B = uniform(generator, (num,), 0, 1) < cfg.noise_prob
    return torch.where(chosen_B[:, None, None], noisy_BFD, mel_BFD)


def mask_spans(features_BFD: Tensor, frames_B: Tensor, cfg: Augment, generator: Generator) -> Tensor:
    """SpecAugment (Park et al. 2019): stretches of time and bands become zero, the mean of normalised features.

    A stretch of time is at most a fifth of the utterance.
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
