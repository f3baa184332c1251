"""Kernels for the convolution module of the Conformer on a GPU, with channels last.

The depthwise convolution over time, and BatchNorm with SiLU. Sums over rows are in fp32 and come as one part for each
program; who launches adds them up, so equal inputs give equal bits. Triton comes with torch for CUDA.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["frames"])  # type: ignore[untyped-decorator]
def depthwise_kernel(
    x_BFE: tl.tensor,
    weight_EK: tl.tensor,
    bias_E: tl.tensor,
    out_BFE: tl.tensor,
    frames: tl.tensor,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    IS_BACKWARD: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    """Write a depthwise convolution over time with as many frames as its input, or the gradient of its input."""
    frame = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    first = tl.program_id(1).to(tl.int64) * frames
    column = tl.program_id(2) * BLOCK_E + tl.arange(0, BLOCK_E)
    inside_column = column < WIDTH
    total = tl.zeros([BLOCK_F, BLOCK_E], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias_E + column, mask=inside_column, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(TAPS):
        source = frame - k + TAPS // 2 if IS_BACKWARD else frame + k - TAPS // 2
        inside = ((source >= 0) & (source < frames))[:, None] & inside_column[None, :]
        value = tl.load(x_BFE + (first + source)[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
        weight = tl.load(weight_EK + column * TAPS + k, mask=inside_column, other=0.0).to(tl.float32)
        total += value.to(tl.float32) * weight[None, :]
    inside = (frame < frames)[:, None] & inside_column[None, :]
    at = (first + frame)[:, None] * WIDTH + column[None, :]
    tl.store(out_BFE + at, total.to(out_BFE.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "frames", "tiles"])  # type: ignore[untyped-decorator]
def depthwise_weight_kernel(
    x_NE: tl.tensor,
    grad_NE: tl.tensor,
    part_PKE: tl.tensor,
    rows: tl.tensor,
    frames: tl.tensor,
    tiles: tl.tensor,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    """Write this program's part of the gradient of each tap of the weight, and of the bias after them."""
    program = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    inside_column = column < WIDTH
    totals: tl.tuple = ()
    for _ in tl.static_range(TAPS + 1):
        totals += (tl.zeros([BLOCK_N, BLOCK_E], tl.float32),)
    for tile in range(tiles):
        row = ((program * tiles + tile) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        frame = row % frames
        inside = (row < rows)[:, None] & inside_column[None, :]
        grad = tl.load(grad_NE + row[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(tl.float32)
        sums: tl.tuple = ()
        for k in tl.static_range(TAPS):
            source = frame + k - TAPS // 2
            near = inside & ((source >= 0) & (source < frames))[:, None]
            place = (row + k - TAPS // 2)[:, None] * WIDTH + column[None, :]
            value = tl.load(x_NE + place, mask=near, other=0.0).to(tl.float32)
            sums += (totals[k] + grad * value,)
        totals = sums + (totals[TAPS] + grad,)  # noqa: RUF005  Triton knows no star
    for k in tl.static_range(TAPS + 1):
        tl.store(part_PKE + (program * (TAPS + 1) + k) * WIDTH + column, tl.sum(totals[k], axis=0), mask=inside_column)


@triton.jit(do_not_specialize=["rows", "tiles"])  # type: ignore[untyped-decorator]
def moments_kernel(
    x_NE: tl.tensor,
    part_P2E: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    """Write the mean of this program's rows, and the sum of the squares of their distances from it."""
    program = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    inside_column = column < WIDTH
    first = program * tiles * BLOCK_N
    count = tl.minimum(rows - first, tiles * BLOCK_N)
    total = tl.zeros([BLOCK_E], tl.float32)
    for tile in range(tiles):
        row = first + tile * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (row < rows)[:, None] & inside_column[None, :]
        at = row[:, None].to(tl.int64) * WIDTH + column[None, :]
        total += tl.sum(tl.load(x_NE + at, mask=inside, other=0.0).to(tl.float32), axis=0)
    mean = total / count
    squares = tl.zeros([BLOCK_E], tl.float32)
    for tile in range(tiles):
        row = first + tile * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (row < rows)[:, None] & inside_column[None, :]
        at = row[:, None].to(tl.int64) * WIDTH + column[None, :]
        distance = tl.load(x_NE + at, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
        squares += tl.sum(tl.where(inside, distance * distance, 0.0), axis=0)
    part = part_P2E + program * 2 * WIDTH + column
    tl.store(part, mean, mask=inside_column)
    tl.store(part + WIDTH, squares, mask=inside_column)


@triton.jit(do_not_specialize=["rows", "parts", "part_rows"])  # type: ignore[untyped-decorator]
def batch_norm_kernel(
    part_P2E: tl.tensor,
    mean_E: tl.tensor,
    rstd_E: tl.tensor,
    running_mean_E: tl.tensor,
    running_var_E: tl.tensor,
    rows: tl.tensor,
    parts: tl.tensor,
    part_rows: tl.tensor,
    momentum: tl.tensor,
    eps: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    """Merge the moments of all parts (Chan et al. 1979), and follow them in the running ones."""
    column = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    inside = column < WIDTH
    mean = tl.zeros([BLOCK_E], tl.float32)
    squares = tl.zeros([BLOCK_E], tl.float32)
    for number in range(parts):
        before = number * part_rows
        count = tl.minimum(rows - before, part_rows).to(tl.float32)
        part = part_P2E + number * 2 * WIDTH + column
        distance = tl.load(part, mask=inside, other=0.0) - mean
        share = count / (before + count)
        squares += tl.load(part + WIDTH, mask=inside, other=0.0) + distance * distance * (before * share)
        mean += distance * share
    tl.store(mean_E + column, mean, mask=inside)
    tl.store(rstd_E + column, 1 / tl.sqrt(squares / rows + eps), mask=inside)
    running = tl.load(running_mean_E + column, mask=inside, other=0.0)
    tl.store(running_mean_E + column, running + momentum * (mean - running), mask=inside)
    running = tl.load(running_var_E + column, mask=inside, other=0.0)
    tl.store(running_var_E + column, running + momentum * (squares / (rows - 1) - running), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _of_columns(of_columns_E: tl.tensor, column: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """What belongs to columns, as a row."""
    return tl.load(of_columns_E + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def norm_silu_kernel(
    x_NE: tl.tensor,
    mean_E: tl.tensor,
    rstd_E: tl.tensor,
    weight_E: tl.tensor,
    bias_E: tl.tensor,
    out_NE: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Write SiLU of the batch norm."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, LANES)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    scaled = tl.load(x_NE + at, mask=inside, other=0.0).to(tl.float32) - _of_columns(mean_E, column, WIDTH)
    scaled *= _of_columns(rstd_E, column, WIDTH)
    value = scaled * _of_columns(weight_E, column, WIDTH) + _of_columns(bias_E, column, WIDTH)
    tl.store(out_NE + at, (value * tl.sigmoid(value)).to(out_NE.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_slope(value: tl.tensor) -> tl.tensor:
    share = tl.sigmoid(value)
    return share * (1 + value * (1 - share))


@triton.jit(do_not_specialize=["rows", "tiles"])  # type: ignore[untyped-decorator]
def norm_silu_sums_kernel(
    grad_NE: tl.tensor,
    x_NE: tl.tensor,
    mean_E: tl.tensor,
    rstd_E: tl.tensor,
    weight_E: tl.tensor,
    bias_E: tl.tensor,
    part_P2E: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    """Write this program's part of the gradients of the weight and the bias of the batch norm."""
    program = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    inside_column = column < WIDTH
    mean, rstd = _of_columns(mean_E, column, WIDTH), _of_columns(rstd_E, column, WIDTH)
    weight, bias = _of_columns(weight_E, column, WIDTH), _of_columns(bias_E, column, WIDTH)
    grad_weight = tl.zeros([BLOCK_E], tl.float32)
    grad_bias = tl.zeros([BLOCK_E], tl.float32)
    for tile in range(tiles):
        row = ((program * tiles + tile) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside = (row < rows)[:, None] & inside_column[None, :]
        at = row[:, None] * WIDTH + column[None, :]
        scaled = (tl.load(x_NE + at, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        grad = tl.load(grad_NE + at, mask=inside, other=0.0).to(tl.float32) * _silu_slope(scaled * weight + bias)
        grad_weight += tl.sum(grad * scaled, axis=0)
        grad_bias += tl.sum(grad, axis=0)
    part = part_P2E + program * 2 * WIDTH + column
    tl.store(part, grad_weight, mask=inside_column)
    tl.store(part + WIDTH, grad_bias, mask=inside_column)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def norm_silu_backward_kernel(
    grad_NE: tl.tensor,
    x_NE: tl.tensor,
    mean_E: tl.tensor,
    rstd_E: tl.tensor,
    weight_E: tl.tensor,
    bias_E: tl.tensor,
    grad_2E: tl.tensor,
    grad_x_NE: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Write the gradient of the input of the batch norm, from those of its weight and bias (`grad_2E`)."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, LANES)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    weight, rstd = _of_columns(weight_E, column, WIDTH), _of_columns(rstd_E, column, WIDTH)
    scaled = tl.load(x_NE + at, mask=inside, other=0.0).to(tl.float32) - _of_columns(mean_E, column, WIDTH)
    scaled *= rstd
    slope = _silu_slope(scaled * weight + _of_columns(bias_E, column, WIDTH))
    grad = tl.load(grad_NE + at, mask=inside, other=0.0).to(tl.float32) * slope
    along, mean = _of_columns(grad_2E, column, WIDTH), _of_columns(grad_2E + WIDTH, column, WIDTH)
    grad_x = (grad - (mean + scaled * along) / rows) * weight * rstd
    tl.store(grad_x_NE + at, grad_x.to(grad_x_NE.dtype.element_ty), mask=inside)
