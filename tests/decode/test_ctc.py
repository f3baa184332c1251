from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxstill.decode.ctc import greedy, likelihoods
from voxstill.decode.tokens import spell
from voxstill.records import Hypothesis, Word

PIECES = ["▁one", "▁two", "teen", "▁"]
BLANK = len(PIECES)


def log_probs(*paths: list[int], peak: float = 0.9) -> NDArray[np.float32]:
    frames = max(map(len, paths), default=0)
    probs_BFV = np.full((len(paths), frames, BLANK + 1), (1 - peak) / BLANK, np.float32)
    for b, path in enumerate(paths):
        probs_BFV[b, range(len(path)), path] = peak
    return np.log(probs_BFV)


def decode(path: list[int], frames: int | None = None) -> Hypothesis:
    (found,) = greedy(
        log_probs(path),
        [len(path) if frames is None else frames],
        ids=["u"],
        pieces=PIECES,
        blank_id=len(PIECES),
        frame_ms=80,
    )
    return found


def test_repeats_collapse_and_a_blank_parts_them() -> None:
    assert decode([0, 0, BLANK, 0, 1, 1]).token_ids == (0, 0, 1)
    assert decode([0, 0, BLANK, 0, 1, 1]).text == "one one two"


def test_words_have_times_and_confidence() -> None:
    found = decode([BLANK, 1, 1, BLANK, 2, BLANK, 0])
    assert found.text == "twoteen one"
    assert found.words == (
        Word(text="twoteen", start_ms=80, end_ms=400, prob=pytest.approx(0.9)),
        Word(text="one", start_ms=480, end_ms=560, prob=pytest.approx(0.9)),
    )
    assert found.score == pytest.approx(np.log(0.9))


def test_silence_is_an_empty_hypothesis_without_a_score() -> None:
    assert decode([BLANK, BLANK]) == Hypothesis(id="u", text="")
    assert decode([0, 1], frames=0) == Hypothesis(id="u", text="")
    assert decode([3, 3]).words == ()


def test_a_lone_space_piece_parts_words_and_takes_no_time() -> None:
    found = decode([3, BLANK, 2, 3, 2])
    assert [(word.text, word.start_ms, word.end_ms) for word in found.words] == [("teen", 160, 240), ("teen", 320, 400)]


def test_padding_is_never_read() -> None:
    assert decode([0, 1, 1], frames=1).text == "one"


@given(st.lists(st.lists(st.integers(0, BLANK), min_size=1, max_size=12), min_size=1, max_size=4))
def test_the_best_path_is_collapsed_as_the_definition_says(paths: list[list[int]]) -> None:
    ids = [str(i) for i in range(len(paths))]
    log_probs_BFV = log_probs(*paths)
    found = greedy(
        log_probs_BFV, [len(path) for path in paths], ids=ids, pieces=PIECES, blank_id=len(PIECES), frame_ms=80
    )
    assert [each.id for each in found] == ids
    for path, each in zip(paths, found, strict=True):
        assert list(each.token_ids) == [token for token, _ in itertools.groupby(path) if token != BLANK]
        assert each.text == spell(each.token_ids, PIECES) == " ".join(word.text for word in each.words)
        times = [time for word in each.words for time in (word.start_ms, word.end_ms)]
        assert times == sorted(times)
        assert all(word.start_ms < word.end_ms <= len(path) * 80 for word in each.words)
    frames_B = torch.tensor([len(path) for path in paths])
    tensor = torch.from_numpy(log_probs_BFV)
    assert greedy(tensor, frames_B, ids=ids, pieces=PIECES, blank_id=len(PIECES), frame_ms=80) == found
    assert [
        each.text
        for each in greedy(tensor.bfloat16(), frames_B, ids=ids, pieces=PIECES, blank_id=len(PIECES), frame_ms=80)
    ] == [each.text for each in found]


@given(st.integers(1, 5), st.lists(st.integers(0, 1), max_size=3), st.integers(0, 2), st.integers(0, 99))
def test_how_well_a_text_fits_is_the_sum_over_all_paths_that_say_it(
    frames: int, tokens: list[int], blank_id: int, seed: int
) -> None:
    tokens = [token + (token >= blank_id) for token in tokens]
    log_probs_FV = np.log(np.random.default_rng(seed).dirichlet(np.ones(3), frames))
    sum_ = 0.0
    for path in itertools.product(range(3), repeat=frames):
        if [token for token, _ in itertools.groupby(path) if token != blank_id] == tokens:
            sum_ += math.exp(sum(log_probs_FV[f, token] for f, token in enumerate(path)))
    other = [int(blank_id == 0)]  # another of the batch, whose padding is never read
    padded_BFV = np.full((2, frames + 1, 3), np.nan, np.float32)
    padded_BFV[0, :frames], padded_BFV[1, :1] = log_probs_FV, log_probs_FV[:1]
    (found, alone) = likelihoods(torch.from_numpy(padded_BFV), torch.tensor([frames, 1]), [tokens, other], blank_id)
    assert alone == pytest.approx(log_probs_FV[0, other[0]], abs=1e-5)
    if not tokens or not sum_:
        assert found is None
    else:
        assert found == pytest.approx(math.log(sum_) / len(tokens), abs=1e-5)


def test_a_word_is_as_sure_as_the_mean_of_its_frames() -> None:
    probs_BFV = np.full((1, 2, BLANK + 1), 0.01, np.float32)
    probs_BFV[0, 0, 0], probs_BFV[0, 1, 0] = 0.5, 1.0
    (found,) = greedy(np.log(probs_BFV), [2], ids=["u"], pieces=PIECES, blank_id=len(PIECES), frame_ms=80)
    assert found.words[0].prob == pytest.approx(0.75)
    assert found.score == pytest.approx(np.log(0.5) / 2)
