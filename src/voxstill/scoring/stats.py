"""Confidence intervals of error rates by the bootstrap, and paired significance tests.

Utterances of one speaker share accent, microphone and words, so blocks of speakers are resampled: resampling utterances
would give intervals that are too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import ErrorCounts
from voxstill.core.result import Result
from voxstill.scoring.words import Scored

_DRAWS_AT_ONCE = 4_000_000  # keeps the memory of a million blocks below 100 MB
_MAX_EXACT_BLOCKS = 16
"""Up to so many blocks that differ, the randomisation test is exact: it enumerates every way to swap them."""
Unit = Literal["speakers", "utterances"]
"""What a block is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks to resample: the counts of each, and what a block is."""

    unit: Unit
    counts: tuple[ErrorCounts, ...]


def blocks(
    rows: Iterable[Scored], speakers: Mapping[str, str | None], of: Literal["words", "characters"] = "words"
) -> Blocks:
    """Sum errors by speaker, or by utterance where fewer than two speakers are known.

    `speakers` maps utterance ids to speakers; an utterance of an unknown speaker is a block of its own.
    """
    rows = list(rows)
    if len({name for row in rows if (name := speakers.get(row.id)) is not None}) < 2:
        return Blocks(unit="utterances", counts=tuple(getattr(row, of) for row in rows))
    groups: dict[tuple[str, str], list[ErrorCounts]] = {}
    for row in rows:
        speaker = speakers.get(row.id)
        groups.setdefault(("utterance", row.id) if speaker is None else ("speaker", speaker), []).append(
            getattr(row, of)
        )
    return Blocks(unit="speakers", counts=tuple(map(ErrorCounts.sum, groups.values())))


def interval(counts_by_block: Sequence[ErrorCounts], bootstrap_draws: int, seed: int) -> tuple[float, float] | None:
    """95 % percentile bootstrap interval of the error rate over blocks; None if the reference is empty.

    A single block gives an interval of width 0, which says nothing. Bisani and Ney, ICASSP 2004, section 2.
    """
    errors_B = np.array([counts.errors for counts in counts_by_block], dtype=np.int64)
    reference_B = np.array([counts.reference for counts in counts_by_block], dtype=np.int64)
    if not reference_B.any():
        return None
    low, high = np.percentile(_bootstrap_rates(errors_B, reference_B, bootstrap_draws, seed), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest(Result):
    """Paired test of two systems on the same utterances. `difference` is the rate of the second minus the first.

    `p` is the two-sided p-value of the null hypothesis that both are equally good; it is `exact` where all swaps were
    enumerated. `interval` is the 95 % bootstrap interval of the difference.
    """

    difference: float
    interval: tuple[float, float]
    p: float
    exact: bool
    blocks: int
    blocks_are: Unit


def paired_test(first: Blocks, second: Blocks, bootstrap_draws: int, seed: int) -> PairedTest | None:
    """Test whether two systems differ, by the same blocks in the same order; None for an empty reference.

    An approximate randomisation test (Noreen 1989; Gillick and Cox, ICASSP 1989, for matched pairs of segments): under
    the null hypothesis the results of a block can be swapped. Up to 2^16 swaps are enumerated; of more,
    `bootstrap_draws` are drawn, and the one observed is counted among them (Phipson and Smyth 2010), so that p is
    never 0. The interval is that of Bisani and Ney (ICASSP 2004) for the difference.
    """
    reference_B = np.array([counts.reference for counts in first.counts], dtype=np.int64)
    if not reference_B.any():
        return None
    pairs = zip(first.counts, second.counts, strict=True)
    gap_B = np.array([b.errors - a.errors for a, b in pairs], dtype=np.int64)
    p, exact = _randomization_p(gap_B[gap_B != 0], bootstrap_draws, seed)  # swapping equal counts changes nothing
    rates = _bootstrap_rates(gap_B, reference_B, bootstrap_draws, seed)
    low, high = np.percentile(rates, [2.5, 97.5])
    return PairedTest(
        difference=float(gap_B.sum() / reference_B.sum()),
        interval=(float(low), float(high)),
        p=p,
        exact=exact,
        blocks=len(gap_B),
        blocks_are=first.unit,
    )


def _randomization_p(gap_B: NDArray[np.int64], bootstrap_draws: int, seed: int) -> tuple[float, bool]:
    """Two-sided p-value of the sum of differences by block when signs are random, and whether it is exact."""
    observed = abs(int(gap_B.sum()))
    if len(gap_B) <= _MAX_EXACT_BLOCKS:
        sums_S = np.zeros(1, dtype=np.int64)
        for gap in gap_B:
            sums_S = np.concatenate([sums_S + gap, sums_S - gap])
        return float(np.mean(np.abs(sums_S) >= observed)), True
    generator = np.random.default_rng(seed)
    num_larger = 0
    for start in range(0, bootstrap_draws, step := max(1, _DRAWS_AT_ONCE // len(gap_B))):
        swapped_RB = generator.integers(2, size=(min(step, bootstrap_draws - start), len(gap_B)), dtype=np.int8)
        num_larger += int((np.abs((1 - 2 * swapped_RB) @ gap_B) >= observed).sum())
    return (num_larger + 1) / (bootstrap_draws + 1), False


def _bootstrap_rates(
    errors_B: NDArray[np.int64], reference_B: NDArray[np.int64], bootstrap_draws: int, seed: int
) -> NDArray[np.float64]:
    """Error rate of each bootstrap resample of the blocks; one with an empty reference has none."""
    generator = np.random.default_rng(seed)
    num_blocks = len(errors_B)
    rates: list[NDArray[np.float64]] = []
    for start in range(0, bootstrap_draws, step := max(1, _DRAWS_AT_ONCE // num_blocks)):
        drawn_RB = generator.integers(num_blocks, size=(min(step, bootstrap_draws - start), num_blocks), dtype=np.int32)
        errors_R, reference_R = errors_B[drawn_RB].sum(1), reference_B[drawn_RB].sum(1)
        has_reference_R = reference_R > 0
        rates.append(errors_R[has_reference_R] / reference_R[has_reference_R])
    return np.concatenate(rates)
