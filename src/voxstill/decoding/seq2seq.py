"""Greedy decoding of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""The newest tokens (B, U) and the decoder's cache, to logits of the next token (B, V) and the cache after it."""


@torch.no_grad()
def greedy(
    step: Step, num: int, *, prefix: Sequence[int], end_id: int, longest: int, device: torch.device
) -> list[tuple[list[int], float | None]]:
    """Decode `num` utterances: token ids of each and the mean of their log-probabilities, None without tokens.

    Takes the most likely token in each step, until `end_id` or `longest` tokens. Tokens above `end_id` are commands, no
    text, and never chosen.
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
        for ids, best, active in zip(tokens, best_B.tolist(), active_B.tolist(), strict=True):
            if active:
                ids.append(best)
        newest_BU = best_B[:, None]
    return [(ids, total / len(ids) if ids else None) for ids, total in zip(tokens, total_B.tolist(), strict=True)]
