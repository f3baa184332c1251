"""CTC on a GPU: the sum over all paths and its gradient, in kernels that never wait for the host.

One program handles one utterance, frame by frame. Lane u has two states: the blank after u tokens, and token u, counted
from 0. A state is reached from itself, from the state before it, and a token also from a different token before it; so
a lane needs one value of its neighbour in each frame (see `transducer_triton` on why it goes through registers).

Going backward, the posterior probability of a state is split among the states before it, in proportion to their sums
over paths. So it needs no second sum over paths, nor log-probabilities, and the posteriors of a frame always add up to
1. The loads of the next frames are issued before the frames at hand are computed, and do not wait for them.

No program adds to what another has written, so equal inputs give equal bits. Triton comes with torch for CUDA.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx

from voxstill.nn.triton_lanes import neighbour, shape
from voxstill.nn.triton_launch import launch

MAX_TOKENS = 2047  # and the blank after the last, in as many lanes as a program can keep in registers
_AHEAD = 4  # frames


def loss(log_probs_BFV: Tensor, tokens_BU: Tensor, frames_B: Tensor, token_len_B: Tensor, blank_id: int) -> Tensor:
    """CTC (Graves et al. 2006), one value an utterance (B,), of log-probabilities in fp32.

    Infinity, with a gradient of 0, where there is no path; 0 where there are neither frames nor tokens. Frames and
    tokens beyond an utterance's own are not read, and their gradient is 0. No own token may be the blank, and there are
    at most `MAX_TOKENS`. All tensors are on one device, and no length is checked, as the host would have to wait.
    """
    tensors = (tensor.contiguous() for tensor in (log_probs_BFV, tokens_BU, frames_B, token_len_B))
    loss_B: Tensor = _Paths.apply(*tensors, blank_id)  # type: ignore[no-untyped-call]
    return loss_B


class _Kept(FunctionCtx):
    """What the forward pass keeps for the backward pass."""

    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor]
    num_labels: int
    blank_id: int


class _Paths(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Kept, log_probs_BFV: Tensor, tokens_BU: Tensor, frames_B: Tensor, token_len_B: Tensor, blank_id: int
    ) -> Tensor:
        num, num_frames, num_labels = log_probs_BFV.shape
        num_tokens = tokens_BU.shape[1]
        sum_BF2U = log_probs_BFV.new_empty(num, num_frames, 2, num_tokens + 1)
        loss_B = log_probs_BFV.new_empty(num)
        texts = (tokens_BU, frames_B, token_len_B)
        sizes = (num_frames, num_tokens, num_labels, blank_id)
        constants = shape(num_tokens + 1) | {"AHEAD": _AHEAD}
        launch(log_sum_kernel, (num,), log_probs_BFV, *texts, sum_BF2U, loss_B, *sizes, **constants)
        ctx.num_labels, ctx.blank_id = num_labels, blank_id
        ctx.save_for_backward(*texts, sum_BF2U)
        return loss_B

    @staticmethod
    def backward(ctx: _Kept, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        tokens_BU, frames_B, token_len_B, sum_BF2U = ctx.saved_tensors
        num, num_frames, _, num_states = sum_BF2U.shape
        sizes = (num_frames, num_states - 1)
        texts = (tokens_BU, frames_B, token_len_B)
        posterior_BF2U = torch.empty_like(sum_BF2U)
        constants = shape(num_states)
        launch(posterior_kernel, (num,), *texts, sum_BF2U, posterior_BF2U, *sizes, **constants, AHEAD=_AHEAD)
        gradient_BFV = sum_BF2U.new_zeros(num, num_frames, ctx.num_labels)
        tensors = (*texts, posterior_BF2U, gradient_B.contiguous(), gradient_BFV)
        launch(gradient_kernel, (num * num_frames,), *tensors, *sizes, ctx.num_labels, ctx.blank_id, **constants)
        return gradient_BFV, None, None, None, None


@triton.jit  # type: ignore[untyped-decorator]
def _load_frames(
    states: tl.tensor,
    mask: tl.tensor,
    first: tl.tensor,
    step: tl.constexpr,
    frames: tl.tensor,
    stride: tl.tensor,
    AHEAD: tl.constexpr,
) -> tl.tuple:
    """What some states hold at `AHEAD` frames from the first on; minus infinity where there is no frame."""
    values: tl.tuple = ()
    for k in tl.static_range(AHEAD):
        t = first + k * step
        values += (tl.load(states + t * stride, mask=mask & (t >= 0) & (t < frames), other=float("-inf")),)
    return values


@triton.jit  # type: ignore[untyped-decorator]
def _exponentials(a: tl.tensor, b: tl.tensor, c: tl.tensor) -> tl.tuple:
    """A scale of three log-probabilities, and their exponentials relative to it, 0 where all are impossible."""
    high = tl.maximum(tl.maximum(a, b), c)
    high = tl.where(high > float("-inf"), high, 0.0)
    return high, tl.exp(a - high), tl.exp(b - high), tl.exp(c - high)


@triton.jit  # type: ignore[untyped-decorator]
def _log_sum(a: tl.tensor, b: tl.tensor, c: tl.tensor) -> tl.tensor:
    high, exp_a, exp_b, exp_c = _exponentials(a, b, c)
    return high + tl.log(exp_a + exp_b + exp_c)


@triton.jit  # type: ignore[untyped-decorator]
def _shares(a: tl.tensor, b: tl.tensor, c: tl.tensor) -> tl.tuple:
    """The softmax of three log-probabilities, 0 where all are impossible."""
    _, exp_a, exp_b, exp_c = _exponentials(a, b, c)
    total = exp_a + exp_b + exp_c
    total = tl.where(total == 0.0, 1.0, total)
    return exp_a / total, exp_b / total, exp_c / total


@triton.jit  # type: ignore[untyped-decorator]
def _load_text(tokens_BU: tl.tensor, first: tl.tensor, u: tl.tensor, tokens: tl.tensor) -> tl.tuple:
    """The token of a lane, and whether a path may go to it from the token before without a blank between them."""
    token = tl.load(tokens_BU + first + u, mask=u < tokens, other=0)
    previous = tl.load(tokens_BU + first + u - 1, mask=(u > 0) & (u <= tokens), other=0)
    return tl.maximum(token, 0), tl.maximum(token, 0) != tl.maximum(previous, 0)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["num_frames", "num_tokens", "num_labels", "blank_id"]
)
def log_sum_kernel(
    log_probs_BFV: tl.tensor,
    tokens_BU: tl.tensor,
    frames_B: tl.tensor,
    token_len_B: tl.tensor,
    sum_BF2U: tl.tensor,
    loss_B: tl.tensor,
    num_frames: tl.tensor,
    num_tokens: tl.tensor,
    num_labels: tl.tensor,
    blank_id: tl.tensor,
    LANES: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """Write the log of the sum over all paths from the start to each state in each frame, that frame included."""
    row = tl.program_id(0).to(tl.int64)
    frames = tl.load(frames_B + row).to(tl.int32)
    tokens = tl.load(token_len_B + row).to(tl.int32)
    u = tl.arange(0, LANES)
    token, is_other = _load_text(tokens_BU, row * num_tokens, u, tokens)
    impossible = tl.full([LANES], float("-inf"), tl.float32)
    stride = num_labels.to(tl.int64)
    states = num_tokens.to(tl.int64) + 1
    blank_scores = log_probs_BFV + row * num_frames * stride + blank_id
    token_scores = log_probs_BFV + row * num_frames * stride + token
    sums = sum_BF2U + row * num_frames * 2 * states + u
    at_blank = tl.where(u == 0, 0.0, impossible)  # before the first frame
    at_token = impossible
    blanks = _load_frames(blank_scores, tokens >= 0, 0, 1, frames, stride, AHEAD)
    labels = _load_frames(token_scores, u < tokens, 0, 1, frames, stride, AHEAD)
    for start in range(0, frames, AHEAD):
        next_blanks = _load_frames(blank_scores, tokens >= 0, start + AHEAD, 1, frames, stride, AHEAD)
        next_labels = _load_frames(token_scores, u < tokens, start + AHEAD, 1, frames, stride, AHEAD)
        for k in tl.static_range(AHEAD):
            t = start + k
            before = neighbour(at_token, u - 1, float("-inf"), LANES)
            to_token = labels[k] + _log_sum(at_token, at_blank, tl.where(is_other, before, impossible))
            to_blank = blanks[k] + _log_sum(at_blank, before, impossible)
            at_token = tl.where(t < frames, to_token, at_token)
            at_blank = tl.where(t < frames, to_blank, at_blank)
            is_own = (u <= tokens) & (t < frames)
            tl.store(sums + 2 * t * states, at_blank, mask=is_own)
            tl.store(sums + (2 * t + 1) * states, at_token, mask=is_own)
        blanks = next_blanks
        labels = next_labels
    at_end = tl.where(u == tokens, at_blank, tl.where(u == tokens - 1, at_token, impossible))
    high = tl.max(at_end, axis=0)
    high = tl.where(high > float("-inf"), high, 0.0)
    tl.store(loss_B + row, -(high + tl.log(tl.sum(tl.exp(at_end - high), axis=0))))


@triton.jit(do_not_specialize=["num_frames", "num_tokens"])  # type: ignore[untyped-decorator]
def posterior_kernel(
    tokens_BU: tl.tensor,
    frames_B: tl.tensor,
    token_len_B: tl.tensor,
    sum_BF2U: tl.tensor,
    posterior_BF2U: tl.tensor,
    num_frames: tl.tensor,
    num_tokens: tl.tensor,
    LANES: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """Write the posterior probability of each state in each frame; goes backward through the frames."""
    row = tl.program_id(0).to(tl.int64)
    frames = tl.load(frames_B + row).to(tl.int32)
    tokens = tl.load(token_len_B + row).to(tl.int32)
    u = tl.arange(0, LANES)
    is_other = _load_text(tokens_BU, row * num_tokens, u, tokens)[1]
    impossible = tl.full([LANES], float("-inf"), tl.float32)
    states = num_tokens.to(tl.int64) + 1
    stride = 2 * states
    first = row * num_frames * stride
    blank_sums = sum_BF2U + first + u
    token_sums = blank_sums + states
    end = sum_BF2U + first + (frames - 1) * stride + tokens
    end_blank = tl.load(end, mask=frames > 0, other=float("-inf"))
    end_token = tl.load(end + states - 1, mask=(frames > 0) & (tokens > 0), other=float("-inf"))
    shares = _shares(end_blank, end_token, tl.full([], float("-inf"), tl.float32))
    at_blank = tl.where(u == tokens, shares[0], 0.0)
    at_token = tl.where(u == tokens - 1, shares[1], 0.0)
    has_previous = (u > 0) & (u <= tokens)
    blanks = _load_frames(blank_sums, u <= tokens, frames - 2, -1, frames, stride, AHEAD)
    labels = _load_frames(token_sums, u <= tokens, frames - 2, -1, frames, stride, AHEAD)
    befores = _load_frames(token_sums - 1, has_previous, frames - 2, -1, frames, stride, AHEAD)
    for start in range(0, frames, AHEAD):
        later = frames - 2 - start - AHEAD
        next_blanks = _load_frames(blank_sums, u <= tokens, later, -1, frames, stride, AHEAD)
        next_labels = _load_frames(token_sums, u <= tokens, later, -1, frames, stride, AHEAD)
        next_befores = _load_frames(token_sums - 1, has_previous, later, -1, frames, stride, AHEAD)
        for k in tl.static_range(AHEAD):
            t = frames - 1 - start - k
            is_own = (u <= tokens) & (t >= 0)
            posteriors = posterior_BF2U + first + t * stride + u
            tl.store(posteriors, at_blank, mask=is_own)
            tl.store(posteriors + states, at_token, mask=is_own)
            stays, goes, skips = _shares(labels[k], blanks[k], tl.where(is_other, befores[k], impossible))
            rests, ends, _ = _shares(blanks[k], befores[k], impossible)
            to_previous = at_blank * ends + at_token * skips
            at_blank = at_blank * rests + at_token * goes
            at_token = at_token * stays + neighbour(to_previous, u + 1, 0.0, LANES)
        blanks = next_blanks
        labels = next_labels
        befores = next_befores


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["num_frames", "num_tokens", "num_labels", "blank_id"]
)
def gradient_kernel(
    tokens_BU: tl.tensor,
    frames_B: tl.tensor,
    token_len_B: tl.tensor,
    posterior_BF2U: tl.tensor,
    upstream_B: tl.tensor,
    gradient_BFV: tl.tensor,
    num_frames: tl.tensor,
    num_tokens: tl.tensor,
    num_labels: tl.tensor,
    blank_id: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """Write the gradient of one frame, where it is not 0; lanes of the same token write the same bits."""
    cell = tl.program_id(0).to(tl.int64)
    row = cell // num_frames
    frames = tl.load(frames_B + row).to(tl.int32)
    if cell - row * num_frames < frames:
        tokens = tl.load(token_len_B + row).to(tl.int32)
        upstream = tl.load(upstream_B + row)
        text = tokens_BU + row * num_tokens
        of_blank = posterior_BF2U + cell * 2 * (num_tokens + 1)
        of_token = of_blank + num_tokens + 1
        u = tl.arange(0, LANES)
        token = tl.maximum(tl.load(text + u, mask=u < tokens, other=0), 0)
        total = tl.zeros([LANES], tl.float32)
        for other in range(tokens):
            is_same = token == tl.maximum(tl.load(text + other), 0)
            total += tl.where(is_same, tl.load(of_token + other), 0.0)
        gradients = gradient_BFV + cell * num_labels
        tl.store(gradients + token, -upstream * total, mask=u < tokens)
        blank = tl.sum(tl.load(of_blank + u, mask=u <= tokens, other=0.0), axis=0)
        tl.store(gradients + blank_id, -upstream * blank)
