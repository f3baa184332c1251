"""Who spoke when, judged: the diarization error rate as NIST's md-eval counts it.

Time is cut where anybody starts or ends, so that nothing changes within a piece, and pieces are counted as whole
microseconds: nothing is sampled, and the figures are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill.text.rttm import Mark, Stretch

Int = NDArray[np.int64]
Flags = NDArray[np.bool_]
_TOLD = {"SEGMENT", "SPEAKER", "SU", "EDIT", "FILLER", "IP", "CB", "A/P", "LEXEME", "NON-LEX"}
"""Kinds of lines that tell where a reference without a UEM starts and ends."""
_NOISES = {"laugh", "breath", "lipsmack", "cough", "sneeze", "other"}
"""Subtypes of NON-LEX that nobody is asked to find a speaker for."""
_NOISE_US = 500_000
"""A noise is left out with so much on either side, as far as no word and no turn starts or ends there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerTime:
    """Time of speakers, in microseconds: two who speak for a second are two seconds. Times add, rates do not."""

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
        """Missed, made up and given to the wrong speaker."""
        return self.missed_us + self.false_alarm_us + self.confused_us

    @property
    def rate(self) -> float | None:
        """The diarization error rate, above 1 where false alarms abound; None where nobody spoke."""
        return self.errors_us / self.scored_us if self.scored_us else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The errors of one recording, and which speaker of the hypothesis was taken for which of the reference."""

    time: SpeakerTime
    mapping: Mapping[str, str]


def judge(
    reference: Sequence[Mark],
    hypothesis: Sequence[Mark],
    stretches: Sequence[Stretch] = (),
    *,
    collar_us: int = 0,
    ignore_overlap: bool = False,
) -> Judged:
    """The errors of one channel of one recording, to the microsecond.

    Speakers are mapped one to one so that they share the most time in what is judged. Not judged is what lies outside
    the stretches (without any: outside the reference), in a NOSCORE zone, at a noise such as a laugh, within the collar
    on either side of any start and end of a turn of the reference, and where told to, what several speakers of the
    reference say at once. It is what NIST's md-eval does without options but -c, -u and -1.
    """
    turns, heard = ([each for each in some if each.kind == "SPEAKER"] for some in (reference, hypothesis))
    judged = [(each.start_us, each.end_us) for each in stretches] or _extent(reference)
    banned = [(each.start_us, each.end_us) for each in reference if each.kind == "NOSCORE"]
    edges = [edge for each in turns for edge in (each.start_us, each.end_us)]
    near = [(edge - collar_us, edge + collar_us) for edge in edges] if collar_us else []
    noises = _noises(reference, edges)
    spans = [*judged, *banned, *noises, *near, *((each.start_us, each.end_us) for each in (*turns, *heard))]
    if not spans:
        return Judged(time=SpeakerTime(), mapping={})
    time_T = np.unique(np.array(spans, dtype=np.int64))
    length_T = np.diff(time_T)
    evaluated_T = (_covered(judged, time_T) > 0) & (_covered(banned, time_T) == 0)
    scored_T = evaluated_T & (_covered(near, time_T) == 0) & (_covered(noises, time_T) == 0)
    if ignore_overlap:
        scored_T &= _covered([(each.start_us, each.end_us) for each in turns], time_T) < 2
    said_RT, speakers = _speaking(turns, time_T)
    heard_HT, others = _speaking(heard, time_T)
    shared_RH = (said_RT * (length_T * evaluated_T)) @ heard_HT.T.astype(np.int64)
    pairs = [(r, h) for r, h in assignment(shared_RH) if shared_RH[r, h]]
    length_T = length_T * scored_T
    said_T, heard_T = said_RT.sum(0), heard_HT.sum(0)
    right_T = sum((said_RT[r] & heard_HT[h] for r, h in pairs), np.zeros(len(length_T), dtype=np.int64))
    return Judged(
        time=SpeakerTime(
            scored_us=int(length_T @ said_T),
            missed_us=int(length_T @ np.maximum(said_T - heard_T, 0)),
            false_alarm_us=int(length_T @ np.maximum(heard_T - said_T, 0)),
            confused_us=int(length_T @ (np.minimum(said_T, heard_T) - right_T)),
        ),
        mapping={others[h]: speakers[r] for r, h in pairs},
    )


def _extent(reference: Iterable[Mark]) -> list[tuple[int, int]]:
    told = [each for each in reference if each.kind in _TOLD]
    return [(min(each.start_us for each in told), max(each.end_us for each in told))] if told else []


def _noises(reference: Sequence[Mark], edges: Sequence[int]) -> list[tuple[int, int]]:
    """Noises with what lies around them, but for words and turns."""
    found = _merged([each for each in reference if each.kind == "NON-LEX" and each.subtype in _NOISES])
    words = _merged([each for each in reference if each.kind == "LEXEME"])
    stops = np.unique(np.array([*edges, *(time for word in words for time in word)], dtype=np.int64))
    wider = []
    for start_us, end_us in found:
        before_us = [int(each) for each in stops[: np.searchsorted(stops, start_us, "right")][-1:]]
        after_us = [int(each) for each in stops[np.searchsorted(stops, end_us) :][:1]]
        said = [any(word[0] < time_us < word[1] for word in words) for time_us in (start_us, end_us)]
        wider.append(
            (
                start_us if said[0] else max([start_us - _NOISE_US, *before_us]),
                end_us if said[1] else min([end_us + _NOISE_US, *after_us]),
            )
        )
    return wider


def _merged(marks: Sequence[Mark]) -> list[tuple[int, int]]:
    """What the marks cover, as stretches apart from one another."""
    found: list[tuple[int, int]] = []
    for start_us, end_us in sorted((each.start_us, each.end_us) for each in marks if each.end_us > each.start_us):
        if found and start_us <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end_us)
        else:
            found.append((start_us, end_us))
    return found


def _covered(spans: Sequence[tuple[int, int]], time_T: Int) -> Int:
    """How many of the spans cover each piece between two times; every start and end is among the times."""
    change_T = np.zeros(len(time_T), dtype=np.int64)
    if spans:
        spans_N2 = np.array(spans, dtype=np.int64)
        np.add.at(change_T, np.searchsorted(time_T, spans_N2[:, 0]), 1)
        np.add.at(change_T, np.searchsorted(time_T, spans_N2[:, 1]), -1)
    return np.cumsum(change_T)[:-1]


def _speaking(turns: Sequence[Mark], time_T: Int) -> tuple[Flags, list[str]]:
    """Who speaks in each piece; overlapping oneself is speaking once."""
    names = sorted({each.speaker for each in turns})
    rows = [
        _covered([(each.start_us, each.end_us) for each in turns if each.speaker == name], time_T) > 0 for name in names
    ]
    return np.array(rows, dtype=bool).reshape(len(names), len(time_T) - 1), names


def twice_us(turns: Sequence[Mark]) -> int:
    """For how long more than one of the turns goes on."""
    time_T = np.unique(np.array([(each.start_us, each.end_us) for each in turns], dtype=np.int64))
    return int(np.diff(time_T) @ (_covered([(each.start_us, each.end_us) for each in turns], time_T) > 1))


def assignment(gain_RC: Int) -> list[tuple[int, int]]:
    """Pairs of a row and a column, each in one pair at most, whose gains have the largest sum; gains are whole numbers.

    The Hungarian method with potentials, a shortest augmenting path for each row (Jonker and Volgenant 1987).
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
