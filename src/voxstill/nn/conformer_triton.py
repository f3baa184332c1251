"""Kernels for the Conformer block on a GPU: residual and layer norm, GLU, and the shift of relative positions.

Each reads and writes memory once, where torch would take several passes. Statistics and sums are in fp32 whatever the
precision. Sums over rows come as one part for each program; who launches adds them up, so equal inputs give equal bits.
Triton comes with torch for CUDA.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def add_norm_kernel(
    x_NE: tl.tensor,
    delta_NE: tl.tensor,
    weight_E: tl.tensor,
    bias_E: tl.tensor,
    sum_NE: tl.tensor,
    normed_NE: tl.tensor,
    mean_N: tl.tensor,
    rstd_N: tl.tensor,
    rows: tl.tensor,
    scale: tl.tensor,
    eps: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_DELTA: tl.constexpr,
) -> None:
    """Write x + scale * delta, its layer norm, and the mean and the reciprocal deviation of each row."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, LANES)
    inside_column = column < WIDTH
    inside = (row < rows)[:, None] & inside_column[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    value = tl.load(x_NE + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        value += scale * tl.load(delta_NE + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(sum_NE + at, value, mask=inside)
    mean = tl.sum(value, axis=1) / WIDTH
    centred = tl.where(inside, value - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + eps)
    weight = tl.load(weight_E + column, mask=inside_column, other=0.0).to(tl.float32)
    bias = tl.load(bias_E + column, mask=inside_column, other=0.0).to(tl.float32)
    normed = centred * rstd[:, None] * weight[None, :] + bias[None, :]
    tl.store(normed_NE + at, normed.to(normed_NE.dtype.element_ty), mask=inside)
    tl.store(mean_N + row, mean, mask=row < rows)
    tl.store(rstd_N + row, rstd, mask=row < rows)


@triton.jit(do_not_specialize=["rows", "tiles"])  # type: ignore[untyped-decorator]
def add_norm_backward_kernel(
    grad_sum_NE: tl.tensor,
    grad_normed_NE: tl.tensor,
    sum_NE: tl.tensor,
    mean_N: tl.tensor,
    rstd_N: tl.tensor,
    weight_E: tl.tensor,
    grad_x_NE: tl.tensor,
    grad_delta_NE: tl.tensor,
    part_P2E: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    HAS_GRAD_SUM: tl.constexpr,
) -> None:
    """Write the gradients of x and delta, and this program's part of those of weight and bias."""
    program = tl.program_id(0)
    column = tl.arange(0, LANES)
    inside_column = column < WIDTH
    weight = tl.load(weight_E + column, mask=inside_column, other=0.0).to(tl.float32)
    grad_weight = tl.zeros([LANES], tl.float32)
    grad_bias = tl.zeros([LANES], tl.float32)
    for tile in range(tiles):
        row = ((program * tiles + tile) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & inside_column[None, :]
        at = row[:, None] * WIDTH + column[None, :]
        grad = tl.load(grad_normed_NE + at, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_N + row, mask=row < rows, other=0.0)
        rstd = tl.load(rstd_N + row, mask=row < rows, other=0.0)
        scaled = (tl.load(sum_NE + at, mask=inside, other=0.0) - mean[:, None]) * rstd[:, None]
        scaled = tl.where(inside, scaled, 0.0)
        grad_weight += tl.sum(grad * scaled, axis=0)
        grad_bias += tl.sum(grad, axis=0)
        weighted = grad * weight[None, :]
        along = tl.sum(weighted * scaled, axis=1) / WIDTH
        grad_x = (weighted - tl.sum(weighted, axis=1)[:, None] / WIDTH - scaled * along[:, None]) * rstd[:, None]
        if HAS_GRAD_SUM:
            grad_x += tl.load(grad_sum_NE + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x_NE + at, grad_x, mask=inside)
        if HAS_DELTA:
            tl.store(grad_delta_NE + at, (scale * grad_x).to(grad_delta_NE.dtype.element_ty), mask=inside)
    part = part_P2E + program * 2 * WIDTH + column
    tl.store(part, grad_weight, mask=inside_column)
    tl.store(part + WIDTH, grad_bias, mask=inside_column)


@triton.jit(do_not_specialize=["size"])  # type: ignore[untyped-decorator]
def glu_kernel(
    x_N2E: tl.tensor,
    is_own_N: tl.tensor,
    out_NE: tl.tensor,
    size: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the gated linear unit of own frames, and zeros for padding."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column = at // WIDTH, at % WIDTH
    own = (at < size) & (tl.load(is_own_N + row, mask=at < size, other=0) != 0)
    value = tl.load(x_N2E + row * 2 * WIDTH + column, mask=own, other=0.0).to(tl.float32)
    gate = tl.load(x_N2E + row * 2 * WIDTH + WIDTH + column, mask=own, other=0.0).to(tl.float32)
    tl.store(out_NE + at, (value * tl.sigmoid(gate)).to(out_NE.dtype.element_ty), mask=at < size)


@triton.jit(do_not_specialize=["size"])  # type: ignore[untyped-decorator]
def glu_backward_kernel(
    grad_NE: tl.tensor,
    x_N2E: tl.tensor,
    is_own_N: tl.tensor,
    grad_x_N2E: tl.tensor,
    size: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the gradient of both halves of what the gated linear unit was computed from."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column = at // WIDTH, at % WIDTH
    own = (at < size) & (tl.load(is_own_N + row, mask=at < size, other=0) != 0)
    first = row * 2 * WIDTH + column
    value = tl.load(x_N2E + first, mask=own, other=0.0).to(tl.float32)
    share = tl.sigmoid(tl.load(x_N2E + first + WIDTH, mask=own, other=0.0).to(tl.float32))
    grad = tl.load(grad_NE + at, mask=own, other=0.0).to(tl.float32)
    element = grad_x_N2E.dtype.element_ty
    tl.store(grad_x_N2E + first, (grad * share).to(element), mask=at < size)
    tl.store(grad_x_N2E + first + WIDTH, (grad * value * share * (1 - share)).to(element), mask=at < size)


@triton.jit(do_not_specialize=["rows", "frames", "positions", "stride"])  # type: ignore[untyped-decorator]
def shift_kernel(
    score_HNP: tl.tensor,
    is_own_N: tl.tensor,
    out_BHFS: tl.tensor,
    rows: tl.tensor,
    frames: tl.tensor,
    positions: tl.tensor,
    stride: tl.tensor,
    scale: tl.constexpr,
    least: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_G: tl.constexpr,
) -> None:
    """Write the score of each pair of frames from those of relative positions, `least` for keys of padding.

    Position p of query f is of the key f + p - (F - 1) (Dai et al. 2019, "Transformer-XL", appendix B). Rows are
    `stride` apart in what is written.
    """
    query = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    row = (batch * frames + query).to(tl.int64)
    source = (head.to(tl.int64) * rows + row) * positions + frames - 1 - query
    target = (tl.program_id(0).to(tl.int64) * frames + query) * stride
    for start in range(0, frames, BLOCK_G):
        key = start + tl.arange(0, BLOCK_G)
        inside = (query < frames)[:, None] & (key < frames)[None, :]
        own = tl.load(is_own_N + batch * frames + key, mask=key < frames, other=0) != 0
        value = tl.load(score_HNP + source[:, None] + key[None, :], mask=inside & own[None, :], other=0.0)
        value = tl.where(own[None, :], value.to(tl.float32) * scale, least)
        tl.store(out_BHFS + target[:, None] + key[None, :], value.to(out_BHFS.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "frames", "positions", "stride"])  # type: ignore[untyped-decorator]
def shift_backward_kernel(
    grad_BHFS: tl.tensor,
    is_own_N: tl.tensor,
    grad_score_HNP: tl.tensor,
    rows: tl.tensor,
    frames: tl.tensor,
    positions: tl.tensor,
    stride: tl.tensor,
    scale: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> None:
    """Write the gradient of the scores of relative positions; those beyond both ends of the audio have none."""
    query = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    row = (batch * frames + query).to(tl.int64)
    target = (head.to(tl.int64) * rows + row) * positions
    source = (tl.program_id(0).to(tl.int64) * frames + query) * stride
    for start in range(0, positions, BLOCK_P):
        position = start + tl.arange(0, BLOCK_P)
        key = query[:, None] + position[None, :] - frames + 1
        inside = (query < frames)[:, None] & (key >= 0) & (key < frames)
        own = inside & (tl.load(is_own_N + batch * frames + key, mask=inside, other=0) != 0)
        grad = tl.load(grad_BHFS + source[:, None] + key, mask=own, other=0.0).to(tl.float32) * scale
        stored = (query < frames)[:, None] & (position < positions)[None, :]
        grad = grad.to(grad_score_HNP.dtype.element_ty)
        tl.store(grad_score_HNP + target[:, None] + position[None, :], grad, mask=stored)
