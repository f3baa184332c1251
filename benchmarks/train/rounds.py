"""Contenders that take turns, in tables: medians over the rounds, and of the ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]
"""The figures of one contender, a row for each round."""


def median(rows: Rows, figure: str) -> Any:
    """The median of a figure over the rounds."""
    return statistics.median(row[figure] for row in rows)


def ratio(rows: Rows, base: Rows, figure: str) -> str:
    """The median of a figure over that of another contender in the same round; empty where that has none."""
    ratios = [row[figure] / other[figure] for row, other in zip(rows, base, strict=False)]
    return f"{statistics.median(ratios):.2f}" if ratios else ""
