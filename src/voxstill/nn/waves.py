"""What is done to samples while training; every draw comes from the generator given.

All of it works on a whole batch padded with zeros, on the device, and what is padding stays zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from voxstill.config import Augment
from voxstill.nn.augment import BABBLE_SHARE, TALKERS, uniform

RECORDED_SHARE = 0.5
"""Share of noises that are recorded ones, where there are any."""
_BEFORE = 40  # samples before the peak of a response that belong to its direct sound
_TAPS = 8  # to each side of a sample that is interpolated
_ROLL_OFF = 0.95
_FAINTEST = 1e-5  # deviation of what counts as silence; full scale is 1


@dataclass(frozen=True)
class NoiseBank:
    """Recorded noises, one after another, and room responses: what `augment.noise` and `augment.rirs` name.

    `noise_T` is int16, recording r the `length_R[r]` samples from `start_R[r]` on. `rooms_RK` begins with the direct
    sound of each room.
    """

    noise_T: Tensor
    start_R: Tensor
    length_R: Tensor
    rooms_RK: Tensor

    @staticmethod
    def of(noises: list[Tensor], rooms: list[Tensor]) -> NoiseBank:
        """From int16 recordings and responses, each a tensor of its own; recordings without a sample are left out."""
        noises = [each for each in noises if len(each)]
        length_R = torch.tensor([len(each) for each in noises], dtype=torch.long)
        direct = [
            each.float()[max(int(each.abs().argmax()) - _BEFORE, 0) :] for each in rooms if len(each) and each.any()
        ]
        rooms_RK = torch.nn.utils.rnn.pad_sequence(direct, batch_first=True) if direct else torch.zeros(0, 1)
        return NoiseBank(
            torch.cat(noises) if noises else torch.zeros(0, dtype=torch.int16),
            length_R.cumsum(0) - length_R,
            length_R,
            functional.normalize(rooms_RK, dim=1),
        )

    def to(self, device: torch.device) -> NoiseBank:
        """The same on a device."""
        return NoiseBank(*(each.to(device) for each in (self.noise_T, self.start_R, self.length_R, self.rooms_RK)))


def full_scale(audio_BT: Tensor) -> Tensor:
    """int16 or float audio as floats, full scale 1."""
    return audio_BT.float() / 32768.0 if audio_BT.dtype == torch.int16 else audio_BT.float()


def own(len_B: Tensor, num_samples: int) -> Tensor:
    """(B, T) booleans, true where a sample belongs to the utterance."""
    return torch.arange(num_samples, device=len_B.device)[None] < len_B[:, None]


def power(wave_BT: Tensor, len_B: Tensor) -> Tensor:
    """Mean square of each utterance's own samples (B,); padding must be zero."""
    return wave_BT.square().sum(1) / len_B.clamp(min=1)


def speed(wave_BT: Tensor, len_B: Tensor, factor_B: Tensor) -> tuple[Tensor, Tensor]:
    """Each utterance made `factor` times as long by resampling, which lowers or raises its pitch as well.

    Band-limited interpolation (Smith and Gossett 1984), 16 samples wide, low-pass at the lower of both rates. A length
    is floor(length * factor) in single precision, at least 1.
    """
    new_B = (len_B * factor_B).floor().long().clamp(min=1)
    place_BT = torch.arange(int(new_B.max()), device=wave_BT.device)[None] / factor_B[:, None]
    whole_BT = place_BT.floor()
    cutoff_B1 = _ROLL_OFF * factor_B.clamp(max=1)[:, None]
    last, found_BT = wave_BT.shape[1] - 1, torch.zeros_like(place_BT)
    for tap in range(1 - _TAPS, _TAPS + 1):
        index_BT = whole_BT + tap
        apart_BT = place_BT - index_BT
        window_BT = (apart_BT * (math.pi / 2 / _TAPS)).cos().square()
        heard_BT = wave_BT.gather(1, index_BT.clamp(0, last).long()) * ((index_BT >= 0) & (index_BT <= last))
        found_BT += heard_BT * window_BT * torch.sinc(apart_BT * cutoff_B1) * cutoff_B1
    return found_BT * own(new_B, found_BT.shape[1]), new_B


def reverberate(wave_BT: Tensor, len_B: Tensor, rooms_BK: Tensor) -> Tensor:
    """Each utterance as it sounds in its room, no longer and as loud as before.

    A response begins with the direct sound, so words stay where they are.
    """
    num = wave_BT.shape[1]
    size = num + rooms_BK.shape[1] - 1
    wet_BT = torch.fft.irfft(torch.fft.rfft(wave_BT, size) * torch.fft.rfft(rooms_BK, size), size)[:, :num]
    wet_BT = wet_BT * own(len_B, num)
    gain_B = (power(wave_BT, len_B) / power(wet_BT, len_B).clamp(min=_FAINTEST**2)).sqrt()
    loud_BT: Tensor = wet_BT * gain_B[:, None]
    return loud_BT


def mix(wave_BT: Tensor, len_B: Tensor, noise_BT: Tensor, snr_db_B: Tensor) -> Tensor:
    """Utterances with noise at a ratio of their mean powers; silence, of either, adds nothing."""
    noise_BT = noise_BT * own(len_B, wave_BT.shape[1])
    speech_B, noise_B = power(wave_BT, len_B), power(noise_BT, len_B)
    gain_B = (speech_B / noise_B.clamp(min=_FAINTEST**2) * 10 ** (-snr_db_B / 10)).sqrt()
    return wave_BT + noise_BT * torch.where(noise_B > _FAINTEST**2, gain_B, 0)[:, None]


