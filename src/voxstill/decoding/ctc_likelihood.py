"""The CTC log-likelihood of a text: the forward pass over all of its alignments, compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from voxstill.text.lm import compiled


def mean_log_likelihood(log_probs_FV: NDArray[np.float32], tokens: Sequence[int], blank_id: int) -> float | None:
    """CTC log-probability per token of the tokens; None if there are none, or too few frames for them.

    The sum over all alignments, which CTC maximises (Graves et al. 2006, 4.1): an inserted and a deleted word both
    lower it.
    """
    if not len(tokens) or not len(log_probs_FV):
        return None
    total = _total(np.ascontiguousarray(log_probs_FV, np.float32), np.array(tokens, np.int64), blank_id)
    return float(total) / len(tokens) if math.isfinite(total) else None


@compiled
def _total(log_probs_FV: NDArray[np.float32], tokens_U: NDArray[np.int64], blank_id: int) -> float:
    """Log-probability of the tokens; minus infinity where they do not fit. Odd states are tokens, even ones blanks."""
    num_states = 2 * len(tokens_U) + 1
    forward_S, next_S = np.full(num_states, -np.inf), np.full(num_states, -np.inf)
    forward_S[0], forward_S[1] = log_probs_FV[0, blank_id], log_probs_FV[0, tokens_U[0]]
    for f in range(1, len(log_probs_FV)):
        for s in range(num_states):
            stay = forward_S[s]
            step = forward_S[s - 1] if s > 0 else -np.inf
            skips = s % 2 == 1 and s > 1 and tokens_U[s // 2] != tokens_U[s // 2 - 1]
            skip = forward_S[s - 2] if skips else -np.inf
            best = max(stay, step, skip)
            emission = log_probs_FV[f, tokens_U[s // 2] if s % 2 == 1 else blank_id]
            if best == -np.inf:
                next_S[s] = -np.inf
            else:
                next_S[s] = best + np.log(np.exp(stay - best) + np.exp(step - best) + np.exp(skip - best)) + emission
        forward_S, next_S = next_S, forward_S
    return float(np.logaddexp(forward_S[-1], forward_S[-2]))
