"""Losses of each utterance in fp32 whatever the precision, summed, so that a global count can divide them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from voxstill.core.monitor import log

Joint = Callable[[Tensor, Tensor], Tensor]
"""Encoder frames (B, F, 1, E) and predictor states (B, 1, U, P) to logits (B, F, U, V)."""
NEVER = -1e30  # as a log-probability; where infinities meet, a divergence is NaN


def ctc(
    logits_BFV: Tensor,
    frames_B: Tensor,
    tokens_BU: Tensor,
    token_len_B: Tensor,
    blank_id: int,
    smoothing: float = 0.0,
) -> Tensor:
    """Connectionist temporal classification (Graves et al. 2006), one value an utterance (B,), in fp32.

    With `smoothing` s it is (1 - s) * CTC + s * KL(uniform || p), summed over the utterance's own frames (Kim et al.
    2018, "Improved training for online end-to-end speech recognition systems", section 3.3). An infeasible target gives
    infinity: the planner must have dropped it.
    """
    log_probs_BFV = functional.log_softmax(logits_BFV.float(), dim=-1)
    loss_B = _ctc(log_probs_BFV, tokens_BU, frames_B, token_len_B, blank_id)
    if not smoothing:
        return loss_B
    divergence_BF = -log_probs_BFV.mean(-1) - math.log(log_probs_BFV.shape[-1])
    return (1 - smoothing) * loss_B + smoothing * sum_own_frames(divergence_BF, frames_B)


def _ctc(log_probs_BFV: Tensor, tokens_BU: Tensor, frames_B: Tensor, token_len_B: Tensor, blank_id: int) -> Tensor:
    if _triton_runs(log_probs_BFV.device):
        from voxstill.nn import ctc_triton

        if tokens_BU.shape[1] <= ctc_triton.MAX_TOKENS:
            return ctc_triton.loss(log_probs_BFV, tokens_BU, frames_B, token_len_B, blank_id)
    return functional.ctc_loss(
        log_probs_BFV.transpose(0, 1),
        tokens_BU.clamp(min=0),
        frames_B,
        token_len_B,
        blank=blank_id,
        reduction="none",
    )


def cross_entropy(scores_BC: Tensor, class_B: Tensor) -> Tensor:
    """Cross-entropy of class scores (B,), in fp32."""
    return functional.cross_entropy(scores_BC.float(), class_B, reduction="none")


def additive_margin(cosine_BC: Tensor, class_B: Tensor, scale: float = 30.0, margin: float = 0.35) -> Tensor:
    """Additive margin softmax: cross-entropy of cosines where the true class must win by a `margin` (B,), in fp32.

    Wang et al. 2018, "Additive Margin Softmax for Face Verification", equation 6, with the scale and the margin there.
    """
    less_BC = margin * functional.one_hot(class_B, cosine_BC.shape[1])
    return cross_entropy(scale * (cosine_BC.float() - less_BC), class_B)


def consistency(logits_BFV: Tensor, other_BFV: Tensor, frames_B: Tensor) -> Tensor:
    """Consistency loss of CTC between two augmented views of the same utterances (B,), in fp32.

    Summed over own frames: half of KL(sg(q) || p) + KL(sg(p) || q), where sg stops the gradient (Yao et al. 2025,
    "CR-CTC: Consistency regularization on CTC for improved speech recognition", section 3.2).
    """
    p_BFV, q_BFV = (functional.log_softmax(values.float(), dim=-1) for values in (logits_BFV, other_BFV))
    divergence_BFV = functional.kl_div(p_BFV, q_BFV.detach(), reduction="none", log_target=True)
    divergence_BFV = divergence_BFV + functional.kl_div(q_BFV, p_BFV.detach(), reduction="none", log_target=True)
    return sum_own_frames(divergence_BFV.sum(-1) / 2, frames_B)


@dataclass(frozen=True, slots=True)
class Lattice:
    """Log-probabilities, in fp32, of what a transducer does next at each frame f, when it has emitted u tokens.

    There is a u before the first token, and one after each: U is one more than in `tokens_BU`.
    """

    moves_2BFU: Tensor
    """The blank, and the next token of the text."""
    duration_DBFU: Tensor
    """Each duration, of a TDT."""
    rest_BFU: Tensor | None
    """All other tokens together; None if not requested."""


def lattice(
    joint: Joint,
    encoded_BFE: Tensor,
    predicted_BUP: Tensor,
    tokens_BU: Tensor,
    blank_id: int,
    num_durations: int = 0,
    *,
    with_rest: bool = False,
    chunk: int = 8,
) -> Lattice:
    """Compute the lattice of a transducer; the last logits of the joint of a TDT are those of its durations.

    The joint's logits are computed for `chunk` frames at a time, recomputed in the backward pass, and never kept.
    """
    target_BU = functional.pad(tokens_BU.clamp(min=0), (0, 1))
    planes = functools.partial(_log_prob_planes, joint, blank_id, target_BU, num_durations, with_rest)
    log_prob_KBFU = _chunked(planes, encoded_BFE, predicted_BUP, chunk)
    rest = 2 + num_durations
    return Lattice(log_prob_KBFU[:2], log_prob_KBFU[2:rest], log_prob_KBFU[rest] if with_rest else None)


def transducer(lattice: Lattice, frames_B: Tensor, token_len_B: Tensor) -> Tensor:
    """RNN-T (Graves 2012, "Sequence transduction with recurrent neural networks"), one value an utterance, in fp32."""
    if _triton_runs(lattice.moves_2BFU.device):
        from voxstill.nn import transducer_triton

        return transducer_triton.loss(lattice.moves_2BFU, ((1, 0), (0, 1)), frames_B, token_len_B)
    loss_B: Tensor = _RnntLoss.apply(*lattice.moves_2BFU, frames_B, token_len_B)  # type: ignore[no-untyped-call]
    return loss_B


def duration_transducer(lattice: Lattice, frames_B: Tensor, token_len_B: Tensor, durations: Sequence[int]) -> Tensor:
    """TDT (Xu et al. 2023, "Efficient sequence transduction by jointly predicting tokens and durations"), in fp32.

    Like `transducer`, one value an utterance (B,). A path that leaves frame t by a duration d continues in frame t + d,
    and ends by a blank that leads just past the last frame.
    """
    blank_BFU, label_BFU = lattice.moves_2BFU
    move_KBFU = [label_BFU + duration_BFU for duration_BFU in lattice.duration_DBFU]
    moves = [(duration, 1) for duration in durations]
    for duration, duration_BFU in zip(durations, lattice.duration_DBFU, strict=True):
        if duration > 0:
            move_KBFU.append(blank_BFU + duration_BFU)
            moves.append((duration, 0))
    if _triton_runs(blank_BFU.device):
        from voxstill.nn import transducer_triton

        return transducer_triton.loss(torch.stack(move_KBFU), moves, frames_B, token_len_B)
    return _path_loss(move_KBFU, moves, frames_B, token_len_B)


def _path_loss(
    move_KBFU: Sequence[Tensor], moves: Sequence[tuple[int, int]], frames_B: Tensor, token_len_B: Tensor
) -> Tensor:
    """Compute `transducer_triton.loss` in plain torch, with the gradient by autograd."""
    num, _, num_states = move_KBFU[0].shape
    move_KNBU = [_skewed(plane_BFU) for plane_BFU in move_KBFU]
    impossible_BU = move_KBFU[0].new_full((num, num_states), -math.inf)
    start_BU = impossible_BU.clone()
    start_BU[:, 0] = 0.0
    alpha_NBU, end_scores = [start_BU], []
    row_B = torch.arange(num, device=frames_B.device)
    for n in range(1, int(frames_B.max()) + num_states):
        scores = [impossible_BU]
        for (num_frames, num_tokens), plane_NBU in zip(moves, move_KNBU, strict=True):
            source = n - num_frames - num_tokens
            if source >= 0:
                score_BU = alpha_NBU[source] + plane_NBU[source]
                scores.append(functional.pad(score_BU[:, :-1], (1, 0), value=-math.inf) if num_tokens else score_BU)
        alpha_NBU.append(_logsumexp(torch.stack(scores)))
    all_alpha_NBU = torch.stack(alpha_NBU)
    for (num_frames, num_tokens), plane_NBU in zip(moves, move_KNBU, strict=True):
        if not num_tokens:
            last_B = frames_B - num_frames
            n_B = last_B.clamp(min=0) + token_len_B
            score_B = all_alpha_NBU[n_B, row_B, token_len_B] + plane_NBU[n_B, row_B, token_len_B]
            end_scores.append(torch.where(last_B >= 0, score_B, -math.inf))
    return -_logsumexp(torch.stack(end_scores))


@functools.cache
def _triton_runs(device: torch.device) -> bool:
    """Whether Triton runs on a device; logs once a warning for a GPU on which it does not."""
    if device.type != "cuda":
        return False
    try:
        from voxstill.nn import ctc_triton

        length_B = torch.ones(1, dtype=torch.long, device=device)
        ctc_triton.loss(torch.zeros(1, 1, 2, device=device), length_B[:, None], length_B, length_B, 0)
    except Exception as error:  # no Triton, or none that works: it needs a C compiler, and a GPU that it knows
        log.warning(
            "the loss of CTC or a transducer is computed in many small steps on %s, as Triton does not run: %s",
            device,
            error,
        )
        return False
    return True


def _logsumexp(scores: Tensor) -> Tensor:
    """Log-sum-exp over the first axis; where all are minus infinity the gradient is 0, not NaN."""
    possible = (scores > -math.inf).any(0)
    return torch.where(possible, torch.where(possible, scores, 0.0).logsumexp(0), -math.inf)


def _log_prob_planes(
    joint: Joint,
    blank_id: int,
    target_BU: Tensor,
    num_durations: int,
    with_rest: bool,
    encoded_BfE: Tensor,
    predicted_BUP: Tensor,
) -> Tensor:
    """Log-probabilities of the blank, of the next token, of each duration, and of the rest (2 + D + 1, B, f, U)."""
    logits_BfUV = joint(encoded_BfE[:, :, None], predicted_BUP[:, None]).float()
    duration_BfUD = logits_BfUV[..., logits_BfUV.shape[-1] - num_durations :].log_softmax(-1)
    logits_BfUV = logits_BfUV[..., : logits_BfUV.shape[-1] - num_durations]
    total_BfU = logits_BfUV.logsumexp(-1)
    index_BfU1 = target_BU[:, None, :, None].expand(*logits_BfUV.shape[:3], 1)
    label_BfU = logits_BfUV.gather(-1, index_BfU1)[..., 0]
    planes = [logits_BfUV[..., blank_id] - total_BfU, label_BfU - total_BfU, *duration_BfUD.unbind(-1)]
    if with_rest:  # not 1 less the other two, of which little is left where they are sure
        taken_BfU2 = torch.cat([index_BfU1, torch.full_like(index_BfU1, blank_id)], dim=-1)
        planes.append(logits_BfUV.scatter(-1, taken_BfU2, NEVER).logsumexp(-1) - total_BfU)
    return torch.stack(planes)


def _chunked(
    planes: Callable[[Tensor, Tensor], Tensor], encoded_BFE: Tensor, predicted_BUP: Tensor, chunk: int
) -> Tensor:
    chunks = [
        checkpoint(planes, encoded_BFE[:, start : start + chunk], predicted_BUP, use_reentrant=False)
        for start in range(0, encoded_BFE.shape[1], chunk)
    ]
    return torch.cat(chunks, dim=2)


class _Kept(FunctionCtx):
    """What the forward pass keeps for the backward pass: the gradients of both planes."""

    saved_tensors: tuple[Tensor, Tensor]


class _RnntLoss(torch.autograd.Function):
    """Negative log-likelihood over all paths of RNN-T, from log-probabilities of blank and next token (B, F, U).

    Cells on one anti-diagonal need only those of the one before: in skewed coordinates a step is one row.
    """

    @staticmethod
    def forward(ctx: _Kept, blank_BFU: Tensor, label_BFU: Tensor, frames_B: Tensor, token_len_B: Tensor) -> Tensor:
        num_frames, num_states = blank_BFU.shape[1:]
        blank_NBU, label_NBU = _skewed(blank_BFU), _skewed(label_BFU)
        nothing_B1 = blank_BFU.new_full((len(blank_BFU), 1), -math.inf)
        last_B = frames_B - 1 + token_len_B
        is_end_BU = torch.arange(num_states, device=frames_B.device)[None] == token_len_B[:, None]
        after_BU = blank_BFU.new_full((len(blank_BFU), num_states), -math.inf)
        beta_NBU = torch.empty_like(blank_NBU)
        for n in reversed(range(num_frames + num_states - 1)):
            by_label_BU = torch.cat([after_BU[:, 1:], nothing_B1], dim=1) + label_NBU[n]
            onward_BU = torch.logaddexp(after_BU + blank_NBU[n], by_label_BU)
            after_BU = torch.where(is_end_BU & (last_B == n)[:, None], blank_NBU[n], onward_BU)
            beta_NBU[n] = after_BU
        alpha_BU = torch.cat([torch.zeros_like(nothing_B1), nothing_B1.expand(-1, num_states - 1)], dim=1)
        alpha_NBU = torch.empty_like(blank_NBU)
        for n in range(num_frames + num_states - 1):
            alpha_NBU[n] = alpha_BU
            by_label_BU = torch.cat([nothing_B1, (alpha_BU + label_NBU[n])[:, :-1]], dim=1)
            alpha_BU = torch.logaddexp(alpha_BU + blank_NBU[n], by_label_BU)
        total_B = beta_NBU[0, :, 0]
        # the share of the paths that leave a cell by the blank, and by the token
        next_NBU = torch.cat([beta_NBU[1:], torch.full_like(beta_NBU[:1], -math.inf)])
        diagonal_N11 = torch.arange(len(beta_NBU), device=frames_B.device)[:, None, None]
        is_last_NBU = is_end_BU & (diagonal_N11 == last_B[:, None])
        onward_NBU = torch.where(is_last_NBU, 0.0, next_NBU)
        through_NBU = alpha_NBU - total_B[:, None]
        by_label_NBU = torch.cat([next_NBU[..., 1:], torch.full_like(next_NBU[..., :1], -math.inf)], dim=-1)
        ctx.save_for_backward(
            _straight((through_NBU + blank_NBU + onward_NBU).exp(), num_frames),
            _straight((through_NBU + label_NBU + by_label_NBU).exp(), num_frames),
        )
        return -total_B

    @staticmethod
    def backward(ctx: _Kept, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        blank_BFU, label_BFU = ctx.saved_tensors
        gradient_B11 = -gradient_B[:, None, None]
        return blank_BFU * gradient_B11, label_BFU * gradient_B11, None, None


def _skewed(plane_BFU: Tensor) -> Tensor:
    """Skew to (N, B, U): cell u of anti-diagonal n is that of frame n - u, minus infinity where there is none."""
    num, num_frames, num_states = plane_BFU.shape
    # read with a row length one larger than the plane's, each row starts one cell later
    wide_BUN = functional.pad(plane_BFU.transpose(1, 2), (0, num_states), value=-math.inf)
    flat = wide_BUN.reshape(num, -1)[:, : num_states * (num_frames + num_states - 1)]
    return flat.reshape(num, num_states, -1).permute(2, 0, 1).contiguous()


def _straight(plane_NBU: Tensor, num_frames: int) -> Tensor:
    """Undo `_skewed`."""
    _, num, num_states = plane_NBU.shape
    flat = functional.pad(plane_NBU.permute(1, 2, 0).reshape(num, -1), (0, num_states))
    return flat.reshape(num, num_states, -1)[..., :num_frames].transpose(1, 2)


def alignment_targets(
    times_BU2: Tensor, tokens_BU: Tensor, frame_ms_B: Tensor, num_frames: int, blank_id: int
) -> Tensor:
    """Frame targets (B, F) from token times: the token at the middle of each frame, or the blank between words."""
    middle_BF = (torch.arange(num_frames, device=times_BU2.device)[None] + 0.5) * frame_ms_B[:, None]
    inside_BFU = (times_BU2[:, None, :, 0] <= middle_BF[..., None]) & (middle_BF[..., None] < times_BU2[:, None, :, 1])
    spoken_BF = tokens_BU.gather(1, inside_BFU.to(torch.uint8).argmax(-1))
    return torch.where(inside_BFU.any(-1), spoken_BF, torch.full_like(spoken_BF, blank_id))


def frame_cross_entropy(logits_BFV: Tensor, frames_B: Tensor, targets_BF: Tensor) -> Tensor:
    """Cross-entropy summed over an utterance's own frames, one value an utterance (B,), in fp32."""
    loss_BF = functional.cross_entropy(logits_BFV.float().transpose(1, 2), targets_BF, reduction="none")
    return sum_own_frames(loss_BF, frames_B)  # padding must not count: its silence is easy to predict


def sum_own_frames(values_BF: Tensor, frames_B: Tensor) -> Tensor:
    """Sum over the own frames of each utterance (B,), without padding."""
    mask_BF = torch.arange(values_BF.shape[1], device=values_BF.device)[None] < frames_B[:, None]
    return torch.where(mask_BF, values_BF, 0).sum(1)
