"""Figures that are probably not what they seem: what to look at before they are believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from voxstill.records import ErrorCounts
from voxstill.score import words

_SHIFTED_PAIRS = 2000
"""So many pairs are enough to see that all are shifted."""


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
