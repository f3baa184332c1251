"""Times of words by forced alignment: every word has one, in order, and none is cut off from what cannot be written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.decoding.word_times import word_times
from voxstill.sharding.cut_labels import cut_words

SPELT = {"ba": (1,), "du": (2,), "koko": (3, 3)}
WORDS = st.lists(st.sampled_from([*SPELT, "12", "-"]), max_size=12)


def encode(word: str) -> Sequence[int]:
    return SPELT.get(word, ())


def posteriors(num_frames: int, seed: int) -> np.ndarray:
    scores_FV = np.random.default_rng(seed).normal(0, 2, (num_frames, 5)).astype(np.float32)
    return scores_FV - np.log(np.exp(scores_FV).sum(-1, keepdims=True))


@given(WORDS, st.integers(0, 120), st.sampled_from([None, 4]), st.integers(0, 9))
@settings(deadline=None)
def test_every_word_has_its_time_in_order(words: list[str], num_frames: int, delimiter: int | None, seed: int) -> None:
    timed = word_times(posteriors(num_frames, seed), " ".join(words), encode, 0, delimiter, 20)
    if not timed:
        return
    assert [word.text for word in timed] == words
    assert all(0 <= word.start_ms <= word.end_ms <= num_frames * 20 for word in timed)
    spelt = [word for word in timed if word.text in SPELT]
    assert all(one.end_ms <= two.start_ms for one, two in itertools.pairwise(spelt))
    starts = [first for first, *_ in cut_words(timed, num_frames * 20, 1000)]
    for start in starts[1:]:
        assert "12" not in words[start - 1 : start + 1]


def test_a_word_that_cannot_be_written_has_the_time_between_its_neighbours() -> None:
    log_probs_FV = np.full((12, 5), -9.0, np.float32)
    log_probs_FV[:, 0] = -0.01
    for frame, token in ((1, 1), (2, 1), (8, 2), (9, 2)):
        log_probs_FV[frame, [0, token]] = -9.0, -0.01
    times = [(word.start_ms, word.end_ms) for word in word_times(log_probs_FV, "ba 12 - du 7", encode, 0, None, 10)]
    assert times == [(10, 30), (20, 90), (30, 30), (80, 100), (90, 120)]


def test_a_text_that_no_path_fits_has_no_words() -> None:
    assert word_times(posteriors(3, 0), "ba du ba du", encode, 0, None, 20) == ()
    assert word_times(posteriors(30, 0), "12 -", encode, 0, None, 20) == ()
    assert word_times(posteriors(30, 0), "", encode, 0, None, 20) == ()
    assert word_times(posteriors(0, 0), "ba", encode, 0, None, 20) == ()
