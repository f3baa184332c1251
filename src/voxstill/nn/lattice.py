"""The sum over a transducer's paths on a GPU, in one launch each way. Needs Triton, which torch for CUDA brings along.

A path goes over cells (t, u): t frames are behind it and u tokens are said. A move (d, s) leads on to (t + d, u + s).
One program goes over one utterance, anti-diagonal by anti-diagonal, with a lane for each u. A cell needs cells of
former diagonals only, in its own lane or the one beside it, which another thread may hold. Writing them to memory and
reading them back would be a race, as Triton orders no such pair. So they stay in registers, and `tl.gather` takes them
to the lane beside: by shuffles within a warp, else through shared memory that the compiler guards with barriers of its
own. No launch reads what it writes. What the backward launch reads, the forward one has written, and launches on a
stream are in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def loss(ways_KBFU: Tensor, moves: Sequence[tuple[int, int]], frames_B: Tensor, token_len_B: Tensor) -> Tensor:
    """Minus the log of the sum over all paths (B,), in fp32; infinity, with a gradient of 0, where there is none.

    `ways_KBFU` has the log-probability, in fp32, of leaving a cell by each of the `moves` (frames, tokens); tokens are
    0 or 1, and (0, 0) is no move. A path begins with nothing heard or said, and ends by a move of frames alone that
    leads just past the last frame, with all said. What is beyond an utterance's own frames and tokens is not read.
    """
    given = (each.contiguous() for each in (ways_KBFU, frames_B, token_len_B))
    loss_B: Tensor = _Paths.apply(tuple(moves), *given)  # type: ignore[no-untyped-call]
    return loss_B


class _Paths(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, moves: tuple[tuple[int, int], ...], ways_KBFU: Tensor, frames_B: Tensor, token_len_B: Tensor
    ) -> Tensor:
        after_BFU = torch.full_like(ways_KBFU[0], -torch.inf)
        _launch(_go_back, moves, ways_KBFU, frames_B, token_len_B, after_BFU)
        ctx.moves = moves
        ctx.save_for_backward(ways_KBFU, frames_B, token_len_B, after_BFU)
        return -after_BFU[:, 0, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        ways_KBFU, frames_B, token_len_B, after_BFU = ctx.saved_tensors
        gradient_KBFU = torch.zeros_like(ways_KBFU)
        upstream_B = gradients[0].contiguous()
        _launch(_go_on, ctx.moves, ways_KBFU, frames_B, token_len_B, after_BFU, upstream_B, gradient_KBFU)
        return None, gradient_KBFU, None, None


def _launch(kernel: Any, moves: tuple[tuple[int, int], ...], ways_KBFU: Tensor, *others: Tensor) -> None:
    num, num_frames, num_states = ways_KBFU.shape[1:]
    kernel[num,](ways_KBFU, *others, num, num_frames, num_states, **shape(moves, num_states))


def shape(moves: Sequence[tuple[int, int]], num_states: int) -> dict[str, Any]:
    """What the kernels are compiled for, and the warps that run them."""
    lanes = max(triton.next_power_of_2(num_states), 32)
    lasting, says = zip(*moves, strict=True)
    depth = max(map(sum, moves))
    return {"LASTING": lasting, "SAYS": says, "DEPTH": depth, "LANES": lanes, "num_warps": min(max(lanes // 64, 1), 8)}


@triton.jit  # type: ignore[untyped-decorator]
def _former(nearest: tl.tensor, beyond: tl.tensor, DEPTH: tl.constexpr) -> tl.tuple:
    former: tl.tuple = (nearest,)
    for _ in tl.static_range(DEPTH - 1):
        former += (beyond,)
    return former


@triton.jit  # type: ignore[untyped-decorator]
def _with(diagonal: tl.tensor, former: tl.tuple) -> tl.tuple:
    return (diagonal,) + former[:-1]  # noqa: RUF005  Triton knows no star


@triton.jit  # type: ignore[untyped-decorator]
def _beside(diagonal: tl.tensor, index: tl.tensor, nothing: tl.constexpr, LANES: tl.constexpr) -> tl.tensor:
    """What the lanes of that index hold; nothing past the ends."""
    found = tl.gather(diagonal, tl.minimum(tl.maximum(index, 0), LANES - 1), 0)
    return tl.where((index >= 0) & (index < LANES), found, nothing)


@triton.jit(do_not_specialize=["num", "num_frames", "num_states"])  # type: ignore[untyped-decorator]
def _go_back(
    ways_KBFU: tl.tensor,
    frames_B: tl.tensor,
    token_len_B: tl.tensor,
    after_BFU: tl.tensor,
    num: tl.tensor,
    num_frames: tl.tensor,
    num_states: tl.tensor,
    LASTING: tl.constexpr,
    SAYS: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """From the end: the log of the sum over all ways from each cell on."""
    row = tl.program_id(0).to(tl.int64)
    frames = tl.load(frames_B + row).to(tl.int32)
    tokens = tl.load(token_len_B + row).to(tl.int32)
    plane = num.to(tl.int64) * num_frames * num_states
    first = row * num_frames * num_states
    u = tl.arange(0, LANES)
    nothing = tl.full([LANES], float("-inf"), tl.float32)
    # former diagonals, the nearest first: of this lane, and of the next, without the end, which no token leads to
    own = _former(tl.where(u == tokens, 0.0, nothing), nothing, DEPTH)
    next_ = _former(nothing, nothing, DEPTH)
    for back in range(1, frames + tokens + 1):
        t = frames + tokens - back - u
        cell = first + t * num_states + u
        inside = (t >= 0) & (t < frames) & (u <= tokens)
        high = nothing
        ways: tl.tuple = ()
        for k in tl.static_range(len(LASTING)):
            onward = next_[LASTING[k]] if SAYS[k] else own[LASTING[k] - 1]
            way = onward + tl.load(ways_KBFU + k * plane + cell, mask=inside, other=float("-inf"))
            high = tl.maximum(high, way)
            ways += (way,)
        high = tl.where(high > float("-inf"), high, 0.0)  # no way at all stays none, not NaN
        total = tl.zeros([LANES], tl.float32)
        for k in tl.static_range(len(LASTING)):
            total += tl.exp(ways[k] - high)
        after = high + tl.log(total)
        tl.store(after_BFU + cell, after, mask=inside)
        own = _with(after, own)
        next_ = _with(_beside(after, u + 1, float("-inf"), LANES), next_)


@triton.jit(do_not_specialize=["num", "num_frames", "num_states"])  # type: ignore[untyped-decorator]
def _go_on(
    ways_KBFU: tl.tensor,
    frames_B: tl.tensor,
    token_len_B: tl.tensor,
    after_BFU: tl.tensor,
    upstream_B: tl.tensor,
    gradient_KBFU: tl.tensor,
    num: tl.tensor,
    num_frames: tl.tensor,
    num_states: tl.tensor,
    LASTING: tl.constexpr,
    SAYS: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """From the start: what arrives at a cell is shared among the moves on, by how much of the sum each leads to.

    A move is dealt with where it arrives. Its share is written to the cell that it came from, by this program alone.
    """
    row = tl.program_id(0).to(tl.int64)
    frames = tl.load(frames_B + row).to(tl.int32)
    tokens = tl.load(token_len_B + row).to(tl.int32)
    plane = num.to(tl.int64) * num_frames * num_states
    first = row * num_frames * num_states
    u = tl.arange(0, LANES)
    nothing = tl.zeros([LANES], tl.float32)
    upstream = tl.load(upstream_B + row)
    own = _former(nothing, nothing, DEPTH)  # diagonals, the nearest first: of this lane, and of the one before
    before = _former(nothing, nothing, DEPTH)
    for n in range(frames + tokens + 1):
        t = n - u
        cell = first + t * num_states + u
        inside = (t >= 0) & (t < frames) & (u <= tokens)
        is_end = (t == frames) & (u == tokens)
        after = tl.load(after_BFU + cell, mask=inside, other=0.0)
        arrives = tl.where(n + u == 0, -upstream, nothing)
        for k in tl.static_range(len(LASTING)):
            if SAYS[k]:
                possible = inside & (t >= LASTING[k]) & (u > 0)
                source = before[LASTING[k]]
            else:
                possible = (inside | is_end) & (t >= LASTING[k])
                source = own[LASTING[k] - 1]
            origin = cell - LASTING[k] * num_states - SAYS[k]
            way = after + tl.load(ways_KBFU + k * plane + origin, mask=possible, other=float("-inf"))
            total = tl.load(after_BFU + origin, mask=possible, other=0.0)
            share = source * tl.exp(tl.where(total > float("-inf"), way - total, float("-inf")))
            tl.store(gradient_KBFU + k * plane + origin, share, mask=possible)
            arrives += share
        own = _with(arrives, own)
        before = _with(_beside(arrives, u - 1, 0.0, LANES), before)
