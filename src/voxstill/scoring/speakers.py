"""Diarization error rate, as NIST's md-eval counts it.

Time is cut at every start and end of a turn, so that nothing changes within a piece, and pieces are counted in whole
microseconds: no sampling, exact figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill.text.rttm import RttmEvent, ScoredRegion

Int = NDArray[np.int64]
Flags = NDArray[np.bool_]
_EXTENT_KINDS = {"SEGMENT", "SPEAKER", "SU", "EDIT", "FILLER", "IP", "CB", "A/P", "LEXEME", "NON-LEX"}
"""Kinds of lines that define the extent of a reference without a UEM."""
_NOISES = {"laugh", "breath", "lipsmack", "cough", "sneeze", "other"}
"""Subtypes of NON-LEX that are not scored."""
_NOISE_US = 500_000
"""Padding on either side of a noise, up to the nearest start or end of a word or turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerTime:
    """Speaker time in microseconds, in which two speakers for a second are two seconds. Times add, rates do not."""

    scored_us: int = 0
    missed_us: int = 0
    false_alarm_us: int = 0
    confused_us: int = 0

    def __add__(self, other: SpeakerTime) -> SpeakerTime:
        return SpeakerTime(
            scored_us=self.scored_us + other.scored_us,
            missed_us=self.missed_us + other.missed_us,
            false_alarm_us=self.false_alarm_us + other.false_alarm_us,
            confused_us=self.confused_us + other.confused_us,
        )

    @property
    def errors_us(self) -> int:
        """Missed speech, false alarm and speaker confusion."""
        return self.missed_us + self.false_alarm_us + self.confused_us

    @property
    def rate(self) -> float | None:
        """The diarization error rate, possibly above 1; None if no speech is scored."""
        return self.errors_us / self.scored_us if self.scored_us else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiarizationErrors:
    """The errors of one recording, and its speaker mapping, hypothesis -> reference."""

    time: SpeakerTime
    mapping: Mapping[str, str]


def score_diarization(
    reference: Sequence[RttmEvent],
    hypothesis: Sequence[RttmEvent],
    stretches: Sequence[ScoredRegion] = (),
    *,
    collar_us: int = 0,
    ignore_overlap: bool = False,
) -> DiarizationErrors:
    """Score the diarization of one channel of one recording, to the microsecond.

    Speakers are mapped one to one so that they share the most scored time. Not scored is what lies outside the
    stretches (without any: outside the reference), in a NOSCORE zone, at a noise such as a laugh, within the collar on
    either side of any start and end of a turn of the reference, and with `ignore_overlap` where its speakers overlap.
    Equal to NIST's md-eval without options but -c, -u and -1.
    """
    reference_turns = [mark for mark in reference if mark.kind == "SPEAKER"]
    hypothesis_turns = [mark for mark in hypothesis if mark.kind == "SPEAKER"]
    scored_spans = _spans(stretches) or _extent(reference)
    excluded_spans = _spans(mark for mark in reference if mark.kind == "NOSCORE")
    edges = [edge for turn in reference_turns for edge in (turn.start_us, turn.end_us)]
    collars = [(edge - collar_us, edge + collar_us) for edge in edges] if collar_us else []
    noises = _noises(reference, edges)
    turn_spans = _spans((*reference_turns, *hypothesis_turns))
    spans = [*scored_spans, *excluded_spans, *noises, *collars, *turn_spans]
    if not spans:
        return DiarizationErrors(time=SpeakerTime(), mapping={})
    time_T = np.unique(np.array(spans, dtype=np.int64))
    length_T = np.diff(time_T)
    evaluated_T = (_covered(scored_spans, time_T) > 0) & (_covered(excluded_spans, time_T) == 0)
    scored_T = evaluated_T & (_covered(collars, time_T) == 0) & (_covered(noises, time_T) == 0)
    if ignore_overlap:
        scored_T &= _covered(_spans(reference_turns), time_T) < 2
    reference_RT, reference_names = _speaking(reference_turns, time_T)
    hypothesis_HT, hypothesis_names = _speaking(hypothesis_turns, time_T)
    shared_RH = (reference_RT * (length_T * evaluated_T)) @ hypothesis_HT.T.astype(np.int64)
    pairs = [(r, h) for r, h in assignment(shared_RH) if shared_RH[r, h]]
    length_T = length_T * scored_T
    num_reference_T, num_hypothesis_T = reference_RT.sum(0), hypothesis_HT.sum(0)
    zero_T = np.zeros(len(length_T), dtype=np.int64)
    num_correct_T = sum((reference_RT[r] & hypothesis_HT[h] for r, h in pairs), zero_T)
    return DiarizationErrors(
        time=SpeakerTime(
            scored_us=int(length_T @ num_reference_T),
            missed_us=int(length_T @ np.maximum(num_reference_T - num_hypothesis_T, 0)),
            false_alarm_us=int(length_T @ np.maximum(num_hypothesis_T - num_reference_T, 0)),
            confused_us=int(length_T @ (np.minimum(num_reference_T, num_hypothesis_T) - num_correct_T)),
        ),
        mapping={hypothesis_names[h]: reference_names[r] for r, h in pairs},
    )


