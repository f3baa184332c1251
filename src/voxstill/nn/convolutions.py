"""The convolutions of a model that hears samples, on a CPU: the same to rounding, there and back in half the time.

`transformers` keeps channels before time, and turns each layer's output round and back for a norm over its channels.
With time first nothing is turned round: a convolution is one matrix product for each place of its kernel, and the
norm and the activation go over memory in order.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class _Convolution(torch.autograd.Function):
    """(B, T, C) and weights (D, C, K) to (B, F, D), without padding."""

    @staticmethod
    def forward(ctx: Any, heard_BTC: Tensor, weight_DCK: Tensor, stride: int) -> Tensor:
        kernel = weight_DCK.shape[2]
        frames = (heard_BTC.shape[1] - kernel) // stride + 1
        weight_KCD = weight_DCK.permute(2, 1, 0).contiguous()
        out_BFD = heard_BTC.new_zeros(len(heard_BTC), frames, len(weight_DCK))
        for heard_TC, out_FD in zip(heard_BTC, out_BFD, strict=True):
            for place in range(kernel):
                out_FD.addmm_(heard_TC[_every(place, stride, frames)], weight_KCD[place])
        ctx.save_for_backward(heard_BTC, weight_DCK)
        ctx.stride = stride
        return out_BFD

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        heard_BTC, weight_DCK = ctx.saved_tensors
        (out_BFD,) = gradients
        kernel, frames = weight_DCK.shape[2], out_BFD.shape[1]
        weight_KDC = weight_DCK.permute(2, 0, 1).contiguous()
        to_heard_BTC, to_weight_KDC = torch.zeros_like(heard_BTC), torch.zeros_like(weight_KDC)
        for heard_TC, to_heard_TC, out_FD in zip(heard_BTC, to_heard_BTC, out_BFD, strict=True):
            for place in range(kernel):
                every = _every(place, ctx.stride, frames)
                to_weight_KDC[place].addmm_(out_FD.T, heard_TC[every])
                to_heard_TC[every].addmm_(out_FD, weight_KDC[place])
        return to_heard_BTC, to_weight_KDC.permute(1, 2, 0), None


def _every(place: int, stride: int, frames: int) -> slice:
    """What one place of the kernel sees."""
    return slice(place, place + stride * (frames - 1) + 1, stride)


def time_first(extractor: Any) -> None:
    """Let the convolutions of a wav2vec 2.0 with layer norms work so, where they are on a CPU and in fp32."""
    layers = list(extractor.conv_layers)
    if not all(hasattr(each, "layer_norm") and isinstance(each.layer_norm, torch.nn.LayerNorm) for each in layers):
        return
    extractor.forward = functools.partial(_forward, extractor, extractor.forward)


def _forward(extractor: Any, otherwise: Any, samples_BT: Tensor) -> Tensor:
    layers = list(extractor.conv_layers)
    forgets = extractor.training and any(each.gradient_checkpointing for each in layers)
    sharded = isinstance(layers[0].conv.weight, DTensor)  # it is put together where the layer itself is called
    if samples_BT.device.type != "cpu" or torch.is_autocast_enabled("cpu") or forgets or sharded:
        found: Tensor = otherwise(samples_BT)
        return found
    heard_BTC = layers[0].conv(samples_BT[:, None]).transpose(1, 2).contiguous()
    for layer in layers:
        if layer is not layers[0]:
            conv = layer.conv
            heard_BTC = _Convolution.apply(heard_BTC, conv.weight, conv.stride[0])  # type: ignore[no-untyped-call]
            heard_BTC = heard_BTC if conv.bias is None else heard_BTC + conv.bias
        heard_BTC = layer.activation(layer.layer_norm(heard_BTC))
    heard_BCT: Tensor = heard_BTC.transpose(1, 2)
    return heard_BCT
