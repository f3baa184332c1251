"""Render what the filter kept and dropped as one self-contained HTML file without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from voxstill.evaluation.report import charts
from voxstill.evaluation.report.formatting import environment, percent
from voxstill.evaluation.report.html import Funnel


class Spread(TypedDict):
    """How many labels have which value of a score, in bins of equal width between `ends`; thresholds are `limits`."""

    title: str
    ends: tuple[float, float]
    kept: Sequence[int]
    dropped: Sequence[int]
    limits: Sequence[float]
    unknown: int


class Amount(TypedDict):
    """Labels and hours of a data set in a split, and the hours kept."""

    split: str
    dataset: str | None
    labels: int
    hours: float
    kept_hours: float


class FilterFacts(TypedDict):
    """All data of the page; the error rates are None if no judged label has a human text."""

    title: str
    about: str
    funnel: Funnel
    kept: int
    kept_hours: float
    wer_before: float | None
    wer_after: float | None
    spreads: Sequence[Spread]
    amounts: Sequence[Amount]


def page(facts: FilterFacts) -> str:
    """Render the facts as one self-contained page; everything that comes from data is escaped."""
    curve = [(100 * share, rate) for share, rate in facts["funnel"].get("curve", ())]
    histograms = [
        charts.histogram(
            spread["title"],
            spread["ends"],
            spread["kept"],
            spread["dropped"],
            spread["limits"],
            spread["unknown"],
        )
        for spread in facts["spreads"]
    ]
    return (
        environment()
        .get_template("filter.html.j2")
        .render(
            facts=facts,
            histograms=histograms,
            curve=charts.line_chart("Word error rate of the labels kept", curve, percent),
            script_hash=None,
        )
    )
