"""The convolutions in front of a FastConformer by hand, forward and backward, for training on a GPU.

Channels come last, so a convolution over single points is one matrix product; ReLU and the mask of padding are applied
while the next convolution reads. Features need no gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from voxstill.nn.linear_gpu import (
    Gradients,
    Kept,
    bias_gradient,
    cast,
    compute_dtype,
    parts_of,
    power_of_2,
    product,
    sum_of_parts,
    weight_gradient,
)
from voxstill.nn.mel import Counts
from voxstill.nn.triton_launch import launch

if TYPE_CHECKING:
    from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderSubsamplingConv2D

_POINTS, _CHANNELS = 64, 64
_POINT_CHANNELS = 1024
"""Channels of output points, in one program of the gradient of what a convolution reads."""
_TAP_POINTS, _TAP_CHANNELS = 8, 64
"""Few, as the sums of all taps stay in registers."""


def is_known(module: ParakeetEncoderSubsamplingConv2D) -> bool:
    """Whether the kernels know the convolutions of a module: of transformers, with biases, 3 x 3 with a stride of 2."""
    convs = [layer for layer in module.layers if isinstance(layer, nn.Conv2d)]
    spatial = [conv for conv in convs if conv.kernel_size == (3, 3)]
    is_spatial = all(conv.stride == (2, 2) and conv.padding == (1, 1) for conv in spatial)
    return is_spatial and len(convs) == 2 * len(spatial) - 1 and all(conv.bias is not None for conv in convs)


def subsampling(module: ParakeetEncoderSubsamplingConv2D, features_BFD: Tensor, frames_B: Tensor) -> Tensor:
    """A `ParakeetEncoderSubsamplingConv2D` in training: features (B, F, D) and their frames (B,) to (B, F', E)."""
    first, *others = (layer for layer in module.layers if isinstance(layer, nn.Conv2d))
    dtype = compute_dtype(features_BFD)
    frames_B = _half(frames_B)
    with torch.autocast(features_BFD.device.type, enabled=False):
        x_BFHC = _First.apply(features_BFD.contiguous(), first.weight, first.bias, dtype)  # type: ignore[no-untyped-call]
        for depthwise, pointwise in zip(others[::2], others[1::2], strict=True):
            of_convolutions = (depthwise.weight, depthwise.bias, pointwise.weight, pointwise.bias)
            x_BFHC = _Separable.apply(x_BFHC, frames_B, *of_convolutions)  # type: ignore[no-untyped-call]
            frames_B = _half(frames_B)
        out_BFE: Tensor = _Output.apply(x_BFHC, module.linear.weight, module.linear.bias)  # type: ignore[no-untyped-call]
    return out_BFE


def _half(number: Counts) -> Counts:
    return (number + 1) // 2


class _First(torch.autograd.Function):
    """The convolution of one channel: (B, F, D) to (B, F', H, C)."""

    @staticmethod
    def forward(ctx: Kept, features_BFD: Tensor, weight_C133: Tensor, bias_C: Tensor, dtype: torch.dtype) -> Tensor:
        from voxstill.nn import subsampling_triton as kernels

        num, frames, bands = features_BFD.shape
        weight_C33, bias_C = cast(dtype, (weight_C133, bias_C))
        out_BFHC = torch.empty(num, _half(frames), _half(bands), len(bias_C), dtype=dtype, device=bias_C.device)
        ctx.save_for_backward(features_BFD)
        size, channels = out_BFHC.numel() // len(bias_C), len(bias_C)
        shape = (frames, bands, *out_BFHC.shape[1:3], size)
        launch(
            kernels.first_kernel,
            _grid(size, channels),
            features_BFD,
            weight_C33,
            bias_C,
            out_BFHC,
            *shape,
            **_constants(channels),
        )
        return out_BFHC

    @staticmethod
    def backward(ctx: Kept, *grads: Tensor) -> Gradients:
        from voxstill.nn import subsampling_triton as kernels

        (features_BFD,), grad_BFHC = ctx.saved_tensors, grads[0].contiguous()
        channels = grad_BFHC.shape[-1]
        size = grad_BFHC.numel() // channels
        programs, tiles = parts_of(size, _TAP_POINTS, 1024)
        part_PKC = torch.empty(programs, 10, channels, device=grad_BFHC.device)
        shape = (*features_BFD.shape[1:], *grad_BFHC.shape[1:3], size, tiles)
        launch(
            kernels.first_weight_kernel,
            (programs, -(-channels // _TAP_CHANNELS)),
            features_BFD,
            grad_BFHC,
            part_PKC,
            *shape,
            **_tap_constants(channels),
            num_warps=2,
        )
        return None, *_of_taps(part_PKC), None


class _Separable(torch.autograd.Function):
    """ReLU, the depthwise convolution and that over single points: (B, F, H, C) to (B, F', H', C)."""

    @staticmethod
    def forward(ctx: Kept, x_BFHC: Tensor, frames_B: Tensor, *weights: Tensor) -> Tensor:
        from voxstill.nn import subsampling_triton as kernels

        num, frames, bands, channels = x_BFHC.shape
        depth_C33, depth_C, weight_CC, bias_C = cast(x_BFHC.dtype, weights)
        weight_CC = weight_CC[..., 0, 0]
        mixed_BFHC = x_BFHC.new_empty(num, _half(frames), _half(bands), channels)
        size = mixed_BFHC.numel() // channels
        launch(
            kernels.depthwise_kernel,
            _grid(size, channels),
            x_BFHC,
            frames_B,
            depth_C33,
            depth_C,
            mixed_BFHC,
            *_shape(x_BFHC, mixed_BFHC),
            size,
            **_constants(channels),
        )
        ctx.save_for_backward(x_BFHC, frames_B, mixed_BFHC, depth_C33, weight_CC, bias_C)
        return product(mixed_BFHC.view(-1, channels), weight_CC, bias_C).view(mixed_BFHC.shape)

    @staticmethod
    def backward(ctx: Kept, *grads: Tensor) -> Gradients:
        from voxstill.nn import subsampling_triton as kernels

        x_BFHC, frames_B, mixed_BFHC, depth_C33, weight_CC, bias_C = ctx.saved_tensors
        channels = len(bias_C)
        grad_NC, mixed_NC = grads[0].reshape(-1, channels), mixed_BFHC.view(-1, channels)
        grad_mixed_NC, grad_x_BFHC = torch.mm(grad_NC, weight_CC), torch.empty_like(x_BFHC)
        shape, lanes = _shape(x_BFHC, mixed_BFHC), min(power_of_2(channels), 256)
        points = _POINT_CHANNELS // lanes
        launch(
            kernels.depthwise_backward_kernel,
            (-(-len(mixed_NC) // points), -(-channels // lanes)),
            grad_mixed_NC,
            x_BFHC,
            frames_B,
            depth_C33,
            grad_x_BFHC,
            *shape,
            len(mixed_NC),
            CHANNELS=channels,
            BLOCK_N=points,
            BLOCK_C=lanes,
        )
        programs, tiles = parts_of(len(mixed_NC), _TAP_POINTS, 2048)
        part_PKC = torch.empty(programs, 10, channels, device=grad_NC.device)
        launch(
            kernels.depthwise_weight_kernel,
            (programs, -(-channels // _TAP_CHANNELS)),
            x_BFHC,
            frames_B,
            grad_mixed_NC,
            part_PKC,
            *shape,
            len(mixed_NC),
            tiles,
            **_tap_constants(channels),
        )
        weight = weight_gradient(grad_NC, mixed_NC)[..., None, None]
        return grad_x_BFHC, None, *_of_taps(part_PKC), weight, bias_gradient(grad_NC, bias_C)


class _Output(torch.autograd.Function):
    """ReLU, and the linear layer over all bands of a frame: (B, F, H, C) to (B, F, E)."""

    @staticmethod
    def forward(ctx: Kept, x_BFHC: Tensor, weight_ECH: Tensor, bias_E: Tensor) -> Tensor:
        num, frames, bands, channels = x_BFHC.shape
        weight_ECH, bias_E = cast(x_BFHC.dtype, (weight_ECH.view(-1, channels, bands), bias_E))
        weight_EI = weight_ECH.transpose(1, 2).reshape(len(bias_E), -1)  # in transformers channels come before bands
        active_NI = x_BFHC.relu().view(num * frames, -1)
        ctx.save_for_backward(active_NI, weight_EI, bias_E)
        ctx.shape = x_BFHC.shape
        return product(active_NI, weight_EI, bias_E).view(num, frames, -1)

    @staticmethod
    def backward(ctx: Kept, *grads: Tensor) -> Gradients:
        active_NI, weight_EI, bias_E = ctx.saved_tensors
        *_, bands, channels = ctx.shape
        grad_NE = grads[0].reshape(-1, len(bias_E))
        grad_x = torch.ops.aten.threshold_backward(torch.mm(grad_NE, weight_EI), active_NI, 0)
        weight_EHC = weight_gradient(grad_NE, active_NI).view(-1, bands, channels)
        weight_EI = weight_EHC.transpose(1, 2).reshape(len(bias_E), -1)
        return grad_x.view(ctx.shape), weight_EI, bias_gradient(grad_NE, bias_E)


def _grid(size: int, channels: int) -> tuple[int, int]:
    return -(-size // _POINTS), -(-channels // _CHANNELS)


def _constants(channels: int) -> dict[str, int]:
    return {"CHANNELS": channels, "BLOCK_N": _POINTS, "BLOCK_C": _CHANNELS}


def _tap_constants(channels: int) -> dict[str, int]:
    return {"CHANNELS": channels, "BLOCK_N": _TAP_POINTS, "BLOCK_C": _TAP_CHANNELS}


def _shape(x_BFHC: Tensor, out_BFHC: Tensor) -> tuple[int, ...]:
    """Frames and bands of the input, and of the output."""
    return (*x_BFHC.shape[1:3], *out_BFHC.shape[1:3])


def _of_taps(part_PKC: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a weight (C, 1, 3, 3) and of a bias (C,)."""
    sum_KC = sum_of_parts(part_PKC)
    return sum_KC[:9].t().reshape(-1, 1, 3, 3), sum_KC[9]
