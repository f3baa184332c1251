"""Losses in fp32 whatever the precision, summed, so that a global count can divide them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def ctc(logits_BFV: Tensor, frames_B: Tensor, tokens_BU: Tensor, token_len_B: Tensor, blank_id: int) -> Tensor:
    """Connectionist temporal classification (Graves et al. 2006), one value an utterance (B,), in fp32.

    An infeasible target gives infinity: the planner must have dropped it.
    """
    log_probs_FBV = functional.log_softmax(logits_BFV.float(), dim=-1).transpose(0, 1)
    return functional.ctc_loss(
        log_probs_FBV, tokens_BU.clamp(min=0), frames_B, token_len_B, blank=blank_id, reduction="none"
    )


def alignment_targets(
    times_BU2: Tensor, tokens_BU: Tensor, frame_ms_B: Tensor, num_frames: int, blank_id: int
) -> Tensor:
    """(B, F) token said at the middle of each frame, the blank between words. `frame_ms_B` is a frame's length."""
    middle_BF = (torch.arange(num_frames, device=times_BU2.device)[None] + 0.5) * frame_ms_B[:, None]
    inside_BFU = (times_BU2[:, None, :, 0] <= middle_BF[..., None]) & (middle_BF[..., None] < times_BU2[:, None, :, 1])
    spoken_BF = tokens_BU.gather(1, inside_BFU.to(torch.uint8).argmax(-1))
    return torch.where(inside_BFU.any(-1), spoken_BF, torch.full_like(spoken_BF, blank_id))


def frame_cross_entropy(logits_BFV: Tensor, frames_B: Tensor, targets_BF: Tensor) -> Tensor:
    """Cross-entropy summed over an utterance's own frames, one value an utterance (B,), in fp32."""
    loss_BF = functional.cross_entropy(logits_BFV.float().transpose(1, 2), targets_BF, reduction="none")
    # never mask too little: guessing silence we added is free marks
    mask_BF = torch.arange(loss_BF.shape[1], device=loss_BF.device)[None] < frames_B[:, None]
    return (loss_BF * mask_BF).sum(1)
