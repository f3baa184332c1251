"""The convolutions of wav2vec 2.0 and its kin: twice as fast on a CPU, and without an influence of padding.

`transformers` keeps channels before time, and transposes each layer's output and back for a layer norm over channels.
With time first nothing is transposed: a convolution is one matrix product for each tap of its kernel, and norm and
activation read memory in order. Outputs and gradients are equal to rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.distributed.tensor import DTensor

from voxstill.nn.frontends import conv_frames
from voxstill.nn.log_mel import frame_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _Kept(FunctionCtx):
    """What the forward pass keeps for the backward pass."""

    saved_tensors: tuple[Tensor, Tensor]
    stride: int


class _Convolution(torch.autograd.Function):
    """(B, T, C) and weights (D, C, K) to (B, F, D), without padding."""

    @staticmethod
    def forward(ctx: _Kept, input_BTC: Tensor, weight_DCK: Tensor, stride: int) -> Tensor:
        kernel = weight_DCK.shape[2]
        frames = (input_BTC.shape[1] - kernel) // stride + 1
        weight_KCD = weight_DCK.permute(2, 1, 0).contiguous()
        out_BFD = input_BTC.new_zeros(len(input_BTC), frames, len(weight_DCK))
        for input_TC, out_FD in zip(input_BTC, out_BFD, strict=True):
            for tap in range(kernel):
                out_FD.addmm_(input_TC[_inputs_of_tap(tap, stride, frames)], weight_KCD[tap])
        ctx.save_for_backward(input_BTC, weight_DCK)
        ctx.stride = stride
        return out_BFD

    @staticmethod
    def backward(ctx: _Kept, grad_out_BFD: Tensor) -> tuple[Tensor, Tensor, None]:
        input_BTC, weight_DCK = ctx.saved_tensors
        kernel, frames = weight_DCK.shape[2], grad_out_BFD.shape[1]
        weight_KDC = weight_DCK.permute(2, 0, 1).contiguous()
        grad_input_BTC, grad_weight_KDC = torch.zeros_like(input_BTC), torch.zeros_like(weight_KDC)
        for input_TC, grad_input_TC, grad_out_FD in zip(input_BTC, grad_input_BTC, grad_out_BFD, strict=True):
            for tap in range(kernel):
                inputs = _inputs_of_tap(tap, ctx.stride, frames)
                grad_weight_KDC[tap].addmm_(grad_out_FD.T, input_TC[inputs])
                grad_input_TC[inputs].addmm_(grad_out_FD, weight_KDC[tap])
        return grad_input_BTC, grad_weight_KDC.permute(1, 2, 0), None


class FeatureExtractor(Protocol):
    """The convolutions of wav2vec 2.0 or of one of its kin in `transformers`, each with its norm and activation."""

    conv_layers: Iterable[Any]
    training: bool
    forward: Callable[[Tensor], Tensor]


def _inputs_of_tap(tap: int, stride: int, frames: int) -> slice:
    """The inputs that one tap of the kernel is multiplied with, one for each output frame."""
    return slice(tap, tap + stride * (frames - 1) + 1, stride)


def time_first(extractor: FeatureExtractor) -> None:
    """Make a feature extractor with layer norms compute with time first wherever it runs on a CPU in fp32."""
    layers = list(extractor.conv_layers)
    if not all(isinstance(getattr(layer, "layer_norm", None), nn.LayerNorm) for layer in layers):
        return
    extractor.forward = functools.partial(_forward, extractor, extractor.forward)


def _forward(
    extractor: FeatureExtractor, forward_of_transformers: Callable[[Tensor], Tensor], samples_BT: Tensor
) -> Tensor:
    layers = list(extractor.conv_layers)
    recomputes = extractor.training and any(layer.gradient_checkpointing for layer in layers)
    sharded = isinstance(layers[0].conv.weight, DTensor)  # FSDP gathers it only where the layer itself is called
    if samples_BT.device.type != "cpu" or torch.is_autocast_enabled("cpu") or recomputes or sharded:
        return forward_of_transformers(samples_BT)
    hidden_BFD = layers[0].conv(samples_BT[:, None]).transpose(1, 2).contiguous()
    for layer in layers:
        if layer is not layers[0]:
            conv = layer.conv
            hidden_BFD = _Convolution.apply(hidden_BFD, conv.weight, conv.stride[0])  # type: ignore[no-untyped-call]
            hidden_BFD = hidden_BFD if conv.bias is None else hidden_BFD + conv.bias
        hidden_BFD = layer.activation(layer.layer_norm(hidden_BFD))
    features_BDF: Tensor = hidden_BFD.transpose(1, 2)
    return features_BDF


class _OwnFramesNorm(nn.GroupNorm):
    """Group norm of wav2vec 2.0's first convolution, over an utterance's own frames: padding does not change it."""

    frames_B: Tensor

    def forward(self, input_BCF: Tensor) -> Tensor:
        """(B, C, F) to the same; each channel is a group."""
        own_B1F = frame_mask(self.frames_B, input_BCF.shape[2])[:, None]
        count_B11 = self.frames_B[:, None, None].clamp(min=1)
        wide_BCF = input_BCF.float()
        centred_BCF = wide_BCF - (wide_BCF * own_B1F).sum(2, keepdim=True) / count_B11
        variance_BC1 = (centred_BCF.square() * own_B1F).sum(2, keepdim=True) / count_B11
        scaled_BCF = centred_BCF * (variance_BC1 + self.eps).rsqrt() * self.weight[:, None] + self.bias[:, None]
        return scaled_BCF.to(input_BCF.dtype)


def padding_ignored(model: PreTrainedModel) -> PreTrainedModel:
    """Replace the group norm of a model's first convolution by one that ignores padding; weights keep their names."""
    first = model.base_model.feature_extractor.conv_layers[0]
    if not isinstance(getattr(first, "layer_norm", None), nn.GroupNorm):
        return model
    norm = _OwnFramesNorm(first.layer_norm.num_groups, first.layer_norm.num_channels, first.layer_norm.eps)
    norm.load_state_dict(first.layer_norm.state_dict())
    norm.requires_grad_(first.layer_norm.weight.requires_grad)
    first.layer_norm = norm

    def set_frames(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        config = model.config
        norm.frames_B = conv_frames(kwargs["attention_mask"].sum(1), config.conv_kernel[:1], config.conv_stride[:1])

    model.register_forward_pre_hook(set_frames, with_kwargs=True)
    return model


def grouped_in_fp32(model: PreTrainedModel) -> PreTrainedModel:
    """Make grouped convolutions compute in fp32 on a CPU where half precision is asked for; weights keep their names.

    oneDNN's bf16 kernels for AMX give wrong outputs if the channels of a group are not a multiple of 16 (torch 2.13).
    """
    for module in model.modules():
        if isinstance(module, nn.Conv1d) and 1 < module.groups < module.in_channels:
            module.forward = functools.partial(_grouped_forward, module, module.forward)  # type: ignore[method-assign]
    return model


def _grouped_forward(conv: nn.Conv1d, forward_of_torch: Callable[[Tensor], Tensor], input_BCF: Tensor) -> Tensor:
    if input_BCF.device.type != "cpu" or (input_BCF.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")):
        return forward_of_torch(input_BCF)
    bias_D = None if conv.bias is None else conv.bias.float()
    with torch.autocast("cpu", enabled=False):
        out_BDF: Tensor = conv._conv_forward(input_BCF.float(), conv.weight.float(), bias_D)
    return out_BDF.to(input_BCF.dtype)
