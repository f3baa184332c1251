"""How far an error rate can be trusted.

Utterances of one speaker share accent, microphone and words, so speakers are drawn and not utterances: drawing
utterances would give an interval too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from voxstill.records import ErrorCounts
from voxstill.score.words import Scored

_DRAWS_AT_ONCE = 4_000_000  # keeps the memory of a million blocks below 100 MB


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
    generator = np.random.default_rng(seed)
    num_blocks = len(errors_B)
    rates: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    for start in range(0, resamples, step := max(1, _DRAWS_AT_ONCE // num_blocks)):
        drawn_RB = generator.integers(num_blocks, size=(min(step, resamples - start), num_blocks), dtype=np.int32)
        errors_R, reference_R = errors_B[drawn_RB].sum(1), reference_B[drawn_RB].sum(1)
        said_R = reference_R > 0  # a draw of silent blocks alone has no rate
        rates.append(errors_R[said_R] / reference_R[said_R])
    low, high = np.percentile(np.concatenate(rates), [2.5, 97.5])
    return float(low), float(high)
