"""One HTML file that tells how well classes or speakers were told apart: no network, no script.

`Figures` are plain values, so they can be kept as JSON; what is absent is left out. Rates are shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from voxstill.report.html import environment
from voxstill.score.classes import confusions

MOST_CONFUSIONS = 20
ROOMY = 12
"""So many classes have large cells in the matrix; more are written small."""


class OfClass(TypedDict):
    """One class: rates None where nothing tells, and how often it was there."""

    precision: float | None
    recall: float | None
    f1: float | None
    count: int


class Figures(TypedDict):
    """`per_class` and `confusion` are those of `score.classes`; `interval` is that of the accuracy."""

    title: str
    about: NotRequired[str]
    split: NotRequired[str]
    utterances: int
    accuracy: float | None
    interval: NotRequired[tuple[float, float] | None]
    interval_over: NotRequired[str]
    macro_f1: float | None
    eer: NotRequired[float | None]
    min_dcf: NotRequired[float | None]
    trials: NotRequired[int | None]
    per_class: Mapping[str, OfClass]
    confusion: Mapping[str, Mapping[str, int]]


class Cell(TypedDict):
    """One cell of the matrix that is not empty."""

    count: int
    share: float
    right: bool


def page(figures: Figures) -> str:
    """The figures as one self-contained page; everything that comes from data is escaped."""
    names, confusion = list(figures["per_class"]), figures["confusion"]
    there = {name: figures["per_class"][name]["count"] for name in names}
    return (
        environment()
        .get_template("classes.html.j2")
        .render(
            facts=figures,
            script_hash=None,
            names=names,
            matrix={name: _row(name, names, confusion.get(name, {}), there[name]) for name in names},
            roomy=len(names) <= ROOMY,
            mistakes=[
                {"reference": ref, "hypothesis": hyp, "count": count, "share": count / there[ref]}
                for ref, hyp, count in confusions(confusion, MOST_CONFUSIONS)
            ],
        )
    )


def _row(name: str, names: Sequence[str], heard: Mapping[str, int], there: int) -> list[Cell | None]:
    """What was said of the class, for each class in order."""
    return [
        {"count": heard[other], "share": heard[other] / there, "right": other == name} if other in heard else None
        for other in names
    ]
