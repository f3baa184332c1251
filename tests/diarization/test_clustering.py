"""Clusters of embeddings: as many as there are voices, in one block or in several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxstill.diarization import clustering
from voxstill.diarization.clustering import kmeans

SIZE = 64


def voices(num: int, seed: int = 0) -> NDArray[np.float64]:
    """Directions that are far apart."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(SIZE, num)))[0].T


def said_by(voice_E: NDArray[np.float64], num: int, seed: int) -> NDArray[np.float32]:
    points_NE = voice_E + np.random.default_rng(seed).normal(0, 0.04, (num, SIZE))
    return (points_NE / np.linalg.norm(points_NE, axis=1, keepdims=True)).astype(np.float32)


def speaker_labels(
    blocks: Sequence[NDArray[np.float32]], max_speakers: int, num_speakers: int | None = None, follows: int = 3
) -> list[NDArray[np.int64]]:
    """Labels of windows that all follow one another in one stretch of each block."""
    last = np.cumsum([len(points_NE) for points_NE in blocks])
    index = [np.arange(end - len(points_NE), end) for points_NE, end in zip(blocks, last, strict=True)]
    pair_P2 = np.concatenate([np.stack([of_N[:-follows], of_N[follows:]], axis=1) for of_N in index])
    return clustering.speaker_labels(blocks, pair_P2, max_speakers, num_speakers)


def unit(vector_E: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(vector_E / np.linalg.norm(vector_E), np.float64)


def like(voice_E: NDArray[np.float64], cosine: float) -> NDArray[np.float64]:
    """A direction with this cosine to another."""
    across_E = np.roll(voice_E, 1) - (np.roll(voice_E, 1) @ voice_E) * voice_E
    return cosine * voice_E + (1 - cosine**2) ** 0.5 * unit(across_E)


@pytest.mark.parametrize(("run", "num_speakers"), [(1, 1), (20, 2)])
def test_of_voices_as_alike_those_are_two_that_take_turns(run: int, num_speakers: int) -> None:
    """Halves of one voice change from window to window, speakers after some seconds."""
    first_E = voices(1)[0]
    points = [said_by(first_E, 60, 0), said_by(like(first_E, 0.79), 60, 1)]
    order = np.concatenate([np.arange(i, i + run) + 60 * (i // run % 2) for i in range(0, 60, run)])
    order = np.concatenate([order, (order + 60) % 120])
    [label_N] = speaker_labels([np.concatenate(points)[order]], max_speakers=8)
    assert len(set(label_N.tolist())) == num_speakers


@pytest.mark.parametrize("num", [1, 2, 5])
def test_there_are_as_many_speakers_as_voices(num: int) -> None:
    points = [said_by(voice_E, 40, i) for i, voice_E in enumerate(voices(num))]
    [label_N] = speaker_labels([np.concatenate(points)], max_speakers=8)
    groups = np.split(label_N, num)
    assert all(len(set(group.tolist())) == 1 for group in groups)
    assert len(set(label_N.tolist())) == num


@given(st.integers(1, 5), st.integers(15, 60), st.floats(0.0, 1.1), st.integers(0, 50))
@settings(max_examples=40)
def test_what_a_line_adds_to_all_voices_changes_no_number(num: int, windows: int, channel: float, seed: int) -> None:
    channel_E, *spoken = voices(num + 1, seed)
    points = [said_by(unit(voice_E + channel * channel_E), windows, seed + i) for i, voice_E in enumerate(spoken)]
    [label_N] = speaker_labels([np.concatenate(points)], max_speakers=8)
    assert len(set(label_N.tolist())) == num


def test_a_speaker_of_two_blocks_is_one() -> None:
    first_E, second_E, third_E = voices(3)
    blocks = [
        np.concatenate([said_by(first_E, 50, 0), said_by(second_E, 50, 1)]),
        np.concatenate([said_by(third_E, 50, 2), said_by(first_E, 50, 3)]),
    ]
    one_N, two_N = speaker_labels(blocks, max_speakers=8)
    assert set(one_N[:50].tolist()) == set(two_N[50:].tolist())
    assert len({*one_N.tolist(), *two_N.tolist()}) == 3


def test_windows_between_two_voices_are_no_third_one() -> None:
    first_E, second_E = voices(2)
    points = [said_by(first_E, 60, 0), said_by(second_E, 60, 1), said_by((first_E + second_E) / 2**0.5, 12, 2)]
    [label_N] = speaker_labels([np.concatenate(points)], max_speakers=8)
    assert len(set(label_N.tolist())) == 2


def test_the_number_of_speakers_is_kept_to_where_it_is_known() -> None:
    points_NE = np.concatenate([said_by(voice_E, 40, i) for i, voice_E in enumerate(voices(4))])
    for known in (1, 2, 3, 4):
        [label_N] = speaker_labels([points_NE], max_speakers=8, num_speakers=known)
        assert len(set(label_N.tolist())) == known
    [label_N] = speaker_labels([points_NE], max_speakers=3)
    assert len(set(label_N.tolist())) == 3


@given(st.integers(1, 40), st.integers(0, 3))
def test_every_window_has_a_speaker(num: int, seed: int) -> None:
    [label_N] = speaker_labels([said_by(voices(1)[0], num, seed)], max_speakers=8)
    assert len(label_N) == num
    assert label_N.min() >= 0


def test_kmeans_divides_points_far_apart() -> None:
    points_ND = np.concatenate([np.random.default_rng(i).normal(10 * i, 0.1, (20, 3)) for i in range(3)])
    label_N = kmeans(points_ND, 3)
    assert [len(set(group.tolist())) for group in np.split(label_N, 3)] == [1, 1, 1]
    assert len(set(label_N.tolist())) == 3
    assert np.array_equal(label_N, kmeans(points_ND, 3))
    assert set(kmeans(np.zeros((5, 2)), 3).tolist()) <= {0, 1, 2}
