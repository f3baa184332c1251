"""From the encoder of a transducer to words with times and confidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from voxstill.decode.tokens import Token, hypothesis
from voxstill.records import Hypothesis

Memory = tuple[Tensor, Tensor]
Predict = Callable[[Tensor, Memory | None], tuple[Tensor, Memory]]
"""Tokens (B, U) after what was said before to states (B, U, P), and what was said until then."""
Joint = Callable[[Tensor, Tensor], Tensor]
"""Encoder frames (B, F, 1, E) and predictor states (B, 1, U, P) to logits (B, F, U, V)."""
MAX_SYMBOLS = 10
"""Tokens that one frame may have before the next frame is taken."""


@torch.no_grad()
def greedy(
    encoded_BFE: Tensor,
    frames_B: Tensor,
    *,
    predict: Predict,
    joint: Joint,
    ids: Sequence[str],
    pieces: Sequence[str],
    blank_id: int,
    frame_ms: int,
    durations: Sequence[int] = (),
) -> list[Hypothesis]:
    """One hypothesis for each id: in each frame the likeliest token until that is the blank (Graves 2012, 2.5).

    The blank is the last of the tokens, and stands before the first token. A token lasts one frame, that in
    which it is said. Frames beyond `frames_B` are never read. With `durations` the last logits of the joint say which
    of them is to pass before the next token, and a token lasts that, at least a frame (Xu et al. 2023, "Efficient
    sequence transduction by jointly predicting tokens and durations").
    """
    num, device = len(encoded_BFE), encoded_BFE.device
    tokens: list[list[Token]] = [[] for _ in range(num)]
    at_B, said_B = torch.zeros(num, dtype=torch.long, device=device), torch.zeros(num, dtype=torch.long, device=device)
    row_B, last = torch.arange(num, device=device), max(encoded_BFE.shape[1] - 1, 0)
    predicted_B1P, memory = predict(torch.full((num, 1), blank_id, device=device), None)
    while bool((active_B := at_B < frames_B).any()):
        encoded_B1E = encoded_BFE[row_B, at_B.clamp(max=last)][:, None]
        logits_BV = joint(encoded_B1E[:, :, None], predicted_B1P[:, None])[:, 0, 0].float()
        logprob_B, best_B = logits_BV[:, : blank_id + 1].log_softmax(-1).max(-1)
        speaks_B = active_B & (best_B != blank_id)
        said_B = torch.where(speaks_B, said_B + 1, 0)
        if durations:
            onward_B = torch.tensor(durations, device=device)[logits_BV[:, blank_id + 1 :].argmax(-1)]
            onward_B = torch.where(~speaks_B | (said_B >= MAX_SYMBOLS), onward_B.clamp(min=1), onward_B)
        else:
            onward_B = (~speaks_B | (said_B >= MAX_SYMBOLS)).long()
        columns = (each.tolist() for each in (speaks_B, best_B, logprob_B, at_B, frames_B, onward_B))
        for b, (speaks, best, logprob, at, num_frames, onward) in enumerate(zip(*columns, strict=True)):
            if speaks:
                end = min(at + max(onward, 1), num_frames)
                tokens[b].append(Token(best, at, end, np.array([logprob], np.float32)))
        at_B, said_B = at_B + onward_B, torch.where(onward_B > 0, 0, said_B)
        after_B1P, after = predict(best_B[:, None], memory)
        predicted_B1P = torch.where(speaks_B[:, None, None], after_B1P, predicted_B1P)
        hidden, cell = (torch.where(speaks_B[:, None], *each) for each in zip(after, memory, strict=True))
        memory = hidden, cell
    return [hypothesis(id_, each, pieces, frame_ms) for id_, each in zip(ids, tokens, strict=True)]
