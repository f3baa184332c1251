"""The transducer loss on a GPU: the sum over all paths in one Triton kernel, its gradient in another.

A path goes through the cells (t, u) of the lattice: t frames are consumed and u tokens emitted. A move (d, s) leads to
(t + d, u + s). One program handles one utterance, anti-diagonal by anti-diagonal, with a lane for each u. A cell needs
cells of earlier diagonals only, in its own lane or the neighbouring one, which another thread may hold. Writing them to
memory and reading them back would be a race, as Triton does not order the two. So they stay in registers, and
`tl.gather` moves them to the neighbouring lane: by shuffles within a warp, else through shared memory with barriers
that the compiler inserts. No launch reads what it writes: the gradient kernel reads what the first one has written, and
launches on a stream are in order. Triton comes with torch for CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx

from voxstill.nn import triton_lanes
from voxstill.nn.triton_lanes import neighbour


def loss(move_KBFU: Tensor, moves: Sequence[tuple[int, int]], frames_B: Tensor, token_len_B: Tensor) -> Tensor:
    """Negative log-likelihood over all paths (B,), in fp32; infinity, with a gradient of 0, where there is no path.

    `move_KBFU` has the log-probability, in fp32, of leaving a cell by each of the `moves` (frames, tokens); tokens are
    0 or 1, and (0, 0) is no move. A path begins at (0, 0), and ends by a move without a token that leads just past the
    last frame, after all tokens. Cells beyond an utterance's own frames and tokens are not read.
    """
    tensors = (tensor.contiguous() for tensor in (move_KBFU, frames_B, token_len_B))
    loss_B: Tensor = _Paths.apply(tuple(moves), *tensors)  # type: ignore[no-untyped-call]
    return loss_B


class _Kept(FunctionCtx):
    """What the forward pass keeps for the backward pass."""

    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor]
    moves: tuple[tuple[int, int], ...]


class _Paths(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Kept, moves: tuple[tuple[int, int], ...], move_KBFU: Tensor, frames_B: Tensor, token_len_B: Tensor
    ) -> Tensor:
        after_BFU = torch.full_like(move_KBFU[0], -torch.inf)
        _launch(_log_sum_kernel, moves, move_KBFU, frames_B, token_len_B, after_BFU)
        ctx.moves = moves
        ctx.save_for_backward(move_KBFU, frames_B, token_len_B, after_BFU)
        return -after_BFU[:, 0, 0]

    @staticmethod
    def backward(ctx: _Kept, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        move_KBFU, frames_B, token_len_B, after_BFU = ctx.saved_tensors
        gradient_KBFU = torch.zeros_like(move_KBFU)
        upstream_B = gradient_B.contiguous()
        _launch(_gradient_kernel, ctx.moves, move_KBFU, frames_B, token_len_B, after_BFU, upstream_B, gradient_KBFU)
        return None, gradient_KBFU, None, None


def _launch(kernel: triton.JITFunction, moves: tuple[tuple[int, int], ...], move_KBFU: Tensor, *others: Tensor) -> None:
    num, num_frames, num_states = move_KBFU.shape[1:]
    kernel[num,](move_KBFU, *others, num, num_frames, num_states, **shape(moves, num_states))


def shape(moves: Sequence[tuple[int, int]], num_states: int) -> dict[str, int | tuple[int, ...]]:
    """Compile-time constants of the kernels for some moves and lanes, and their number of warps."""
    frames, tokens = zip(*moves, strict=True)
    depth = max(map(sum, moves))
    return {"FRAMES": frames, "TOKENS": tokens, "DEPTH": depth, **triton_lanes.shape(num_states)}


@triton.jit  # type: ignore[untyped-decorator]
def _start_diagonals(nearest: tl.tensor, beyond: tl.tensor, DEPTH: tl.constexpr) -> tl.tuple:
    diagonals: tl.tuple = (nearest,)
    for _ in tl.static_range(DEPTH - 1):
        diagonals += (beyond,)
    return diagonals


@triton.jit  # type: ignore[untyped-decorator]
def _shift(diagonal: tl.tensor, diagonals: tl.tuple) -> tl.tuple:
    return (diagonal,) + diagonals[:-1]  # noqa: RUF005  Triton knows no star


@triton.jit(do_not_specialize=["num", "num_frames", "num_states"])  # type: ignore[untyped-decorator]
def _log_sum_kernel(
    move_KBFU: tl.tensor,
    frames_B: tl.tensor,
    token_len_B: tl.tensor,
    after_BFU: tl.tensor,
    num: tl.tensor,
    num_frames: tl.tensor,
    num_states: tl.tensor,
    FRAMES: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Write the log of the sum over all paths from each cell to the end; goes backward through the lattice."""
    row = tl.program_id(0).to(tl.int64)
    frames = tl.load(frames_B + row).to(tl.int32)
    tokens = tl.load(token_len_B + row).to(tl.int32)
    plane = num.to(tl.int64) * num_frames * num_states
    first = row * num_frames * num_states
    u = tl.arange(0, LANES)
    impossible = tl.full([LANES], float("-inf"), tl.float32)
    # earlier diagonals, nearest first: of this lane, and of the next one, without the end cell, which no token reaches
    same_lane = _start_diagonals(tl.where(u == tokens, 0.0, impossible), impossible, DEPTH)
    next_lane = _start_diagonals(impossible, impossible, DEPTH)
    for back in range(1, frames + tokens + 1):
        t = frames + tokens - back - u
        cell = first + t * num_states + u
        inside = (t >= 0) & (t < frames) & (u <= tokens)
        high = impossible
        move_scores: tl.tuple = ()
        for k in tl.static_range(len(FRAMES)):
            onward = next_lane[FRAMES[k]] if TOKENS[k] else same_lane[FRAMES[k] - 1]
            score = onward + tl.load(move_KBFU + k * plane + cell, mask=inside, other=float("-inf"))
            high = tl.maximum(high, score)
            move_scores += (score,)
        high = tl.where(high > float("-inf"), high, 0.0)  # impossible stays impossible, not NaN
        total = tl.zeros([LANES], tl.float32)
        for k in tl.static_range(len(FRAMES)):
            total += tl.exp(move_scores[k] - high)
        after = high + tl.log(total)
        tl.store(after_BFU + cell, after, mask=inside)
        same_lane = _shift(after, same_lane)
        next_lane = _shift(neighbour(after, u + 1, float("-inf"), LANES), next_lane)


