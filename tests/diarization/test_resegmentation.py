"""Borders of turns: moved to where the spectrum changes."""

from __future__ import annotations

import numpy as np

from voxstill.diarization.resegmentation import NUM_CEPSTRA, STEP_FRAMES, cepstra, resegment


def test_a_border_moves_to_where_the_spectrum_changes() -> None:
    rng = np.random.default_rng(0)
    frames_FC = rng.normal(0, 1, (1000, NUM_CEPSTRA)).astype(np.float32)
    frames_FC[600:] += 1.5
    steps_S = np.zeros(1000 // STEP_FRAMES, np.int64)
    steps_S[90:] = 1  # 1.5 s too early
    [moved_S] = resegment([frames_FC], [steps_S])
    assert abs(int(moved_S.argmax()) - 600 // STEP_FRAMES) <= 1
    assert set(moved_S.tolist()) == {0, 1}


def test_stretches_stay_where_one_speaker_has_too_little() -> None:
    frames_FC = np.random.default_rng(0).normal(0, 1, (40, NUM_CEPSTRA)).astype(np.float32)
    steps_S = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert np.array_equal(resegment([frames_FC], [steps_S])[0], steps_S)
    assert resegment([], []) == []


def test_a_stretch_may_end_within_a_step() -> None:
    rng = np.random.default_rng(0)
    frames = [rng.normal(i % 2, 1, (203, NUM_CEPSTRA)).astype(np.float32) for i in range(4)]
    steps = [np.full(41, i % 2) for i in range(4)]
    assert [len(step_S) for step_S in resegment(frames, steps)] == [41] * 4


def test_cepstra_tell_of_the_shape_of_a_spectrum_and_not_of_its_level() -> None:
    power_FD = np.random.default_rng(0).uniform(1, 2, (10, 40)).astype(np.float32)
    assert cepstra(power_FD).shape == (10, NUM_CEPSTRA)
    assert np.allclose(cepstra(power_FD), cepstra(power_FD * 100), atol=1e-3)
