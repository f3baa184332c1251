"""Figures that are probably not what they seem: what to look at before they are believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from voxstill.records import ErrorCounts
from voxstill.score import speakers, words
from voxstill.text.rttm import Mark, Stretch

_SHIFTED_PAIRS = 2000
"""So many pairs are enough to see that all are shifted."""
_STEP_US = 10_000
_LEAST_TWICE_US = 1000
"""Less is how programs round."""
_ROUNDED_US = 50_000
"""Less past the end of the audio is a frame of whoever made the turns."""
_LONGEST_STEPS = 10_000_000
"""A day: times beyond are in another unit."""
_LEAST_OFFSET_US = 100_000
"""An offset below this is how people hear boundaries, not a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What was heard where nobody said anything; `hours` is None where no utterance has a length."""

    utterances: int
    words: int
    hours: float | None

    @property
    def words_per_hour(self) -> float | None:
        """Words made up in an hour of silence."""
        return self.words / self.hours if self.hours else None


def silence(rows: Iterable[tuple[ErrorCounts, int | None]]) -> Silence:
    """What was inserted into empty references; each row has its counts of words and its length in ms."""
    silent = [(counts.insertions, duration_ms) for counts, duration_ms in rows if not counts.reference]
    known = [(number, duration_ms) for number, duration_ms in silent if duration_ms is not None]
    timed = known if len(known) == len(silent) and known else None
    return Silence(
        utterances=len(silent),
        words=sum(number for number, _ in silent),
        hours=sum(duration_ms for _, duration_ms in timed) / 3_600_000 if timed else None,
    )


def of_words(pairs: Sequence[tuple[str, str]], total: ErrorCounts) -> list[str]:
    """A sentence for each thing that is odd about (reference, hypothesis) texts in the order of their files."""
    found = []
    rate = total.rate
    empty = sum(1 for reference, hypothesis in pairs if reference and not hypothesis)
    if rate is None:
        found.append("the references hold no words after normalising, so that there is no error rate")
    elif rate == 0:
        found.append("not one error: are reference and hypothesis the same file, or made from one another?")
    elif rate > 1:
        found.append(
            f"more errors than words: {total.insertions:,} of {total.errors:,} errors are insertions. Words made up in"
            " silence, another language, other units than words, or files that do not belong together do that"
        )
    if empty and empty * 10 >= len(pairs):
        found.append(f"{empty:,} of {len(pairs):,} hypotheses are empty: was every utterance recognised?")
    if rate is not None and rate > 0.5 and (by := shift(pairs[:_SHIFTED_PAIRS])):
        where = "after" if by > 0 else "before"
        found.append(
            f"hypotheses look shifted by one line: each fits the reference one line {where} its own much better"
        )
    return found


def shift(pairs: Sequence[tuple[str, str]]) -> int:
    """1 or -1 where each hypothesis fits the reference so many lines on in less than half the errors; else 0."""
    if len(pairs) < 3:
        return 0
    references, hypotheses = [each for each, _ in pairs], [each for _, each in pairs]
    moved = {1: zip(references[1:], hypotheses, strict=False), -1: zip(references, hypotheses[1:], strict=False)}
    limit = words.wer(pairs).errors / 2
    errors = {by: words.wer(some).errors for by, some in moved.items()}
    best = min(errors, key=lambda by: errors[by])
    return best if errors[best] < limit else 0


def of_turns(
    reference: Sequence[Mark],
    hypothesis: Sequence[Mark],
    stretches: Sequence[Stretch],
    length_ms: int | None = None,
) -> list[str]:
    """A sentence for each thing that is odd about the turns of one channel of one recording.

    `length_ms` is how long the recording is, where that is known.
    """
    found = []
    for side, marks in (("reference", reference), ("hypothesis", hypothesis)):
        turns = [each for each in marks if each.kind == "SPEAKER"]
        for name in sorted({each.speaker for each in turns}):
            own = [each for each in turns if each.speaker == name]
            twice_us = speakers.twice_us(own)
            if twice_us >= _LEAST_TWICE_US:
                found.append(
                    f"speaker `{name}` of the {side} overlaps with itself for {twice_us / 1e6:.2f} s, counted once"
                )
        if any(each.start_us < 0 for each in turns):
            found.append(f"the {side} has turns before the recording starts")
        if length_ms is not None and (after_us := sum(_after_us(each, length_ms) for each in turns)) > _ROUNDED_US:
            found.append(
                f"{after_us / 1e6:.2f} s of the {side} lie after the end of the recording: its last turn ends at"
                f" {max(each.end_us for each in turns) / 1e6:.2f} s, the audio at {length_ms / 1000:.2f} s"
            )
        if stretches and (beyond_us := sum(_outside_us(each, stretches) for each in turns)):
            found.append(f"{beyond_us / 1e6:.2f} s of the {side} lie outside what the UEM judges")
    if late_us := offset_us(reference, hypothesis):
        way = "late" if late_us > 0 else "early"
        rates = (speakers.judge(reference, some).time.rate or 0 for some in (hypothesis, moved(hypothesis, late_us)))
        before, after = (f"{100 * rate:.2f} %" for rate in rates)
        found.append(
            f"the hypothesis seems to be {abs(late_us) / 1e6:.2f} s too {way} throughout: moved by as much, its DER is"
            f" {after} instead of {before}"
        )
    return found


def of_times(total: speakers.SpeakerTime) -> list[str]:
    """A sentence for each thing that is odd about a diarization error rate."""
    if total.rate is None:
        return ["nobody speaks in what is judged, so that there is no error rate"]
    if total.rate == 0:
        return ["not one error: are reference and hypothesis the same file?"]
    if total.rate > 1:
        kinds = {
            "false alarm: are the times those of another recording, or in milliseconds?": total.false_alarm_us,
            "missed speech: do the names of recordings and channels agree?": total.missed_us,
            "confusion: is there one speaker for each turn?": total.confused_us,
        }
        return [f"more errors than speech; most of them are {max(kinds, key=lambda kind: kinds[kind])}"]
    return []


def offset_us(reference: Sequence[Mark], hypothesis: Sequence[Mark]) -> int:
    """By how much the hypothesis is too late throughout, to 10 ms.

    0 where moving it would not spare a quarter of the errors. How many speak at each time is correlated between the
    two, and the shift that fits best is tried.
    """
    turns, heard = ([each for each in some if each.kind == "SPEAKER"] for some in (reference, hypothesis))
    if not turns or not heard:
        return 0
    start_us = min(each.start_us for each in (*turns, *heard))
    size = (max(each.end_us for each in (*turns, *heard)) - start_us) // _STEP_US + 1
    if size > _LONGEST_STEPS:
        return 0
    padded = 1 << (2 * size - 1).bit_length()
    one_F, two_F = (np.fft.rfft(_loudness(some, start_us, size), padded) for some in (turns, heard))
    match_L = np.fft.irfft(two_F * one_F.conj(), padded)
    best = int(np.argmax(match_L))
    late_us = (best - padded if best > padded // 2 else best) * _STEP_US
    if abs(late_us) < _LEAST_OFFSET_US:
        return 0
    before, after = (speakers.judge(turns, some).time for some in (heard, moved(heard, late_us)))
    return late_us if 4 * after.errors_us < 3 * before.errors_us else 0


def moved(marks: Sequence[Mark], late_us: int) -> list[Mark]:
    """The marks earlier by as much as they are late."""
    return [replace(each, start_us=each.start_us - late_us, end_us=each.end_us - late_us) for each in marks]


def _loudness(turns: Sequence[Mark], start_us: int, size: int) -> NDArray[np.float64]:
    """How many speak at each step, less the mean."""
    change_T = np.zeros(size + 1)
    for each in turns:
        change_T[(each.start_us - start_us) // _STEP_US] += 1
        change_T[(each.end_us - start_us) // _STEP_US] -= 1
    speaking_T: NDArray[np.float64] = np.cumsum(change_T)[:size]
    return speaking_T - float(speaking_T.mean())


def _after_us(turn: Mark, length_ms: int) -> int:
    return max(0, turn.end_us - max(turn.start_us, 1000 * length_ms))


def _outside_us(turn: Mark, stretches: Sequence[Stretch]) -> int:
    inside = (min(turn.end_us, each.end_us) - max(turn.start_us, each.start_us) for each in stretches)
    return turn.end_us - turn.start_us - sum(max(0, each) for each in inside)
