"""Whether two utterances are of one speaker: the errors of a score that is high where they are.

A trial is accepted where its score reaches a threshold. A miss is a trial of one speaker that is not accepted, a false
alarm one of two speakers that is. Only the order of the scores matters, and equal scores are never told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voxstill.errors import DataError

MOST_COMPARED = 3000
"""Of more utterances so many are drawn, all pairs of which are trials: four and a half million."""


class Trials(NamedTuple):
    """N pairs of utterances by their places, and whether one speaker says both."""

    first_N: NDArray[np.int64]
    second_N: NDArray[np.int64]
    same_N: NDArray[np.bool_]


def trials(speakers: Sequence[str | None]) -> Trials:
    """Every pair of utterances once, none with itself; those of an unknown speaker are left out."""
    known_K = np.array([place for place, speaker in enumerate(speakers) if speaker is not None], dtype=np.int64)
    _, number_K = np.unique([speaker for speaker in speakers if speaker is not None], return_inverse=True)
    first_N, second_N = np.triu_indices(len(known_K), k=1)
    return Trials(known_K[first_N], known_K[second_N], number_K[first_N] == number_K[second_N])


def eer(score_N: ArrayLike, same_N: ArrayLike) -> float:
    """The equal error rate: the share of misses and of false alarms at the threshold where both are alike.

    Where no threshold makes them alike, the line between the two thresholds next to that is followed, as it is where a
    ROC curve is cut. DataError where there are not trials of both kinds, or a score is no number.
    """
    miss_T, alarm_T, same, other = _errors(score_N, same_N)
    gap_T = miss_T * other - alarm_T * same  # rises from -same * other to same * other, in whole numbers
    after = int(np.argmax(gap_T >= 0))
    along = int(gap_T[after]) / int(gap_T[after] - gap_T[after - 1])
    return float(miss_T[after] - along * (miss_T[after] - miss_T[after - 1])) / same


def min_dcf(
    score_N: ArrayLike,
    same_N: ArrayLike,
    *,
    prior: float = 0.01,
    miss_cost: float = 1.0,
    false_alarm_cost: float = 1.0,
) -> float:
    """The least detection cost of any threshold, 1 where accepting all or nothing is as good.

    NIST's speaker recognition evaluations (the 2010 plan, performance measures): `miss_cost * prior * P(miss) +
    false_alarm_cost * (1 - prior) * P(false alarm)`, over the less of the two weights, which costs to decide blindly.
    `prior` is how probable it is that one speaker says both. DataError as for `eer`.
    """
    miss_T, alarm_T, same, other = _errors(score_N, same_N)
    miss, alarm = miss_cost * prior, false_alarm_cost * (1 - prior)
    return float(np.min(miss * miss_T / same + alarm * alarm_T / other)) / min(miss, alarm)


def _errors(score_N: ArrayLike, same_N: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
    """Misses and false alarms at each threshold that matters, from accepting all to nothing; trials of each kind."""
    score_N, same_N = np.asarray(score_N), np.asarray(same_N, dtype=bool)
    same = int(same_N.sum())
    other = len(same_N) - same
    if not same or not other:
        raise DataError(
            "speakers cannot be verified on these trials",
            why=f"{same:,} are of one speaker and {other:,} of two",
            fix="judge at least two speakers, one of them with two utterances",
        )
    if np.isnan(score_N).any():
        raise DataError("a score of a trial is no number", fix="look for empty or silent utterances")
    order_N = np.argsort(score_N, kind="stable")
    score_N = score_N[order_N]
    last_N = np.append(score_N[1:] != score_N[:-1], True)  # of those with an equal score
    rejected_same_T = np.append(0, np.cumsum(same_N[order_N])[last_N])
    rejected_T = np.append(0, np.flatnonzero(last_N) + 1)
    return rejected_same_T, other - (rejected_T - rejected_same_T), same, other


def compare(
    embedding_ND: NDArray[np.float32], speakers: Sequence[str | None], seed: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Compare utterances in pairs; return the cosine of every pair, and whether one speaker says both.

    Utterances without a speaker are left out; of more than `MOST_COMPARED` so many are drawn from the seed.
    """
    known_K = np.flatnonzero([speaker is not None for speaker in speakers])
    if len(known_K) > MOST_COMPARED:
        known_K = np.sort(np.random.default_rng(seed).choice(known_K, MOST_COMPARED, replace=False))
    pairs = trials([speakers[i] for i in known_K.tolist()])
    cosine_KK = embedding_ND[known_K] @ embedding_ND[known_K].T
    return cosine_KK[pairs.first_N, pairs.second_N], pairs.same_N
