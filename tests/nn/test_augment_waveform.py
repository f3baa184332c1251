"""What is done to samples: tones stay tones, loudness is as drawn, padding stays zero, chance is the generator's."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from voxstill.audio import codec
from voxstill.core.config import Augment
from voxstill.nn import augment_waveform
from voxstill.nn.augment_waveform import NoiseBank

NOTHING = NoiseBank.from_recordings([], [])


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def tone(hz: float, num: int) -> Tensor:
    return torch.sin(2 * math.pi * hz * torch.arange(num) / 16_000)


def padded(lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    len_B = torch.tensor(lengths)
    wave_BT = torch.randn(len(lengths), max(lengths), generator=generator(seed))
    return wave_BT * augment_waveform.sample_mask(len_B, max(lengths)), len_B


@pytest.mark.parametrize("factor", [0.8, 0.9, 1.0, 1.1, 1.25])
@pytest.mark.parametrize("hz", [100.0, 1000.0, 4000.0])
def test_another_speed_is_another_pitch_and_nothing_else(factor: float, hz: float) -> None:
    output_BT, len_B = augment_waveform.speed_perturb(
        tone(hz, 8000)[None], torch.tensor([8000]), torch.tensor([factor])
    )
    assert len_B.tolist() == [math.floor(np.float32(8000) * np.float32(factor))] == [output_BT.shape[1]]
    expected_T = tone(hz / factor, output_BT.shape[1])
    error_T = (output_BT[0] - expected_T)[50:-50]
    assert 10 * math.log10(error_T.square().mean() / expected_T.square().mean()) < -40


def test_a_higher_speed_does_not_alias() -> None:
    output_BT, _ = augment_waveform.speed_perturb(tone(7500, 8000)[None], torch.tensor([8000]), torch.tensor([0.75]))
    assert output_BT[0, 50:-50].square().mean() < 1e-3


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_padding_stays_zero_and_changes_nothing(lengths: list[int], seed: int) -> None:
    wave_BT, len_B = padded(lengths, seed)
    factor_B = torch.rand(len(lengths), generator=generator(seed)) * 0.4 + 0.8
    rir_BK = torch.randn(len(lengths), 30, generator=generator(seed))
    noise_BT, snr_B = torch.randn(wave_BT.shape, generator=generator(seed)), torch.zeros(len(lengths))
    fast_BT, fast_B = augment_waveform.speed_perturb(wave_BT, len_B, factor_B)
    batch = (
        (fast_BT, fast_B),
        (augment_waveform.reverberate(wave_BT, len_B, rir_BK), len_B),
        (augment_waveform.mix(wave_BT, len_B, noise_BT, snr_B), len_B),
    )
    for output_BT, output_len_B in batch:
        assert not output_BT[~augment_waveform.sample_mask(output_len_B, output_BT.shape[1])].any()
    for b, num in enumerate(lengths):
        single_1T, len_1 = wave_BT[b : b + 1, :num], len_B[b : b + 1]
        alone = (
            augment_waveform.speed_perturb(single_1T, len_1, factor_B[b : b + 1])[0],
            augment_waveform.reverberate(single_1T, len_1, rir_BK[b : b + 1]),
            augment_waveform.mix(single_1T, len_1, noise_BT[b : b + 1, :num], snr_B[:1]),
        )
        for output_1T, (output_BT, output_len_B) in zip(alone, batch, strict=True):
            assert torch.allclose(output_1T[0], output_BT[b, : int(output_len_B[b])], atol=1e-4)


@pytest.mark.parametrize("snr_db", [-5.0, 0.0, 20.0])
def test_noise_is_as_loud_as_asked(snr_db: float) -> None:
    wave_BT, len_B = padded([4000, 1000])
    noise_BT = torch.randn(wave_BT.shape, generator=generator(5)) * torch.tensor([[3.0], [0.01]])
    added_BT = augment_waveform.mix(wave_BT, len_B, noise_BT, torch.full((2,), snr_db)) - wave_BT
    measured_db_B = 10 * torch.log10(augment_waveform.power(wave_BT, len_B) / augment_waveform.power(added_BT, len_B))
    assert measured_db_B.tolist() == pytest.approx([snr_db] * 2, abs=0.01)


def test_silence_stays_finite_and_silent() -> None:
    silent_BT, len_B = torch.zeros(2, 300), torch.tensor([300, 1])
    cfg = Augment(noise_prob=1.0, rir_prob=1.0, gain_db=6.0)
    noise_bank = NoiseBank.from_recordings([torch.zeros(50, dtype=torch.int16)], [torch.tensor([0.1, 1.0, 0.5])])
    assert not augment_waveform.reverberate_some(silent_BT, len_B, cfg, noise_bank, generator()).any()
    all_B = torch.ones(2, dtype=torch.bool)
    assert not augment_waveform.add_synthetic_noise(silent_BT, len_B, all_B, cfg, generator()).any()
    speech_BT, len_B = padded([300, 200])
    output_BT = augment_waveform.add_recorded_noise(speech_BT, len_B, all_B, cfg, noise_bank, generator())
    assert torch.equal(output_BT, speech_BT)  # a recording of nothing adds nothing


def test_reverb_is_a_convolution_that_leaves_words_and_loudness_in_place() -> None:
    wave_BT, len_B = padded([3000])
    response_K = torch.cat([torch.zeros(70), torch.tensor([1.0]), 0.3 * torch.randn(200, generator=generator(1))])
    noise_bank = NoiseBank.from_recordings([], [response_K])
    output_T = augment_waveform.reverberate(wave_BT, len_B, noise_bank.rir_RK)[0]
    expected_T = np.convolve(wave_BT[0].numpy(), response_K[30:].numpy())[:3000]
    expected_T *= np.sqrt(float(augment_waveform.power(wave_BT, len_B)) / np.mean(expected_T**2))
    assert np.allclose(output_T.numpy(), expected_T, atol=1e-4)
    assert float(augment_waveform.power(output_T[None], len_B)) == pytest.approx(
        float(augment_waveform.power(wave_BT, len_B)), rel=1e-4
    )


def test_recordings_start_anywhere_and_are_looped() -> None:
    short, long = torch.arange(1, 8, dtype=torch.int16), torch.arange(1000, 3000, dtype=torch.int16)
    noise_bank = NoiseBank.from_recordings([short, torch.zeros(0, dtype=torch.int16), long], [])
    assert noise_bank.length_R.tolist() == [7, 2000]
    output_BT = (augment_waveform.recorded(noise_bank, 50, 20, generator()) * 32768).round().long()
    starts = set()
    for row_T in output_BT:
        recording = short if row_T[0] < 100 else long
        first = int((recording == row_T[0]).nonzero()[0])
        assert torch.equal(row_T, recording.long()[(first + torch.arange(20)) % len(recording)])
        starts.add((len(recording), first))
    assert len(starts) > 20


def test_noise_is_recorded_or_synthetic_never_both_and_its_colour_varies() -> None:
    noise_bank = NoiseBank.from_recordings([torch.ones(10, dtype=torch.int16)], [])
    recorded_B, synthetic_B = augment_waveform.choose_noise(2000, Augment(noise_prob=0.6), noise_bank, generator())
    assert not (recorded_B & synthetic_B).any()
    assert 0.25 < recorded_B.float().mean() < 0.35
    assert 0.25 < synthetic_B.float().mean() < 0.35
    assert not augment_waveform.choose_noise(2000, Augment(noise_prob=0.6), NOTHING, generator())[0].any()
    spectrum_BN = torch.fft.rfft(augment_waveform.coloured(40, 4000, generator())).abs().square()
    tilt_B = (spectrum_BN[:, 50:200].mean(1) / spectrum_BN[:, 1000:].mean(1)).log10()
    assert tilt_B.min() < 0.3
    assert tilt_B.max() > 2


def test_babble_is_the_other_utterances_and_silence_for_a_single_one() -> None:
    wave_BT = torch.tensor([[1.0, 1.0, 1.0, 1.0], [10.0, 20.0, 0.0, 0.0]])
    output_BT = augment_waveform.babble(wave_BT, torch.tensor([4, 2]))
    assert output_BT.tolist() == [[10, 20, 10, 20], [1, 1, 1, 1]]
    assert not augment_waveform.babble(wave_BT[:1], torch.tensor([4])).any()


def test_gain_is_uniform_and_everything_is_a_function_of_the_generator() -> None:
    wave_BT, cfg = torch.ones(500, 2), Augment(gain_db=6.0)
    gain_db_B = 20 * augment_waveform.apply_gain(wave_BT, cfg, generator())[:, 0].log10()
    assert -6 <= gain_db_B.min() < -5
    assert 5 < gain_db_B.max() <= 6
    assert torch.equal(augment_waveform.apply_gain(wave_BT, Augment(), generator()), wave_BT)
    speech_BT, len_B = padded([500, 300, 400])
    noise_bank = NoiseBank.from_recordings([torch.arange(100, dtype=torch.int16)], [torch.tensor([1.0, 0.5])] * 3)
    cfg, all_B = Augment(rir_prob=0.5), torch.ones(3, dtype=torch.bool)

    def drawn(seed: int) -> list[Tensor]:
        return [
            augment_waveform.add_synthetic_noise(speech_BT, len_B, all_B, cfg, generator(seed)),
            augment_waveform.add_recorded_noise(speech_BT, len_B, all_B, cfg, noise_bank, generator(seed)),
            augment_waveform.coloured(2, 50, generator(seed)),
        ]

    assert all(map(torch.equal, drawn(3), drawn(3)))
    assert not any(map(torch.equal, drawn(3), drawn(4)))


def test_reverb_equals_that_of_another_package(shared_data: Callable[[str], Path]) -> None:
    """lhotse's own reverberated recording against its dry one, by the response that it used."""
    response = shared_data("noise-rir") / "rir/lh_sim_1ch.flac"
    dry = next((shared_data("short-fixtures") / "audio").glob("*1088-134315-0000*"))
    wet = shared_data("noise-rir") / "pairs/lhotse_libri-1088_rvb.wav"

    def samples(path: Path) -> Tensor:
        return torch.from_numpy(codec.decode(path.read_bytes(), channel=0).samples_T).float()

    dry_T, wet_T = samples(dry), samples(wet)
    rir_RK = NoiseBank.from_recordings([], [samples(response)]).rir_RK
    output_T = augment_waveform.reverberate(dry_T[None] / 32768, torch.tensor([len(dry_T)]), rir_RK)[0]
    size = min(len(output_T), len(wet_T))
    spectrum = torch.fft.rfft(output_T[:size], 2 * size).conj() * torch.fft.rfft(wet_T[:size], 2 * size)
    best = torch.fft.irfft(spectrum).abs().max()  # at whatever delay the direct sound was left
    assert best / (output_T[:size].norm() * wet_T[:size].norm()) > 0.999
