"""Augmentation: lengths and content are kept, noise is as loud as drawn, and chance comes from the generator alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from voxstill.core.config import Augment
from voxstill.nn import augment_features
from voxstill.nn.log_mel import frame_mask
from voxstill.nn.mel import NUM_MELS


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def log_mels(num: int, num_frames: int, seed: int = 0) -> Tensor:
    return torch.randn(num, num_frames, NUM_MELS, generator=generator(seed)) * 2 - 6


frame_counts = st.lists(st.integers(1, 60), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(frames=frame_counts)
def test_a_stretch_by_one_changes_nothing(frames: list[int]) -> None:
    mel_BFD, frames_B = log_mels(len(frames), max(frames)), torch.tensor(frames)
    augmented_BFD, stretched_B = augment_features.stretch(mel_BFD, frames_B, torch.ones(len(frames)))
    assert stretched_B.tolist() == frames
    for b, num in enumerate(frames):
        assert torch.allclose(augmented_BFD[b, :num], mel_BFD[b, :num], atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(frames=frame_counts, factor=st.floats(0.6, 1.5), seed=st.integers(0, 9))
def test_a_stretch_keeps_both_ends_and_order_and_reads_no_padding(frames: list[int], factor: float, seed: int) -> None:
    frames_B = torch.tensor(frames)
    ramp_BFD = torch.arange(max(frames)).float()[None, :, None].expand(len(frames), -1, NUM_MELS).clone()
    ramp_BFD[~frame_mask(frames_B, max(frames))] = float("nan")
    augmented_BFD, stretched_B = augment_features.stretch(ramp_BFD, frames_B, torch.full((len(frames),), factor))
    for b, num in enumerate(frames):
        new = int(stretched_B[b])
        assert abs(new - num * factor) <= 1 or new == 1
        line_F = augmented_BFD[b, :new, 0]
        assert line_F.isfinite().all()
        assert line_F[0] == 0
        assert new == 1 or abs(float(line_F[-1]) - (num - 1)) < 1e-3
        assert (line_F.diff() >= 0).all()


def test_vtlp_by_one_changes_nothing_and_other_factors_move_along_the_bands() -> None:
    mel_BFD = log_mels(2, 5)
    assert torch.equal(augment_features.vtlp(mel_BFD, torch.ones(2)), mel_BFD)
    ramp_BFD = torch.arange(NUM_MELS).float().expand(2, 5, -1)
    factor_B = torch.tensor([0.9, 1.1])
    augmented_BFD = augment_features.vtlp(ramp_BFD, factor_B)
    for b in range(2):
        expected_D = (torch.arange(NUM_MELS) * factor_B[b]).clamp(max=NUM_MELS - 1)
        assert torch.allclose(augmented_BFD[b, 0], expected_D, atol=1e-4)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), seed=st.integers(0, 999))
def test_a_run_is_whole_words_and_never_empty(data: st.DataObject, seed: int) -> None:
    words = data.draw(st.lists(st.lists(st.integers(1, 3), max_size=5), min_size=1, max_size=4))  # tokens of each word
    longest = max(max((sum(tokens) for tokens in words), default=0), 1)
    first_BU = torch.zeros(len(words), longest, dtype=torch.bool)
    for b, sizes in enumerate(words):
        at = 0
        for size in sizes:
            first_BU[b, at] = True
            at += size
    token_len_B = torch.tensor([sum(tokens) for tokens in words])
    timed_B = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words))))
    begin_B, end_B = augment_features.word_runs(first_BU, token_len_B, timed_B, 1.0, generator(seed))
    for b, sizes in enumerate(words):
        begin, end = int(begin_B[b]), int(end_B[b])
        bounds = {sum(sizes[:i]) for i in range(len(sizes) + 1)}
        assert {begin, end} <= bounds
        assert begin < end or not sizes
        if not timed_B[b]:
            assert (begin, end) == (0, sum(sizes))


def test_runs_of_every_length_occur_and_none_at_probability_zero() -> None:
    first_BU = torch.ones(2000, 4, dtype=torch.bool)
    length_B, timed_B = torch.full((2000,), 4), torch.ones(2000, dtype=torch.bool)
    begin_B, end_B = augment_features.word_runs(first_BU, length_B, timed_B, 1.0, generator())
    counts = torch.bincount(end_B - begin_B, minlength=5)
    assert counts[0] == 0
    assert (counts[1:] > 400).all()
    begin_B, end_B = augment_features.word_runs(first_BU, length_B, timed_B, 0.0, generator())
    assert (begin_B == 0).all()
    assert (end_B == 4).all()


def snr_db(clean_BFD: Tensor, noisy_BFD: Tensor, frames_B: Tensor) -> Tensor:
    """Power of the clean audio over what was added, as the audio itself has it."""
    centre_D, num_bins_D = augment_features.bands()
    weight_D = num_bins_D / augment_features.preemphasis_gain(centre_D)
    mask_BF = frame_mask(frames_B, clean_BFD.shape[1])
    clean_B = ((clean_BFD.double().exp() @ weight_D.double()) * mask_BF).sum(1)
    noisy_B = ((noisy_BFD.double().exp() @ weight_D.double()) * mask_BF).sum(1)
    return 10 * torch.log10(clean_B / (noisy_B - clean_B))


@pytest.mark.parametrize("wanted_db", [0.0, 10.0, 25.0])
@pytest.mark.parametrize("num", [1, 6])
def test_noise_is_as_loud_as_drawn(wanted_db: float, num: int) -> None:
    mel_BFD, frames_B = log_mels(num, 80), torch.arange(80, 80 - 10 * num, -10)
    cfg = Augment(noise_prob=1.0, min_snr_db=wanted_db, max_snr_db=wanted_db)
    noisy_BFD = augment_features.add_noise(mel_BFD, frames_B, torch.ones(num, dtype=torch.bool), cfg, generator(3))
    assert (noisy_BFD >= mel_BFD).all()
    assert snr_db(mel_BFD, noisy_BFD, frames_B).tolist() == pytest.approx([wanted_db] * num, abs=0.1)


def test_the_ratio_lies_between_its_bounds_and_the_others_stay_clean() -> None:
    mel_BFD, frames_B, chosen_B = log_mels(200, 20), torch.full((200,), 20), torch.arange(200) % 2 == 0
    cfg = Augment(min_snr_db=5.0, max_snr_db=15.0)
    noisy_BFD = augment_features.add_noise(mel_BFD, frames_B, chosen_B, cfg, generator())
    clean_B = (noisy_BFD == mel_BFD).flatten(1).all(1)
    assert torch.equal(clean_B, ~chosen_B)
    measured_db = snr_db(mel_BFD, noisy_BFD, frames_B)[~clean_B]
    assert measured_db.min() > 4.9
    assert measured_db.max() < 15.1
    assert measured_db.std() > 2


def test_silence_and_one_frame_stay_finite_under_noise() -> None:
    silent_BFD = torch.full((2, 30, NUM_MELS), math.log(2.0**-24))
    chosen_B = torch.ones(2, dtype=torch.bool)
    noisy_BFD = augment_features.add_noise(silent_BFD, torch.tensor([30, 1]), chosen_B, Augment(), generator())
    assert noisy_BFD.isfinite().all()


@settings(max_examples=40, deadline=None)
@given(frames=st.lists(st.integers(1, 300), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_masks_are_bounded_and_change_nothing_else(frames: list[int], seed: int) -> None:
    features_BFD = torch.rand(len(frames), max(frames), NUM_MELS) + 1
    cfg = Augment(time_masks=1, mel_masks=1)
    augmented_BFD = augment_features.spec_augment(features_BFD, torch.tensor(frames), cfg, generator(seed))
    hidden_BFD = augmented_BFD == 0
    assert torch.equal(augmented_BFD[~hidden_BFD], features_BFD[~hidden_BFD])
    for b, num in enumerate(frames):
        hidden_F, hidden_D = hidden_BFD[b].all(1), hidden_BFD[b].all(0)
        assert int(hidden_F[:num].sum()) <= min(num / 5, cfg.time_mask_ms / 10) + 1
        assert not hidden_F[num:].any()
        assert int(hidden_D.sum()) <= cfg.mel_mask_bins + 1
        assert torch.equal(hidden_BFD[b], hidden_F[:, None] | hidden_D[None])


def test_everything_is_a_function_of_the_generator() -> None:
    mel_BFD, frames_B, cfg = log_mels(4, 60), torch.tensor([60, 50, 40, 7]), Augment()

    def drawn(seed: int) -> list[Tensor]:
        return [
            augment_features.add_noise(mel_BFD, frames_B, torch.ones(4, dtype=torch.bool), cfg, generator(seed)),
            augment_features.spec_augment(mel_BFD, frames_B, cfg, generator(seed)),
            augment_features.coloured_noise(generator(seed), 3, 9, NUM_MELS),
            augment_features.uniform(generator(seed), (5,), -1, 1),
        ]

    torch.manual_seed(1)
    first = drawn(7)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, drawn(7), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, drawn(8), strict=True))
    assert all(((draw >= -1) & (draw < 1)).all() for draw in [augment_features.uniform(generator(), (999,), -1, 1)])