@triton.jit(do_not_specialize=["num", "num_frames", "num_states"])  # type: ignore[untyped-decorator]
def _gradient_kernel(
    move_KBFU: tl.tensor,
    frames_B: tl.tensor,
    token_len_B: tl.tensor,
    after_BFU: tl.tensor,
    upstream_B: tl.tensor,
    gradient_KBFU: tl.tensor,
    num: tl.tensor,
    num_frames: tl.tensor,
    num_states: tl.tensor,
    FRAMES: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Write the gradient of each move; goes forward through the lattice, splitting a cell's gradient among its moves.

    A move is handled where it arrives, and its gradient written to the cell that it left, by this program alone.
    """
    row = tl.program_id(0).to(tl.int64)
    frames = tl.load(frames_B + row).to(tl.int32)
    tokens = tl.load(token_len_B + row).to(tl.int32)
    plane = num.to(tl.int64) * num_frames * num_states
    first = row * num_frames * num_states
    u = tl.arange(0, LANES)
    zero = tl.zeros([LANES], tl.float32)
    upstream = tl.load(upstream_B + row)
    same_lane = _start_diagonals(zero, zero, DEPTH)  # diagonals, nearest first: of this lane, and of the previous one
    previous_lane = _start_diagonals(zero, zero, DEPTH)
    for n in range(frames + tokens + 1):
        t = n - u
        cell = first + t * num_states + u
        inside = (t >= 0) & (t < frames) & (u <= tokens)
        is_end = (t == frames) & (u == tokens)
        after = tl.load(after_BFU + cell, mask=inside, other=0.0)
        arrives = tl.where(n + u == 0, -upstream, zero)
        for k in tl.static_range(len(FRAMES)):
            if TOKENS[k]:
                possible = inside & (t >= FRAMES[k]) & (u > 0)
                source = previous_lane[FRAMES[k]]
            else:
                possible = (inside | is_end) & (t >= FRAMES[k])
                source = same_lane[FRAMES[k] - 1]
            origin = cell - FRAMES[k] * num_states - TOKENS[k]
            score = after + tl.load(move_KBFU + k * plane + origin, mask=possible, other=float("-inf"))
            total = tl.load(after_BFU + origin, mask=possible, other=0.0)
            share = source * tl.exp(tl.where(total > float("-inf"), score - total, float("-inf")))
            tl.store(gradient_KBFU + k * plane + origin, share, mask=possible)
            arrives += share
        same_lane = _shift(arrives, same_lane)
        previous_lane = _shift(neighbour(arrives, u - 1, 0.0, LANES), previous_lane)
