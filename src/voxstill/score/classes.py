"""How well classes were told apart: accuracy, precision and recall of each, and what was taken for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OfClass:
    """How one class did: `count` is how often it was there, `precision` None where it was never said, `recall` None
    where it was never there. `f1` is their harmonic mean, and 0 where either would be."""

    precision: float | None
    recall: float | None
    f1: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """How all did. `confusion[reference][hypothesis]` is how often that happened, and holds only what did happen.

    Rates are shares, None where nothing was judged. `macro_f1` is the mean over the classes that were there or were
    said, each as heavy as another, as in scikit-learn.
    """

    accuracy: float | None
    macro_f1: float | None
    per_class: Mapping[str, OfClass]
    confusion: Mapping[str, Mapping[str, int]]


def score(pairs: Sequence[tuple[str, str]]) -> Classes:
    """The figures of (reference, hypothesis) names of classes; every class of either side has its own, by name."""
    both = Counter(pairs)
    there, said = Counter(reference for reference, _ in pairs), Counter(hypothesis for _, hypothesis in pairs)
    names = sorted(there | said)
    per_class = {
        name: OfClass(
            precision=both[name, name] / said[name] if said[name] else None,
            recall=both[name, name] / there[name] if there[name] else None,
            f1=2 * both[name, name] / (there[name] + said[name]),
            count=there[name],
        )
        for name in names
    }
    confusion: dict[str, dict[str, int]] = {}
    for (reference, hypothesis), count in sorted(both.items()):
        confusion.setdefault(reference, {})[hypothesis] = count
    return Classes(
        accuracy=sum(both[name, name] for name in names) / len(pairs) if pairs else None,
        macro_f1=sum(each.f1 for each in per_class.values()) / len(per_class) if per_class else None,
        per_class=per_class,
        confusion=confusion,
    )


def confusions(confusion: Mapping[str, Mapping[str, int]], limit: int) -> list[tuple[str, str, int]]:
    """The commonest mistakes, each as reference, hypothesis and how often."""
    found = [(ref, hyp, count) for ref, row in confusion.items() for hyp, count in row.items() if ref != hyp]
    return sorted(found, key=lambda each: (-each[2], each[:2]))[:limit]
