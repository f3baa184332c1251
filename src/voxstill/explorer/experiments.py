"""Experiments side by side: learning curves, results, and errors by groups of utterances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from voxstill.explorer.corpus import Corpus
from voxstill.explorer.students import StudentTexts

Number = TypeVar("Number", int, float)
MOST_POINTS = 400
MOST_GROUPS = 40
_GROUPS = {
    "speaker": "rows.speaker",
    "dataset": "rows.dataset",
    "dialect": "rows.dialect",
    "language": "rows.language",
    "duration": "(rows.duration_ms // 5000 * 5)::VARCHAR || ' s'",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A figure of a training by its step: the loss, or what a validation measured."""

    split: str
    figure: str
    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFacts:
    """What is known of one experiment: its curves, and what its student wrote, where it was evaluated."""

    name: str
    curves: Sequence[Curve] = ()
    results: Sequence[Mapping[str, object]] = ()
    """Split, WER, interval and words of each result."""
    texts: StudentTexts | None = field(default=None)


def curves_of(lines: Sequence[Mapping[str, object]]) -> list[Curve]:
    """The curves in the lines of a `metrics.jsonl`; of many points evenly chosen ones stay, the last among them."""
    points: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    for line in lines:
        step, split = line.get("step"), str(line.get("split", "train"))
        if not isinstance(step, int):
            continue
        names = [name for name in line if name not in ("step", "seconds")] if "split" in line else ["loss"]
        for name in names:
            value = line.get(name)
            if isinstance(value, float) and math.isfinite(value):
                steps, values = points.setdefault((split, name), ([], []))
                steps.append(step)
                values.append(value)
    return [
        Curve(split=split, figure=name, steps=_thinned(steps), values=_thinned(values))
        for (split, name), (steps, values) in points.items()
    ]


def error_groups(corpus: Corpus, students: Sequence[StudentTexts]) -> dict[str, list[dict[str, object]]]:
    """Errors to a word of each student by groups; groups without a value are left out, the largest come first."""
    groups: dict[str, list[dict[str, object]]] = {}
    if not students:
        return groups
    sums = ", ".join(
        f"sum({student.prefix}_errors) / nullif(sum({student.prefix}_words), 0)::DOUBLE" for student in students
    )
    for name, expression in _GROUPS.items():
        rows = corpus.ask(
            f"SELECT {expression} AS value, sum({students[0].prefix}_words) AS words, {sums}"
            f" FROM students JOIN corpus.rows AS rows USING (row)"
            f" WHERE {expression} IS NOT NULL{corpus.without_removed} GROUP BY value"
            f" ORDER BY words DESC NULLS LAST, value LIMIT {MOST_GROUPS}"
        )
        if len(rows) > 1:
            groups[name] = [{"value": value, "words": words, "wer": list(rates)} for value, words, *rates in rows]
    return groups


def _thinned(points: Sequence[Number]) -> list[Number]:
    if len(points) <= MOST_POINTS:
        return list(points)
    last = len(points) - 1
    return [points[round(k * last / (MOST_POINTS - 1))] for k in range(MOST_POINTS)]