def recorded(noise_bank: NoiseBank, num: int, num_samples: int, generator: Generator) -> Tensor:
    """A random stretch of a random recording for each of `num` utterances (B, T), repeated where it ends too soon."""
    which_B = torch.randint(len(noise_bank.start_R), (num,), generator=generator, device=generator.device)
    length_B = noise_bank.length_R[which_B]
    from_B = (uniform(generator, (num,), 0, 1) * length_B).long()
    place_BT = (from_B[:, None] + torch.arange(num_samples, device=from_B.device)) % length_B[:, None]
    return full_scale(noise_bank.noise_T[noise_bank.start_R[which_B][:, None] + place_BT])


def coloured(num: int, num_samples: int, generator: Generator) -> Tensor:
    """Stationary noise from white to brown (B, T)."""
    white_BT = torch.randn(num, num_samples, generator=generator, device=generator.device)
    fall_B = uniform(generator, (num,), 0.0, 2.0)  # power goes with frequency to the minus this: 0 white, 1 pink
    spectrum_BN = torch.fft.rfft(white_BT)
    rank_N = torch.arange(spectrum_BN.shape[1], device=fall_B.device).clamp(min=1)
    made_BT: Tensor = torch.fft.irfft(spectrum_BN * rank_N ** (-fall_B[:, None] / 2), num_samples)
    return made_BT


def babble(wave_BT: Tensor, len_B: Tensor) -> Tensor:
    """Up to four other utterances of the batch at once, each repeated so that none ends before the speech (B, T)."""
    num, num_samples = wave_BT.shape
    place_T, found_BT = torch.arange(num_samples, device=wave_BT.device), torch.zeros_like(wave_BT)
    for talker in range(1, min(TALKERS, num - 1) + 1):
        other_B = torch.roll(torch.arange(num, device=wave_BT.device), talker)
        found_BT += wave_BT[other_B].gather(1, place_T[None] % len_B[other_B].clamp(min=1)[:, None])
    return found_BT


def in_rooms(wave_BT: Tensor, len_B: Tensor, cfg: Augment, noise_bank: NoiseBank, generator: Generator) -> Tensor:
    """A share of the utterances in a random room, the others as they are."""
    if not len(noise_bank.rooms_RK) or not cfg.rir_prob:
        return wave_BT
    which_B = torch.randint(len(noise_bank.rooms_RK), (len(wave_BT),), generator=generator, device=generator.device)
    wet_BT = reverberate(wave_BT, len_B, noise_bank.rooms_RK[which_B])
    chosen_B = uniform(generator, (len(wave_BT),), 0, 1) < cfg.rir_prob
    return torch.where(chosen_B[:, None], wet_BT, wave_BT)


def gained(wave_BT: Tensor, cfg: Augment, generator: Generator) -> Tensor:
    """Each utterance louder or fainter by up to `gain_db`."""
    if not cfg.gain_db:
        return wave_BT
    gain_db_B = uniform(generator, (len(wave_BT),), -cfg.gain_db, cfg.gain_db)
    return wave_BT * 10 ** (gain_db_B / 20)[:, None]


def which_noise(num: int, cfg: Augment, noise_bank: NoiseBank, generator: Generator) -> tuple[Tensor, Tensor]:
    """Which utterances get recorded noise and which get noise that is made, (B,) each; none gets both."""
    noisy_B = uniform(generator, (num,), 0, 1) < cfg.noise_prob
    recorded_B = uniform(generator, (num,), 0, 1) < (RECORDED_SHARE if len(noise_bank.start_R) else 0)
    return noisy_B & recorded_B, noisy_B & ~recorded_B


def with_recorded(
    wave_BT: Tensor, len_B: Tensor, chosen_B: Tensor, cfg: Augment, noise_bank: NoiseBank, generator: Generator
) -> Tensor:
    """The chosen utterances with recorded noise at a drawn ratio."""
    if not len(noise_bank.start_R):
        return wave_BT
    noise_BT = recorded(noise_bank, len(wave_BT), wave_BT.shape[1], generator)
    snr_db_B = uniform(generator, (len(wave_BT),), cfg.min_snr_db, cfg.max_snr_db)
    return torch.where(chosen_B[:, None], mix(wave_BT, len_B, noise_BT, snr_db_B), wave_BT)


def with_made(wave_BT: Tensor, len_B: Tensor, chosen_B: Tensor, cfg: Augment, generator: Generator) -> Tensor:
    """The chosen utterances with others of the batch, or coloured noise, behind them at a drawn ratio."""
    num, num_samples = wave_BT.shape
    noise_BT = coloured(num, num_samples, generator)
    if num > 1:
        babble_B = uniform(generator, (num,), 0, 1) < BABBLE_SHARE
        noise_BT = torch.where(babble_B[:, None], babble(wave_BT, len_B), noise_BT)
    snr_db_B = uniform(generator, (num,), cfg.min_snr_db, cfg.max_snr_db)
    return torch.where(chosen_B[:, None], mix(wave_BT, len_B, noise_BT, snr_db_B), wave_BT)
