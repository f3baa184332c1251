"""Speaker verification metrics: equal error rate and minimum detection cost of similarity scores.

A trial is accepted where its score reaches a threshold. A miss is a trial of one speaker that is rejected, a false
alarm a trial of two speakers that is accepted. Only the order of the scores matters; equal scores are one threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voxstill.core.errors import DataError

MOST_COMPARED = 3000
"""Of more utterances so many are drawn, all pairs of which are trials: four and a half million."""


class Trials(NamedTuple):
    """N pairs of utterances by index, and whether both are of the same speaker."""

    first_N: NDArray[np.int64]
    second_N: NDArray[np.int64]
    same_N: NDArray[np.bool_]


def trials(speakers: Sequence[str | None]) -> Trials:
    """Pair every two utterances once; those of an unknown speaker are left out."""
    known_K = np.array([place for place, speaker in enumerate(speakers) if speaker is not None], dtype=np.int64)
    _, number_K = np.unique([speaker for speaker in speakers if speaker is not None], return_inverse=True)
    first_N, second_N = np.triu_indices(len(known_K), k=1)
    return Trials(known_K[first_N], known_K[second_N], number_K[first_N] == number_K[second_N])


def eer(score_N: ArrayLike, same_N: ArrayLike) -> float:
    """Equal error rate: the rate of misses and of false alarms at the threshold where both are equal.

    Where no threshold makes them equal, it is interpolated between the two next to it, as on a ROC curve. DataError
    where there are not trials of both kinds, or a score is NaN.
    """
    misses_T, false_alarms_T, num_same, num_different = _errors(score_N, same_N)
    # rises from -num_same * num_different to num_same * num_different, in whole numbers
    gap_T = misses_T * num_different - false_alarms_T * num_same
    crossing = int(np.argmax(gap_T >= 0))
    fraction = int(gap_T[crossing]) / int(gap_T[crossing] - gap_T[crossing - 1])
    return float(misses_T[crossing] - fraction * (misses_T[crossing] - misses_T[crossing - 1])) / num_same


def eer_threshold(score_N: ArrayLike, same_N: ArrayLike) -> float:
    """The score from which a trial is accepted where the rates of misses and of false alarms are nearest to equal.

    It lies midway between two scores of the trials, so that equal ones are on one side. DataError as for `eer`.
    """
    misses_T, false_alarms_T, num_same, num_different = _errors(score_N, same_N)
    gap_T = np.abs(misses_T * num_different - false_alarms_T * num_same)
    distinct_T = np.unique(np.asarray(score_N, dtype=np.float64))
    # at index i all but the i lowest scores are accepted
    nearest = int(np.argmin(gap_T[1:-1])) + 1 if len(distinct_T) > 1 else 0
    return float(distinct_T[max(nearest - 1, 0) : nearest + 1].mean())


def min_dcf(
    score_N: ArrayLike,
    same_N: ArrayLike,
    *,
    prior: float = 0.01,
    miss_cost: float = 1.0,
    false_alarm_cost: float = 1.0,
) -> float:
    """Minimum normalised detection cost over all thresholds; 1 is as good as accepting all or nothing.

    NIST's speaker recognition evaluations (the 2010 plan, performance measures): `miss_cost * prior * P(miss) +
    false_alarm_cost * (1 - prior) * P(false alarm)`, divided by the smaller of the two weights. `prior` is the
    probability that both utterances are of one speaker. DataError as for `eer`.
    """
    misses_T, false_alarms_T, num_same, num_different = _errors(score_N, same_N)
    miss_weight, false_alarm_weight = miss_cost * prior, false_alarm_cost * (1 - prior)
    cost_T = miss_weight * misses_T / num_same + false_alarm_weight * false_alarms_T / num_different
    return float(np.min(cost_T)) / min(miss_weight, false_alarm_weight)


def _errors(score_N: ArrayLike, same_N: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
    """Misses and false alarms at each threshold, from accepting all to nothing, and the trials of each kind."""
    score_N, same_N = np.asarray(score_N), np.asarray(same_N, dtype=bool)
    num_same = int(same_N.sum())
    num_different = len(same_N) - num_same
    if not num_same or not num_different:
        raise DataError(
            "speakers cannot be verified on these trials",
            code="too-few-classes",
            why=f"{num_same:,} are of the same speaker and {num_different:,} of different speakers",
            fix="use at least two speakers, one of them with two utterances",
        )
    if np.isnan(score_N).any():
        raise DataError(
            "the score of a trial is not a number", code="audio-empty", fix="check for empty or silent utterances"
        )
    order_N = np.argsort(score_N, kind="stable")
    score_N = score_N[order_N]
    last_N = np.append(score_N[1:] != score_N[:-1], True)  # the last of equal scores
    rejected_same_T = np.append(0, np.cumsum(same_N[order_N])[last_N])
    rejected_T = np.append(0, np.flatnonzero(last_N) + 1)
    return rejected_same_T, num_different - (rejected_T - rejected_same_T), num_same, num_different


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
