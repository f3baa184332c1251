"""Words from spikes: they last as long as speech does, in order, whatever the audio is."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tones import PAUSE_MS, WORD_MS, speak
from voxstill.core import pcm
from voxstill.decoding import ctc, spikes
from voxstill.decoding.spikes import Pauses, Spike

SPIKES = st.lists(st.lists(st.builds(Spike, st.floats(0, 5000), st.integers(1, 12)), min_size=1, max_size=4))
SPANS = st.lists(st.tuples(st.integers(0, 5000), st.integers(50, 900)), max_size=12)


@settings(deadline=None)
@given(SPIKES.filter(bool), SPANS, st.integers(0, 5000))
def test_words_are_in_order_and_disjoint(words: list[list[Spike]], quiet: list[tuple[int, int]], more_ms: int) -> None:
    times = iter(sorted(spike.at_ms for word in words for spike in word))
    words = [[spike._replace(at_ms=next(times)) for spike in word] for word in words]
    spans = sorted((start, start + length) for start, length in quiet)
    duration_ms = round(words[-1][-1].at_ms) + more_ms + len(words)
    result = spikes.word_spans(words, Pauses(spans, duration_ms))
    assert len(result) == len(words)
    assert all(0 <= start < end for start, end in result)
    assert all(one[1] <= two[0] for one, two in pairwise(result))


def test_pauses_end_words_and_characters_divide_speech() -> None:
    at = [Spike(300, 2), Spike(600, 4), Spike(1600, 3)]
    audio = Pauses([(0, 200), (800, 1400)], 1900)
    assert spikes.word_spans([[spike] for spike in at], audio) == [(200, 400), (400, 800), (1400, 1780)]


def test_a_word_does_not_reach_over_a_long_time_that_is_no_pause() -> None:
    """As over music, which is as loud as speech."""
    first, second = spikes.word_spans([[Spike(300, 4)], [Spike(9000, 4)]], Pauses([], 10_000))
    assert first[1] < 1500
    assert second[0] > 8000


def test_pauses_of_tones_are_those_between_them() -> None:
    samples_T, words = speak("ba du ko")
    pauses = spikes.pauses(samples_T)
    assert pauses.duration_ms == pcm.samples_to_ms(len(samples_T))
    expected = [0, *(time for word in words for time in (word.start_ms, word.end_ms)), pauses.duration_ms]
    assert np.abs(np.ravel(pauses.spans_ms) - expected).max() <= 10
    assert spikes.pauses(np.zeros(8000, np.int16)).spans_ms == ()
    assert spikes.pauses(np.zeros(0, np.int16)) == Pauses((), 0)


def test_the_words_of_a_spiky_model_have_the_times_of_its_speech() -> None:
    """A spike of a frame stands in the middle of each word."""
    samples_T, words = speak("ba du ko")
    pauses = spikes.pauses(np.concatenate([samples_T[: pcm.ms_to_samples(words[0].end_ms)], samples_T]))
    shift_ms = words[0].end_ms
    frames = [round((word.start_ms + WORD_MS / 2 + shift_ms) / 40) for word in words]
    log_probs_FV = np.full((60, 4), -9.0, np.float32)
    log_probs_FV[:, 3] = -0.01
    for token, frame in enumerate(frames):
        log_probs_FV[frame, [token, 3]] = -0.01, -9.0
    common = {"ids": ["a"], "pieces": ["▁ba", "▁du", "▁ko", ""], "blank_id": 3, "frame_ms": 40}
    [spiky] = ctc.greedy(log_probs_FV[None], [60], **common)  # type: ignore[arg-type]
    assert [word.end_ms - word.start_ms for word in spiky.words] == [40, 40, 40]
    [hypothesis] = ctc.greedy(log_probs_FV[None], [60], pauses=[pauses], **common)  # type: ignore[arg-type]
    assert hypothesis.text == spiky.text
    for word, true in zip(hypothesis.words, words, strict=True):
        assert abs(word.start_ms - true.start_ms - shift_ms) <= PAUSE_MS / 2 + 20
        assert abs(word.end_ms - true.end_ms - shift_ms) <= PAUSE_MS / 2 + 20
