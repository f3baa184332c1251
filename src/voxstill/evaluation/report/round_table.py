"""The rounds of a run, as the report shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

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


class Round(TypedDict):
    """One round: its student, and the labels that it learnt from; shares, None where there are no human texts."""

    round: int
    path: str
    kept: float
    kept_hours: float
    label_wer_before: float | None
    label_wer_after: float | None
    wer: float | None
    interval: tuple[float, float] | None


def cells(rounds: Sequence[Round]) -> list[list[str]]:
    """A row of text for each round."""
    return [
        [
            *(str(row["round"]), percent(row["kept"]), number(row["kept_hours"]), percent(row["label_wer_before"])),
            *(percent(row["label_wer_after"]), percent(row["wer"]), _interval(row["interval"])),
        ]
        for row in rounds
    ]


def _interval(interval: tuple[float, float] | None) -> str:
    return percent(None) if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"
