"""Forced alignment: on emissions whose words are known, with audio that has no text and text that has no audio."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxstill.decoding import forced_alignment

NUM_TOKENS, BLANK = 40, 0


def emissions(
    random: np.random.Generator, tokens: Sequence[int], pause: int = 3
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Noisy log-probabilities of tokens that last one to three frames, with pauses, and the first frame of each."""
    frames = [BLANK] * int(random.integers(1, pause + 1))
    starts = []
    for token in tokens:
        starts.append(len(frames))
        frames += [token] * int(random.integers(1, 4)) + [BLANK] * int(random.integers(1, pause + 1))
    scores_FV = random.normal(0, 1, (len(frames), NUM_TOKENS))
    scores_FV[np.arange(len(frames)), frames] += 10
    log_probs_FV = scores_FV - np.log(np.exp(scores_FV).sum(1, keepdims=True))
    return log_probs_FV.astype(np.float32), np.array(starts)


def spoken(random: np.random.Generator, num: int) -> list[int]:
    """Tokens of a text."""
    return random.integers(1, 30, num).tolist()


def unwritten(random: np.random.Generator, num: int) -> list[int]:
    """Tokens that no text has."""
    return random.integers(30, NUM_TOKENS, num).tolist()


def text(random: np.random.Generator, num_lines: int) -> list[list[int]]:
    return [spoken(random, int(random.integers(3, 12))) for _ in range(num_lines)]


def flat(lines: Sequence[Sequence[int]]) -> list[int]:
    return list(itertools.chain(*lines))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8))
def test_starts_are_within_two_frames_though_intro_and_outro_have_no_text(seed: int, num_lines: int) -> None:
    random = np.random.default_rng(seed)
    lines = text(random, num_lines)
    intro, _ = emissions(random, unwritten(random, 15))
    body, starts = emissions(random, flat(lines))
    outro, _ = emissions(random, unwritten(random, 15))
    aligned = forced_alignment.align(np.concatenate([intro, body, outro]), lines, BLANK)
    assert np.abs(aligned.start_U - len(intro) - starts).max() <= 2
    assert aligned.score(0, len(starts)) > -0.1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 5))
def test_a_line_without_audio_is_skipped_and_its_neighbours_stay(seed: int, missing: int) -> None:
    random = np.random.default_rng(seed)
    lines = text(random, 6)
    log_probs_FV, starts = emissions(random, flat(lines[:missing] + lines[missing + 1 :]))
    start_U = forced_alignment.align(log_probs_FV, lines, BLANK).start_U
    first = len(flat(lines[:missing]))
    last = first + len(lines[missing])
    assert (start_U[first:last] == -1).all()
    assert np.abs(np.concatenate([start_U[:first], start_U[last:]]) - starts).max() <= 2


def test_audio_without_text_between_two_lines_belongs_to_neither() -> None:
    random = np.random.default_rng(0)
    lines = text(random, 2)
    parts = [emissions(random, ids) for ids in (lines[0], unwritten(random, 30), lines[1])]
    aligned = forced_alignment.align(np.concatenate([part for part, _ in parts]), lines, BLANK)
    num = len(lines[0])
    assert np.abs(aligned.start_U[:num] - parts[0][1]).max() <= 2
    assert np.abs(aligned.start_U[num:] - len(parts[0][0]) - len(parts[1][0]) - parts[2][1]).max() <= 2
    assert aligned.score(0, num) > -0.1
    assert aligned.score(0, num + len(lines[1])) < -1  # both with what lies between


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 40))
def test_blocks_change_nothing(seed: int, block: int) -> None:
    random = np.random.default_rng(seed)
    lines = text(random, 5)
    log_probs_FV, _ = emissions(random, flat(lines[:2]) + spoken(random, 9) + flat(lines[3:]))
    log_probs_FV[::7] = -np.log(NUM_TOKENS)  # frames that say nothing
    whole = forced_alignment.align(log_probs_FV, lines, BLANK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forced_alignment, "BLOCK", block)
        blocks = forced_alignment.align(log_probs_FV, lines, BLANK)
    assert blocks.total_F[-1] == pytest.approx(whole.total_F[-1])
    assert (blocks.start_U == whole.start_U).all()
    assert (blocks.end_U == whole.end_U).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_no_other_path_of_one_line_is_likelier(seed: int) -> None:
    """Against a plain Viterbi search: without stars and skipping it is the path of CTC."""
    from voxstill.decoding import prefix_search

    random = np.random.default_rng(seed)
    tokens = spoken(random, int(random.integers(1, 6)))
    log_probs_FV, _ = emissions(random, tokens)
    start_U, end_U = prefix_search.viterbi_align(log_probs_FV, np.array(tokens), BLANK)
    aligned = forced_alignment.align(log_probs_FV, [tokens], BLANK)
    assert (aligned.start_U == start_U).all()
    assert (aligned.end_U == end_U).all()


def test_equal_tokens_need_a_frame_between_them() -> None:
    assert forced_alignment.min_frames([[1, 1], [1, 2]]) == 6
    log_probs_FV = np.full((5, NUM_TOKENS), -np.log(NUM_TOKENS), np.float32)
    with pytest.raises(ValueError, match="fewer frames"):
        forced_alignment.align(log_probs_FV, [[1, 1], [1, 2]], BLANK)
    aligned = forced_alignment.align(np.repeat(log_probs_FV, 2, axis=0), [[1, 1], [1, 2]], BLANK)
    assert (np.diff(aligned.start_U) > [1, 1, 0]).all()


def test_the_score_is_that_of_the_worst_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    tokens = spoken(random, 30)
    log_probs_FV, starts = emissions(random, tokens)
    log_probs_FV[starts[12] : starts[15]] = -np.log(NUM_TOKENS)
    aligned = forced_alignment.align(log_probs_FV, [tokens], BLANK)
    whole = aligned.score(0, 30)
    monkeypatch.setattr(forced_alignment, "STRETCH", 5)
    assert aligned.score(0, 30) < 3 * whole
    assert aligned.score(0, 30) == pytest.approx(min(aligned.score(i, i + 5) for i in range(26)), abs=0.05)
