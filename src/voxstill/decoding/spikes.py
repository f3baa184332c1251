"""When words begin and end, from the spikes of their tokens and the pauses of the audio.

A CTC model says a token in one or two frames somewhere in the middle of it, and blanks around. Where nothing but speech
lies between two spikes, the characters of their tokens divide the time; where a pause does, the words end and begin at
its edges. Tokens of a transducer are aligned before (`transducer.py`). `benchmarks/word_times.py` measures how well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm

_LEVEL_MS = 10
_LEVEL = pcm.ms_to_samples(_LEVEL_MS)
_QUIET, _LOUD = 5, 95  # percentiles
_THRESHOLD = 0.35  # of the way from the quiet to the loud, in dB
_MIN_RANGE_DB = 6.0  # less is all speech, or none
_MIN_PAUSE_MS = 150  # the closure of a stop is shorter
_MIN_EDGE_MS = 100
_MIN_QUIET_MS = 50
_CUT_MS = 20  # a pause that is so near to the beginning or end was cut there
_CHAR_MS, _CHAR_RANGE_MS = 70.0, (40.0, 120.0)
_REACH_MS = 100

Span = tuple[int, int]


class Pauses(NamedTuple):
    """Where an utterance is quiet, in milliseconds, in order; and how long it is."""

    spans_ms: Sequence[Span]
    duration_ms: int


class Spike(NamedTuple):
    """The middle of the frames of a token, and its characters."""

    at_ms: float
    num_chars: int


def pauses(samples_T: NDArray[np.int16]) -> Pauses:
    """Find the stretches of 50 ms and more that are nearer to the quietest than to the loudest parts."""
    duration_ms, num = pcm.samples_to_ms(len(samples_T)), len(samples_T) // _LEVEL
    if not num:
        return Pauses((), duration_ms)
    frames_FT = samples_T[: num * _LEVEL].astype(np.float32).reshape(num, _LEVEL)
    level_F = 10 * np.log10(np.square(frames_FT).mean(axis=1) + 1.0)
    quiet, loud = np.percentile(level_F, (_QUIET, _LOUD))
    if loud - quiet < _MIN_RANGE_DB:
        return Pauses((), duration_ms)
    is_quiet_F = np.concatenate([[0], level_F < quiet + _THRESHOLD * (loud - quiet), [0]])
    edges = np.flatnonzero(np.diff(is_quiet_F)).reshape(-1, 2) * _LEVEL_MS
    return Pauses([(int(start), int(end)) for start, end in edges if end - start >= _MIN_QUIET_MS], duration_ms)


def word_spans(words: Sequence[Sequence[Spike]], audio: Pauses) -> list[Span]:
    """Start and end in milliseconds of each word, which has the spikes of its tokens; in order and disjoint."""
    spikes = [spike for word in words for spike in word]
    char_ms = _char_ms(spikes)
    starts, ends = [_first_start(spikes[0], char_ms, audio)], []
    for before, after in pairwise(words):
        end, start = _between(before[-1], after[0], char_ms, audio)
        ends.append(end)
        starts.append(start)
    ends.append(_last_end(spikes[-1], char_ms, audio))
    spans: list[Span] = []
    for start, end in zip(starts, ends, strict=True):
        first = min(max(round(start), spans[-1][1] if spans else 0), max(audio.duration_ms - 1, 0))
        spans.append((first, max(min(round(end), audio.duration_ms), first + 1)))
    return spans


def _char_ms(spikes: Sequence[Spike]) -> float:
    """Milliseconds a character, as this speaker speaks."""
    rates = [
        2 * (after.at_ms - before.at_ms) / (before.num_chars + after.num_chars) for before, after in pairwise(spikes)
    ]
    return float(np.clip(np.median(rates), *_CHAR_RANGE_MS)) if rates else _CHAR_MS


def _reach_ms(spike: Spike, char_ms: float) -> float:
    """The farthest edge of a word from the spike of its first or last token: twice what is expected, and more."""
    return _REACH_MS + spike.num_chars * char_ms


def _between(before: Spike, after: Spike, char_ms: float, audio: Pauses) -> tuple[float, float]:
    """End of a word and start of the next."""
    inside = [
        (min(end, after.at_ms) - max(start, before.at_ms), start, end)
        for start, end in audio.spans_ms
        if end - start >= _MIN_PAUSE_MS and start < after.at_ms and end > before.at_ms
    ]
    if inside:
        _, end_ms, start_ms = max(inside)
        return end_ms, start_ms
    share = before.num_chars / (before.num_chars + after.num_chars)
    border_ms = before.at_ms + share * (after.at_ms - before.at_ms)
    return (
        min(border_ms, before.at_ms + _reach_ms(before, char_ms)),
        max(border_ms, after.at_ms - _reach_ms(after, char_ms)),
    )


def _first_start(spike: Spike, char_ms: float, audio: Pauses) -> float:
    """Start of the first word: where the pause before it ends."""
    reach_ms = _reach_ms(spike, char_ms)
    onsets = [end for _, end in _at_edge(audio) if spike.at_ms - reach_ms <= end <= spike.at_ms]
    return onsets[-1] if onsets else spike.at_ms - spike.num_chars * char_ms / 2


def _last_end(spike: Spike, char_ms: float, audio: Pauses) -> float:
    """End of the last word: where a pause begins, but no sooner than expected, as last words are slow and fade out."""
    reach_ms = _reach_ms(spike, char_ms)
    expected_ms = spike.at_ms + spike.num_chars * char_ms / 2
    offsets = [start for start, _ in _at_edge(audio) if spike.at_ms <= start <= spike.at_ms + reach_ms]
    return max(offsets[0], expected_ms) if offsets else expected_ms


def _at_edge(audio: Pauses) -> list[Span]:
    """The pauses that may lie before or behind all words."""
    return [
        (start, end)
        for start, end in audio.spans_ms
        if end - start >= _MIN_EDGE_MS or start < _CUT_MS or end > audio.duration_ms - _CUT_MS
    ]
