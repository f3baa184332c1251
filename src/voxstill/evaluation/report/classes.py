"""Render the evaluation of a classification or speaker task as one self-contained HTML file without scripts.

`Figures` are plain values, so they can be stored as JSON; sections without data are left out. Rates are shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from voxstill.evaluation.report.formatting import environment
from voxstill.scoring.classes import confusions

MAX_CONFUSIONS = 20
MAX_LARGE_CELLS = 12
"""Up to so many classes the matrix has large cells."""


class ClassFigures(TypedDict):
    """Figures of one class: rates are None if undefined; `count` is how often it is in the reference."""

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
    per_class: Mapping[str, ClassFigures]
    confusion: Mapping[str, Mapping[str, int]]


class Cell(TypedDict):
    """One non-empty cell of the confusion matrix."""

    count: int
    share: float
    right: bool


def page(figures: Figures) -> str:
    """Render the figures as one self-contained page; everything that comes from data is escaped."""
    names, confusion = list(figures["per_class"]), figures["confusion"]
    num_references = {name: figures["per_class"][name]["count"] for name in names}
    return (
        environment()
        .get_template("classes.html.j2")
        .render(
            facts=figures,
            script_hash=None,
            names=names,
            matrix={name: _row(name, names, confusion.get(name, {}), num_references[name]) for name in names},
            roomy=len(names) <= MAX_LARGE_CELLS,
            mistakes=[
                {"reference": ref, "hypothesis": hyp, "count": count, "share": count / num_references[ref]}
                for ref, hyp, count in confusions(confusion, MAX_CONFUSIONS)
            ],
        )
    )


def _row(name: str, names: Sequence[str], hypotheses: Mapping[str, int], num_references: int) -> list[Cell | None]:
    """Row of the confusion matrix: one cell for each hypothesis class in order, None for a count of 0."""
    return [
        {"count": hypotheses[hypothesis], "share": hypotheses[hypothesis] / num_references, "right": hypothesis == name}
        if hypothesis in hypotheses
        else None
        for hypothesis in names
    ]
