"""Classification metrics: accuracy, macro F1, precision and recall of each class, and the confusion matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures:
    """Figures of one class.

    `count` is how often it is in the reference; `precision` is None if it was never predicted, `recall` where it is
    never in the reference. `f1` is their harmonic mean, and 0 where either would be 0.
    """

    precision: float | None
    recall: float | None
    f1: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationFigures:
    """Figures of all classes. `confusion[reference][hypothesis]` is a count; pairs that did not occur are absent.

    Rates are shares, None if nothing was scored. `macro_f1` is the unweighted mean over the classes that are in the
    reference or were predicted, as in scikit-learn.
    """

    accuracy: float | None
    macro_f1: float | None
    per_class: Mapping[str, ClassFigures]
    confusion: Mapping[str, Mapping[str, int]]


def score(pairs: Sequence[tuple[str, str]]) -> ClassificationFigures:
    """Score (reference, hypothesis) class names; `per_class` has every class of either side."""
    num_pairs = Counter(pairs)
    num_references = Counter(reference for reference, _ in pairs)
    num_hypotheses = Counter(hypothesis for _, hypothesis in pairs)
    names = sorted(num_references | num_hypotheses)
    per_class = {
        name: ClassFigures(
            precision=num_pairs[name, name] / num_hypotheses[name] if num_hypotheses[name] else None,
            recall=num_pairs[name, name] / num_references[name] if num_references[name] else None,
            f1=2 * num_pairs[name, name] / (num_references[name] + num_hypotheses[name]),
            count=num_references[name],
        )
        for name in names
    }
    confusion: dict[str, dict[str, int]] = {}
    for (reference, hypothesis), count in sorted(num_pairs.items()):
        confusion.setdefault(reference, {})[hypothesis] = count
    return ClassificationFigures(
        accuracy=sum(num_pairs[name, name] for name in names) / len(pairs) if pairs else None,
        macro_f1=sum(figures.f1 for figures in per_class.values()) / len(per_class) if per_class else None,
        per_class=per_class,
        confusion=confusion,
    )


def confusions(confusion: Mapping[str, Mapping[str, int]], limit: int) -> list[tuple[str, str, int]]:
    """The most frequent confusions as (reference, hypothesis, count)."""
    mistakes = [(ref, hyp, count) for ref, row in confusion.items() for hyp, count in row.items() if ref != hyp]
    return sorted(mistakes, key=lambda mistake: (-mistake[2], mistake[:2]))[:limit]
