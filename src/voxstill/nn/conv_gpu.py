"""The convolutions of students on a GPU as matrix products: cuDNN plans a convolution anew for each shape of its input.

A plan takes the processor about 15 ms, and few batches of audio have the shape of one before: planning the 57
convolutions of a student took 1.4 s of each step, and the GPU computed it in 0.05 s. Matrix products need no plan, and
neither do torch's own kernels for depthwise convolutions. Outputs and gradients are equal to rounding; on a CPU nothing
changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Conv = nn.Conv1d | nn.Conv2d
Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Input, weight and bias to output, as `_conv_forward` of torch's convolutions."""


def plan_free(model: PreTrainedModel) -> PreTrainedModel:
    """Let the convolutions of a student need no plan of cuDNN's on a GPU; weights keep their names."""
    for module in model.modules():
        if isinstance(module, Conv) and (forward_on_gpu := forward_of(module)) is not None:
            module._conv_forward = functools.partial(_forward, forward_on_gpu, module._conv_forward)  # type: ignore
    return model


def _forward(on_gpu: Forward, of_torch: Forward, inputs: Tensor, weight: Tensor, bias_D: Tensor | None) -> Tensor:
    return (on_gpu if inputs.is_cuda else of_torch)(inputs, weight, bias_D)


def forward_of(conv: Conv) -> Forward | None:
    """What computes a convolution without a plan; None where torch does so by itself, or it is of another kind."""
    if isinstance(conv.padding, str) or conv.padding_mode != "zeros" or set(conv.dilation) != {1}:
        return None
    is_pointwise = conv.groups == 1 and set(conv.kernel_size) == set(conv.stride) == {1} and set(conv.padding) == {0}
    if isinstance(conv, nn.Conv1d):
        return pointwise_1d if is_pointwise else None  # a depthwise one is torch's own
    if is_pointwise:
        return pointwise_2d
    if conv.in_channels == 1:
        return functools.partial(one_channel_2d, conv.stride, conv.padding)
    is_depthwise = conv.groups == conv.in_channels == conv.out_channels
    return functools.partial(depthwise_2d, conv.stride, conv.padding) if is_depthwise else None


def pointwise_1d(input_BCF: Tensor, weight_DC1: Tensor, bias_D: Tensor | None) -> Tensor:
    """A convolution over single frames: (B, C, F) to (B, D, F), in memory with time before channels."""
    return functional.linear(input_BCF.transpose(1, 2), weight_DC1[..., 0], bias_D).transpose(1, 2)


def pointwise_2d(input_BCFH: Tensor, weight_DC11: Tensor, bias_D: Tensor | None) -> Tensor:
    """A convolution over single points: (B, C, F, H) to (B, D, F, H)."""
    out_BDN = _product(input_BCFH.flatten(2), weight_DC11, bias_D)
    return out_BDN.view(*out_BDN.shape[:2], *input_BCFH.shape[2:])


def one_channel_2d(
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    input_B1FH: Tensor,
    weight_D1KL: Tensor,
    bias_D: Tensor | None,
) -> Tensor:
    """A convolution of one channel: (B, 1, F, H) to (B, D, F', H')."""
    padded_BFH = functional.pad(input_B1FH[:, 0], (padding[1], padding[1], padding[0], padding[0]))
    patches_BFHKL = padded_BFH.unfold(1, weight_D1KL.shape[2], stride[0]).unfold(2, weight_D1KL.shape[3], stride[1])
    patches_BPN = patches_BFHKL.permute(0, 3, 4, 1, 2).flatten(3).flatten(1, 2)
    out_BDN = _product(patches_BPN, weight_D1KL, bias_D)
    return out_BDN.view(*out_BDN.shape[:2], *patches_BFHKL.shape[1:3])


def depthwise_2d(
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    input_BCFH: Tensor,
    weight_C1KL: Tensor,
    bias_C: Tensor | None,
) -> Tensor:
    """A convolution of each channel by itself: (B, C, F, H) to (B, C, F', H'), by kernels of torch's own.

    They are for channels before time. A weight of one channel a group counts as the other order, too, until it is
    copied, and cuDNN would take it.
    """
    weight_C1KL = weight_C1KL.clone(memory_format=torch.contiguous_format)
    return functional.conv2d(input_BCFH.contiguous(), weight_C1KL, bias_C, stride, padding, groups=len(weight_C1KL))


def _product(input_BCN: Tensor, weight: Tensor, bias_D: Tensor | None) -> Tensor:
    """(B, C, N) to (B, D, N): channels stay before points, as depthwise convolutions want them."""
    weight_BDC = weight.flatten(1).expand(len(input_BCN), -1, -1)
    if bias_D is None:
        return torch.bmm(weight_BDC, input_BCN)
    return torch.baddbmm(bias_D[:, None], weight_BDC, input_BCN)
