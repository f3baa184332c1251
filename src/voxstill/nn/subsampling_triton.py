"""Kernels for the convolutions in front of a FastConformer on a GPU: 3 x 3 with a stride of 2, channels last.

What a convolution reads beyond an utterance's own frames counts as zero, as where padding was set to zero after the
convolution before it. ReLU of what comes before is applied while it is read. Triton comes with torch for CUDA.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _split(at: tl.tensor, frames: tl.tensor, bands: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Number of an output point to its row, frame and band."""
    return at // (frames * bands), at // bands % frames, at % bands


@triton.jit(do_not_specialize=["in_frames", "in_bands", "frames", "bands", "size"])  # type: ignore[untyped-decorator]
def first_kernel(
    features_BFD: tl.tensor,
    weight_C33: tl.tensor,
    bias_C: tl.tensor,
    out_NC: tl.tensor,
    in_frames: tl.tensor,
    in_bands: tl.tensor,
    frames: tl.tensor,
    bands: tl.tensor,
    size: tl.tensor,
    CHANNELS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Write the convolution of one channel."""
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_channel = channel < CHANNELS
    row, frame, band = _split(at, frames, bands)
    total = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    total += tl.load(bias_C + channel, mask=inside_channel, other=0.0).to(tl.float32)[None, :]
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            y, x = 2 * frame + i - 1, 2 * band + j - 1
            near = (at < size) & (y >= 0) & (y < in_frames) & (x >= 0) & (x < in_bands)
            value = tl.load(features_BFD + (row * in_frames + y) * in_bands + x, mask=near, other=0.0)
            weight = tl.load(weight_C33 + channel * 9 + 3 * i + j, mask=inside_channel, other=0.0)
            total += value.to(tl.float32)[:, None] * weight.to(tl.float32)[None, :]
    inside = (at < size)[:, None] & inside_channel[None, :]
    tl.store(
        out_NC + at.to(tl.int64)[:, None] * CHANNELS + channel[None, :], total.to(out_NC.dtype.element_ty), mask=inside
    )


@triton.jit(do_not_specialize=["in_frames", "in_bands", "frames", "bands", "size", "tiles"])  # type: ignore
def first_weight_kernel(
    features_BFD: tl.tensor,
    grad_NC: tl.tensor,
    part_PKC: tl.tensor,
    in_frames: tl.tensor,
    in_bands: tl.tensor,
    frames: tl.tensor,
    bands: tl.tensor,
    size: tl.tensor,
    tiles: tl.tensor,
    CHANNELS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Write this program's part of the gradients of the nine taps, and of the bias."""
    program = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_channel = channel < CHANNELS
    totals: tl.tuple = ()
    for _ in tl.static_range(10):
        totals += (tl.zeros([BLOCK_N, BLOCK_C], tl.float32),)
    for tile in range(tiles):
        at = (program * tiles + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
        row, frame, band = _split(at, frames, bands)
        inside = (at < size)[:, None] & inside_channel[None, :]
        grad = tl.load(grad_NC + at.to(tl.int64)[:, None] * CHANNELS + channel[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
        sums: tl.tuple = ()
        for k in tl.static_range(9):
            y, x = 2 * frame + k // 3 - 1, 2 * band + k % 3 - 1
            near = (at < size) & (y >= 0) & (y < in_frames) & (x >= 0) & (x < in_bands)
            value = tl.load(features_BFD + (row * in_frames + y) * in_bands + x, mask=near, other=0.0)
            sums += (totals[k] + grad * value.to(tl.float32)[:, None],)
        totals = sums + (totals[9] + grad,)  # noqa: RUF005  Triton knows no star
    for k in tl.static_range(10):
        tl.store(part_PKC + (program * 10 + k) * CHANNELS + channel, tl.sum(totals[k], axis=0), mask=inside_channel)


@triton.jit(do_not_specialize=["in_frames", "in_bands", "frames", "bands", "size"])  # type: ignore[untyped-decorator]
def depthwise_kernel(
    x_MC: tl.tensor,
    frames_B: tl.tensor,
    weight_C33: tl.tensor,
    bias_C: tl.tensor,
    out_NC: tl.tensor,
    in_frames: tl.tensor,
    in_bands: tl.tensor,
    frames: tl.tensor,
    bands: tl.tensor,
    size: tl.tensor,
    CHANNELS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Write the convolution, channel by channel, of ReLU of own frames."""
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_channel = channel < CHANNELS
    row, frame, band = _split(at, frames, bands)
    own = tl.load(frames_B + row, mask=at < size, other=0)
    total = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    total += tl.load(bias_C + channel, mask=inside_channel, other=0.0).to(tl.float32)[None, :]
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            y, x = 2 * frame + i - 1, 2 * band + j - 1
            near = (y >= 0) & (y < own) & (x >= 0) & (x < in_bands)
            place = ((row * in_frames + y) * in_bands + x).to(tl.int64)[:, None] * CHANNELS + channel[None, :]
            value = tl.load(x_MC + place, mask=near[:, None] & inside_channel[None, :], other=0.0).to(tl.float32)
            weight = tl.load(weight_C33 + channel * 9 + 3 * i + j, mask=inside_channel, other=0.0)
            total += tl.maximum(value, 0.0) * weight.to(tl.float32)[None, :]
    inside = (at < size)[:, None] & inside_channel[None, :]
    tl.store(
        out_NC + at.to(tl.int64)[:, None] * CHANNELS + channel[None, :], total.to(out_NC.dtype.element_ty), mask=inside
    )


@triton.jit(do_not_specialize=["in_frames", "in_bands", "frames", "bands", "size"])  # type: ignore[untyped-decorator]
def depthwise_backward_kernel(
    grad_NC: tl.tensor,
    x_MC: tl.tensor,
    frames_B: tl.tensor,
    weight_C33: tl.tensor,
    grad_x_MC: tl.tensor,
    in_frames: tl.tensor,
    in_bands: tl.tensor,
    frames: tl.tensor,
    bands: tl.tensor,
    size: tl.tensor,
    CHANNELS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Write the gradient of what ReLU was applied to, for each output point that of its two frames and two bands.

    By the stride, an even input frame is read by one output frame, and an odd one by two; so are the bands.
    """
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_channel = (channel < CHANNELS)[None, :]
    row, frame, band = _split(at, frames, bands)
    own = tl.load(frames_B + row, mask=at < size, other=0)
    source = grad_NC + at.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    here, is_next_frame, is_next_band = at < size, frame + 1 < frames, band + 1 < bands
    below, beside = here & is_next_frame, here & is_next_band
    grad = tl.load(source, mask=here[:, None] & inside_channel, other=0.0).to(tl.float32)
    grad_01 = tl.load(source + CHANNELS, mask=beside[:, None] & inside_channel, other=0.0).to(tl.float32)
    source += bands * CHANNELS
    grad_10 = tl.load(source, mask=below[:, None] & inside_channel, other=0.0).to(tl.float32)
    across = (below & is_next_band)[:, None] & inside_channel
    grad_11 = tl.load(source + CHANNELS, mask=across, other=0.0).to(tl.float32)
    taps: tl.tuple = ()
    for k in tl.static_range(9):
        tap = tl.load(weight_C33 + channel * 9 + k, mask=channel < CHANNELS, other=0.0)
        taps += (tap.to(tl.float32)[None, :],)
    for i in tl.static_range(2):
        for j in tl.static_range(2):
            if i == 0 and j == 0:
                total = grad * taps[4]
            elif i == 0:
                total = grad * taps[5] + grad_01 * taps[3]
            elif j == 0:
                total = grad * taps[7] + grad_10 * taps[1]
            else:
                total = grad * taps[8] + grad_01 * taps[6] + grad_10 * taps[2] + grad_11 * taps[0]
            y, x = 2 * frame + i, 2 * band + j
            inside = (here & (y < in_frames) & (x < in_bands))[:, None] & inside_channel
            place = ((row * in_frames + y) * in_bands + x).to(tl.int64)[:, None] * CHANNELS + channel[None, :]
            is_active = (tl.load(x_MC + place, mask=inside, other=0.0) > 0) & (y < own)[:, None]
            tl.store(grad_x_MC + place, tl.where(is_active, total, 0.0).to(grad_x_MC.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["in_frames", "in_bands", "frames", "bands", "size", "tiles"])  # type: ignore
def depthwise_weight_kernel(
    x_MC: tl.tensor,
    frames_B: tl.tensor,
    grad_NC: tl.tensor,
    part_PKC: tl.tensor,
    in_frames: tl.tensor,
    in_bands: tl.tensor,
    frames: tl.tensor,
    bands: tl.tensor,
    size: tl.tensor,
    tiles: tl.tensor,
    CHANNELS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Write this program's part of the gradients of the nine taps, and of the bias."""
    program = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_channel = channel < CHANNELS
    totals: tl.tuple = ()
    for _ in tl.static_range(10):
        totals += (tl.zeros([BLOCK_N, BLOCK_C], tl.float32),)
    for tile in range(tiles):
        at = (program * tiles + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
        row, frame, band = _split(at, frames, bands)
        own = tl.load(frames_B + row, mask=at < size, other=0)
        inside = (at < size)[:, None] & inside_channel[None, :]
        grad = tl.load(grad_NC + at.to(tl.int64)[:, None] * CHANNELS + channel[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
        sums: tl.tuple = ()
        for k in tl.static_range(9):
            y, x = 2 * frame + k // 3 - 1, 2 * band + k % 3 - 1
            near = (y >= 0) & (y < own) & (x >= 0) & (x < in_bands)
            place = ((row * in_frames + y) * in_bands + x).to(tl.int64)[:, None] * CHANNELS + channel[None, :]
            value = tl.load(x_MC + place, mask=near[:, None] & inside_channel[None, :], other=0.0).to(tl.float32)
            sums += (totals[k] + grad * tl.maximum(value, 0.0),)
        totals = sums + (totals[9] + grad,)  # noqa: RUF005  Triton knows no star
    for k in tl.static_range(10):
        tl.store(part_PKC + (program * 10 + k) * CHANNELS + channel, tl.sum(totals[k], axis=0), mask=inside_channel)