def _spans(marks: Iterable[RttmEvent | ScoredRegion]) -> list[tuple[int, int]]:
    return [(mark.start_us, mark.end_us) for mark in marks]


def _extent(reference: Iterable[RttmEvent]) -> list[tuple[int, int]]:
    """From the first start to the last end of what has an extent; empty if nothing has."""
    marks = [mark for mark in reference if mark.kind in _EXTENT_KINDS]
    return [(min(mark.start_us for mark in marks), max(mark.end_us for mark in marks))] if marks else []


def _noises(reference: Sequence[RttmEvent], edges: Sequence[int]) -> list[tuple[int, int]]:
    """Spans of noises with their padding, which ends at words and turns."""
    noises = _merged([mark for mark in reference if mark.kind == "NON-LEX" and mark.subtype in _NOISES])
    words = _merged([mark for mark in reference if mark.kind == "LEXEME"])
    stops = np.unique(np.array([*edges, *(time for word in words for time in word)], dtype=np.int64))
    padded = []
    for start_us, end_us in noises:
        before_us = [int(time_us) for time_us in stops[: np.searchsorted(stops, start_us, "right")][-1:]]
        after_us = [int(time_us) for time_us in stops[np.searchsorted(stops, end_us) :][:1]]
        within_word = [any(word[0] < time_us < word[1] for word in words) for time_us in (start_us, end_us)]
        padded.append(
            (
                start_us if within_word[0] else max([start_us - _NOISE_US, *before_us]),
                end_us if within_word[1] else min([end_us + _NOISE_US, *after_us]),
            )
        )
    return padded


def _merged(marks: Sequence[RttmEvent]) -> list[tuple[int, int]]:
    """Union of the marks as disjoint spans in order."""
    spans: list[tuple[int, int]] = []
    for start_us, end_us in sorted((mark.start_us, mark.end_us) for mark in marks if mark.end_us > mark.start_us):
        if spans and start_us <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end_us)
        else:
            spans.append((start_us, end_us))
    return spans


def _covered(spans: Sequence[tuple[int, int]], time_T: Int) -> Int:
    """Number of spans that cover each piece between two times; every start and end is among the times."""
    change_T = np.zeros(len(time_T), dtype=np.int64)
    if spans:
        spans_N2 = np.array(spans, dtype=np.int64)
        np.add.at(change_T, np.searchsorted(time_T, spans_N2[:, 0]), 1)
        np.add.at(change_T, np.searchsorted(time_T, spans_N2[:, 1]), -1)
    return np.cumsum(change_T)[:-1]


def _speaking(turns: Sequence[RttmEvent], time_T: Int) -> tuple[Flags, list[str]]:
    """Activity of each speaker in each piece, and their names; overlap with itself counts once."""
    names = sorted({turn.speaker for turn in turns})
    rows = [_covered(_spans(turn for turn in turns if turn.speaker == name), time_T) > 0 for name in names]
    return np.array(rows, dtype=bool).reshape(len(names), len(time_T) - 1), names


def self_overlap_us(turns: Sequence[RttmEvent]) -> int:
    """Microseconds in which more than one of the turns is active."""
    spans = _spans(turns)
    time_T = np.unique(np.array(spans, dtype=np.int64))
    return int(np.diff(time_T) @ (_covered(spans, time_T) > 1))


def assignment(gain_RC: Int) -> list[tuple[int, int]]:
    """Linear assignment: pairs of a row and a column with the largest sum of gains, which are whole numbers.

    Every row and column is in one pair at most. The Hungarian method with potentials, a shortest
    augmenting path for each row (Jonker and Volgenant 1987).
    """
    if gain_RC.shape[0] > gain_RC.shape[1]:
        return sorted((row, column) for column, row in assignment(gain_RC.T))
    cost_RC = -gain_RC
    num_rows, num_columns = cost_RC.shape
    of_row_R, of_column_C = np.zeros(num_rows, dtype=np.int64), np.zeros(num_columns, dtype=np.int64)
    row_of_C = np.full(num_columns, -1)
    for start in range(num_rows):
        best_C = np.full(num_columns, np.iinfo(np.int64).max)
        before_C, done_C = np.full(num_columns, -1), np.zeros(num_columns, dtype=bool)
        row, column, reached = start, -1, [start]
        while True:
            slack_C = cost_RC[row] - of_row_R[row] - of_column_C
            closer_C = ~done_C & (slack_C < best_C)
            best_C[closer_C], before_C[closer_C] = slack_C[closer_C], column
            nearest = int(np.argmin(np.where(done_C, np.iinfo(np.int64).max, best_C)))
            step = best_C[nearest]
            of_row_R[reached] += step
            of_column_C[done_C] -= step
            best_C[~done_C] -= step
            done_C[nearest], column = True, nearest
            if row_of_C[column] < 0:
                break
            row = int(row_of_C[column])
            reached.append(row)
        while column >= 0:  # each row on the path takes the column after it
            previous = int(before_C[column])
            row_of_C[column] = row_of_C[previous] if previous >= 0 else start
            column = previous
    return sorted((int(row), column) for column, row in enumerate(row_of_C) if row >= 0)
