"""The rounds of a run, as the report shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxstill.core.result import Result
from voxstill.evaluation.report.formatting import number, percent

HEAD = (
    "round",
    "labels kept",
    "hours",
    "WER of all labels",
    "WER of labels kept",
    "WER of the student",
    "95 % interval",
)
"""Heads of the columns of `cells`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult(Result):
    """One round of a run: its student, and the labels that it learnt from; a rate is None if there are no texts."""

    round: int
    path: str
    """The experiment folder of the student."""
    kept: float
    """Share of the teacher's labels."""
    kept_hours: float
    label_wer_before: float | None
    """Word error rate of all labels."""
    label_wer_after: float | None
    """The same of those that were kept."""
    wer: float | None
    """Of the student."""
    interval: tuple[float, float] | None
    """95 % interval of `wer`."""


def cells(rounds: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row of text for each round, from the fields of its `RoundResult`."""
    return [
        [
            *(str(row.round), percent(row.kept), number(row.kept_hours), percent(row.label_wer_before)),
            *(percent(row.label_wer_after), percent(row.wer), _interval(row.interval)),
        ]
        for row in map(RoundResult.from_dict, rounds)
    ]


def _interval(interval: tuple[float, float] | None) -> str:
    return percent(None) if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"
