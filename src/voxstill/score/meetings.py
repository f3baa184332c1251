"""Words of meetings, judged with who said them: cpWER, and tcpWER, which also asks when.

A session's speakers have names of their own in the hypothesis. They are paired so that fewest errors are left over; a
speaker without a partner counts with all words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from voxstill.records import ErrorCounts
from voxstill.score import words
from voxstill.score.speakers import assignment
from voxstill.text.transcripts import Said

_NEVER = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """The errors of one session, and which speaker of the hypothesis was taken for which of the reference."""

    counts: ErrorCounts
    mapping: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Spoken:
    """All words of one speaker in their order, with the stretch in milliseconds that each was said in."""

    words: list[str]
    times_W2: NDArray[np.float64]


def cp(reference: Sequence[Said], hypothesis: Sequence[Said]) -> Paired:
    """Word errors of one session by the concatenated minimum-permutation rule; segments are ordered by their start.

    Watanabe et al., CHiME-6 2020, section 5.3. Speakers are named in every row; texts are compared as they stand.
    """
    return _paired(reference, hypothesis, lambda ref, hyp: words.count(ref.words, hyp.words))


def tcp(reference: Sequence[Said], hypothesis: Sequence[Said], collar_ms: int) -> Paired:
    """The same, but a word can only be heard, rightly or wrongly, where it was said.

    The words of a segment share its time by their letters. A word of the hypothesis is thought to be in the middle of
    its share, give or take the collar. Von Neumann et al., MeetEval, CHiME-7 2023. Every row has its times.
    """
    return _paired(reference, hypothesis, lambda ref, hyp: _count_in_time(ref, hyp, collar_ms))


def _paired(
    reference: Sequence[Said], hypothesis: Sequence[Said], count: Callable[[_Spoken, _Spoken], ErrorCounts]
) -> Paired:
    said, heard = _by_speaker(reference), _by_speaker(hypothesis)
    size = max(len(said), len(heard))
    nobody = _Spoken([], np.zeros((0, 2)))
    names = [[*some, *[""] * (size - len(some))] for some in (said, heard)]
    counts = [[count(said.get(ref, nobody), heard.get(hyp, nobody)) for hyp in names[1]] for ref in names[0]]
    gain_RH = -np.array([[each.errors for each in row] for row in counts], dtype=np.int64).reshape(size, size)
    pairs = assignment(gain_RH)
    return Paired(
        counts=ErrorCounts.sum(counts[r][h] for r, h in pairs),
        mapping={names[1][h]: names[0][r] for r, h in pairs if r < len(said) and h < len(heard)},
    )


def _by_speaker(rows: Sequence[Said]) -> dict[str, _Spoken]:
    found: dict[str, list[Said]] = {}
    for row in sorted(rows, key=lambda each: each.start_ms or 0):
        found.setdefault(row.speaker or "", []).append(row)
    return {
        name: _Spoken(
            [word for row in some for word in row.text.split()],
            np.array([time for row in some for time in _times(row)], dtype=np.float64).reshape(-1, 2),
        )
        for name, some in found.items()
    }


def _times(row: Said) -> list[tuple[float, float]]:
    """A share of the row's time for each word, by its letters."""
    ends = [0, *accumulate(len(word) for word in row.text.split())]
    start_ms, length_ms = row.start_ms or 0, (row.end_ms or 0) - (row.start_ms or 0)
    edges = [start_ms + length_ms * end / max(ends[-1], 1) for end in ends]
    return list(pairwise(edges))


def _count_in_time(reference: _Spoken, hypothesis: _Spoken, collar_ms: int) -> ErrorCounts:
    """As `words.count`, where only words that meet in time are paired; a row of the table at a time."""
    middle_H = hypothesis.times_W2.mean(1) if hypothesis.words else np.zeros(0)
    edit = len(reference.words) + len(hypothesis.words) + 1
    ids: dict[str, int] = {}
    hypothesis_H = np.array([ids.setdefault(word, len(ids)) for word in hypothesis.words], dtype=np.int64)
    ahead_H = np.arange(len(hypothesis.words) + 1) * edit
    cost_H = ahead_H.copy()
    for word, (start_ms, end_ms) in zip(reference.words, reference.times_W2, strict=True):
        meets_H = (start_ms < middle_H + collar_ms) & (end_ms > middle_H - collar_ms)
        pair_H = np.where(hypothesis_H == ids.get(word, -1), 0, edit + 1)
        next_H = cost_H + edit
        np.minimum(next_H[1:], cost_H[:-1] + np.where(meets_H, pair_H, _NEVER), out=next_H[1:])
        cost_H = np.minimum.accumulate(next_H - ahead_H) + ahead_H  # insertions
    return words.split(int(cost_H[-1]), edit, len(reference.words), len(hypothesis.words))
