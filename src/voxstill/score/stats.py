"""How far an error rate can be trusted, and whether one is lower than another.

Utterances of one speaker share accent, microphone and words, so speakers are drawn and not utterances: drawing
utterances would give an interval too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from voxstill.records import ErrorCounts
from voxstill.score.words import Scored

_DRAWS_AT_ONCE = 4_000_000  # keeps the memory of a million blocks below 100 MB
_ALL_SWAPS = 16
"""Of so many blocks that differ, every way to swap them is gone through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What is drawn: the counts of each block, and what a block is."""

    unit: Literal["speakers", "utterances"]
    counts: tuple[ErrorCounts, ...]


def blocks(
    rows: Iterable[Scored], speakers: Mapping[str, str | None], of: Literal["words", "characters"] = "words"
) -> Blocks:
    """The errors of each speaker, or of each utterance where fewer than two speakers are known.

    `speakers` maps utterance ids to speakers; an utterance of nobody known is a block of its own.
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


def interval(counts_by_block: Sequence[ErrorCounts], resamples: int, seed: int) -> tuple[float, float] | None:
    """The 95 % percentile bootstrap interval of the error rate, drawing blocks; None where nothing was said.

    One block alone gives an interval of no width: it tells nothing of others. Bisani and Ney, ICASSP 2004, section 2.
    """
    errors_B = np.array([counts.errors for counts in counts_by_block], dtype=np.int64)
    reference_B = np.array([counts.reference for counts in counts_by_block], dtype=np.int64)
    if not reference_B.any():
        return None
    low, high = np.percentile(_drawn(errors_B, reference_B, resamples, seed), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Two systems on the same utterances. `difference` is the rate of the second less that of the first.

    `p` is how often a difference at least as large comes about, either way, where the two are equally good. It is
    `exact` where all ways were gone through. `interval` holds 95 % of the differences over draws of blocks.
    """

    difference: float
    interval: tuple[float, float]
    p: float
    exact: bool
    blocks: int


def paired(first: Sequence[ErrorCounts], second: Sequence[ErrorCounts], resamples: int, seed: int) -> Paired | None:
    """Whether two systems differ, by the counts of the same blocks in the same order; None where nothing was said.

    An approximate randomisation test (Noreen 1989; Gillick and Cox, ICASSP 1989, for matched pairs of segments): where
    the two are equally good, what they said of a block might as well have been swapped. Of up to 2^16 ways to swap all
    are gone through, of more `resamples` are drawn, and the one observed is counted among them (Phipson and Smyth
    2010), so that p is never 0. The interval is Bisani and Ney's (ICASSP 2004) of the difference.
    """
    one_B, two_B = (np.array([counts.errors for counts in some], dtype=np.int64) for some in (first, second))
    reference_B = np.array([counts.reference for counts in first], dtype=np.int64)
    if not reference_B.any():
        return None
    gap_B = two_B - one_B
    unlike_B = gap_B[gap_B != 0]  # to swap what is equal changes nothing
    exact = len(unlike_B) <= _ALL_SWAPS
    seen = abs(int(unlike_B.sum()))
    if exact:
        sums_S = np.zeros(1, dtype=np.int64)
        for gap in unlike_B:
            sums_S = np.concatenate([sums_S + gap, sums_S - gap])
        p = float(np.mean(np.abs(sums_S) >= seen))
    else:
        generator = np.random.default_rng(seed)
        larger = 0
        for start in range(0, resamples, step := max(1, _DRAWS_AT_ONCE // len(unlike_B))):
            swapped_RB = generator.integers(2, size=(min(step, resamples - start), len(unlike_B)), dtype=np.int8)
            larger += int((np.abs((1 - 2 * swapped_RB) @ unlike_B) >= seen).sum())
        p = (larger + 1) / (resamples + 1)
    rates = _drawn(gap_B, reference_B, resamples, seed)
    low, high = np.percentile(rates, [2.5, 97.5])
    return Paired(
        difference=float(gap_B.sum() / reference_B.sum()),
        interval=(float(low), float(high)),
        p=p,
        exact=exact,
        blocks=len(gap_B),
    )


def _drawn(
    errors_B: NDArray[np.int64], reference_B: NDArray[np.int64], resamples: int, seed: int
) -> NDArray[np.float64]:
    """Rates of draws of blocks; a draw of silent blocks alone has none."""
    generator = np.random.default_rng(seed)
    num_blocks = len(errors_B)
    rates: list[NDArray[np.float64]] = []
    for start in range(0, resamples, step := max(1, _DRAWS_AT_ONCE // num_blocks)):
        drawn_RB = generator.integers(num_blocks, size=(min(step, resamples - start), num_blocks), dtype=np.int32)
        errors_R, reference_R = errors_B[drawn_RB].sum(1), reference_B[drawn_RB].sum(1)
        said_R = reference_R > 0
        rates.append(errors_R[said_R] / reference_R[said_R])
    return np.concatenate(rates)
