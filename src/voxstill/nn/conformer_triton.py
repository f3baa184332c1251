"""Kernels for the Conformer block on a GPU: residual and layer norm, SiLU, GLU, and sums over rows.

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
    part_P3E: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    HAS_GRAD_SUM: tl.constexpr,
) -> None:
    """Write the gradients of x and delta, and this program's part of those of weight, bias, and a bias within delta."""
    program = tl.program_id(0)
    column = tl.arange(0, LANES)
    inside_column = column < WIDTH
    weight = tl.load(weight_E + column, mask=inside_column, other=0.0).to(tl.float32)
    grad_weight = tl.zeros([LANES], tl.float32)
    grad_bias = tl.zeros([LANES], tl.float32)
    grad_delta_bias = tl.zeros([LANES], tl.float32)
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
            grad_delta_bias += tl.sum(tl.where(inside, scale * grad_x, 0.0), axis=0)
    part = part_P3E + program * 3 * WIDTH + column
    tl.store(part, grad_weight, mask=inside_column)
    tl.store(part + WIDTH, grad_bias, mask=inside_column)
    tl.store(part + 2 * WIDTH, grad_delta_bias, mask=inside_column)


@triton.jit(do_not_specialize=["rows", "tiles", "stride"])  # type: ignore[untyped-decorator]
def column_sum_kernel(
    x_NC: tl.tensor,
    part_PC: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    stride: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Write the sum of this program's rows, which are `stride` apart."""
    program = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    for tile in range(tiles):
        row = ((program * tiles + tile) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
        total += tl.load(x_NC + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(part_PC + program * WIDTH + column, tl.sum(total, axis=0), mask=column < WIDTH)


@triton.jit(do_not_specialize=["parts"])  # type: ignore[untyped-decorator]
def sum_parts_kernel(
    part_PC: tl.tensor,
    sum_C: tl.tensor,
    parts: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Write the sum over all parts."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, parts, BLOCK_P):
        part = start + tl.arange(0, BLOCK_P)
        inside = (part < parts)[:, None] & (column < WIDTH)[None, :]
        total += tl.load(part_PC + part[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
    tl.store(sum_C + column, tl.sum(total, axis=0), mask=column < WIDTH)


@triton.jit(do_not_specialize=["rows", "tiles"])  # type: ignore[untyped-decorator]
def silu_backward_kernel(
    grad_NC: tl.tensor,
    x_NC: tl.tensor,
    grad_x_NC: tl.tensor,
    part_PC: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Write the gradient of what SiLU was computed from, and the sum of this program's rows of it."""
    program = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    for tile in range(tiles):
        row = ((program * tiles + tile) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
        at = row[:, None] * WIDTH + column[None, :]
        value = tl.load(x_NC + at, mask=inside, other=0.0).to(tl.float32)
        share = tl.sigmoid(value)
        grad = tl.load(grad_NC + at, mask=inside, other=0.0).to(tl.float32) * share * (1 + value * (1 - share))
        tl.store(grad_x_NC + at, grad.to(grad_x_NC.dtype.element_ty), mask=inside)
        total += grad
    tl.store(part_PC + program * WIDTH + column, tl.sum(total, axis=0), mask=column < WIDTH)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def glu_kernel(
    x_N2E: tl.tensor,
    is_own_N: tl.tensor,
    out_NE: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Write the gated linear unit of own frames, and zeros for padding."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, LANES)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    own = inside & (tl.load(is_own_N + row, mask=row < rows, other=0) != 0)[:, None]
    first = x_N2E + row[:, None] * 2 * WIDTH + column[None, :]
    value = tl.load(first, mask=own, other=0.0).to(tl.float32)
    gate = tl.load(first + WIDTH, mask=own, other=0.0).to(tl.float32)
    out = out_NE + row[:, None] * WIDTH + column[None, :]
    tl.store(out, (value * tl.sigmoid(gate)).to(out_NE.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def glu_backward_kernel(
    grad_NE: tl.tensor,
    x_N2E: tl.tensor,
    is_own_N: tl.tensor,
    grad_x_N2E: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Write the gradient of both halves of what the gated linear unit was computed from."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, LANES)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    own = inside & (tl.load(is_own_N + row, mask=row < rows, other=0) != 0)[:, None]
    at = row[:, None] * 2 * WIDTH + column[None, :]
    value = tl.load(x_N2E + at, mask=own, other=0.0).to(tl.float32)
    share = tl.sigmoid(tl.load(x_N2E + at + WIDTH, mask=own, other=0.0).to(tl.float32))
    grad = tl.load(grad_NE + row[:, None] * WIDTH + column[None, :], mask=own, other=0.0).to(tl.float32)
    element = grad_x_N2E.dtype.element_ty
    tl.store(grad_x_N2E + at, (grad * share).to(element), mask=inside)
    tl.store(grad_x_N2E + at + WIDTH, (grad * value * share * (1 - share)).to(element), mask=inside)
