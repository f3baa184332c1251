"""From an encoder-decoder to tokens, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""The newest tokens (B, U) and what is remembered of those before, to logits of the next one (B, V) and the same."""


@torch.no_grad()
def greedy(
    step: Step, num: int, *, prefix: Sequence[int], end_id: int, longest: int, device: torch.device
) -> list[tuple[list[int], float | None]]:
    """Token ids of each of `num` utterances and the mean of their log-probabilities, None where there are none.

    The likeliest token each time, until `end_id` or `longest` tokens. Tokens above `end_id` command and do not spell:
    they are never said.
    """
    tokens: list[list[int]] = [[] for _ in range(num)]
    total_B, active_B = torch.zeros(num, device=device), torch.ones(num, dtype=torch.bool, device=device)
    newest_BU, memory = torch.tensor([list(prefix)] * num, device=device), None
    for _ in range(longest):
        logits_BV, memory = step(newest_BU, memory)
        logprob_B, best_B = logits_BV[:, : end_id + 1].float().log_softmax(-1).max(-1)
        active_B = active_B & (best_B != end_id)
        if not bool(active_B.any()):
            break
        total_B = total_B + logprob_B * active_B
        for said, best, active in zip(tokens, best_B.tolist(), active_B.tolist(), strict=True):
            if active:
                said.append(best)
        newest_BU = best_B[:, None]
    return [(said, total / len(said) if said else None) for said, total in zip(tokens, total_B.tolist(), strict=True)]
