"""The convolution module of the Conformer by hand, forward and backward, for training on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from voxstill.nn.linear_gpu import (
    Gradients,
    Kept,
    bias_gradient,
    parts_of,
    product,
    sum_of_parts,
    weight_gradient,
    whole_rows,
)
from voxstill.nn.triton_launch import launch

if TYPE_CHECKING:
    from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderConvolutionModule

_ROWS, _CHANNELS = 32, 64
_PROGRAMS = 64
"""Programs that share the rows of a sum: with more of them, adding up their parts takes longer."""
_FRAMES, _WIDE_CHANNELS = 16, 128
"""Of one program of the depthwise convolution."""
_TAP_ROWS, _TAP_PROGRAMS = 8, 264
"""Few rows, as the sums of all taps stay in registers."""


def weights(module: ParakeetEncoderConvolutionModule) -> list[Tensor | None]:
    """The weights and biases of the three convolutions."""
    convolutions = (module.pointwise_conv1, module.depthwise_conv, module.pointwise_conv2)
    return [tensor for conv in convolutions for tensor in (conv.weight, conv.bias)]


def convolution(
    module: ParakeetEncoderConvolutionModule, x_NE: Tensor, own_N: Tensor, num: int, casted: Sequence[Any]
) -> Tensor:
    """A `ParakeetEncoderConvolutionModule` in training: (N, E) to (N, E); `own_N` is 0 for padding."""
    norm = module.norm
    norm.num_batches_tracked.add_(1)
    out_NE: Tensor = _Convolution.apply(x_NE, own_N, num, norm, casted, norm.weight, norm.bias, *weights(module))  # type: ignore[no-untyped-call]
    return out_NE


class _Convolution(torch.autograd.Function):
    """Linear, GLU, depthwise convolution, BatchNorm, SiLU, linear; `conformer_gpu` has the last bias's gradient."""

    @staticmethod
    def forward(
        ctx: Kept,
        x_NE: Tensor,
        own_N: Tensor,
        num: int,
        norm: nn.BatchNorm1d,
        casted: Sequence[Any],
        norm_E: Tensor,
        offset_E: Tensor,
        *_: Tensor | None,
    ) -> Tensor:
        from voxstill.nn import conformer_triton, convolution_triton

        weight_2EE, bias_2E, depth_EK, depth_E, weight_EE, bias_E = casted
        weight_2EE, depth_EK, weight_EE = weight_2EE[..., 0], depth_EK[:, 0], weight_EE[..., 0]
        inner_N2E = product(x_NE, weight_2EE, bias_2E)
        gated_NE, mixed_NE, active_NE = torch.empty_like(x_NE), torch.empty_like(x_NE), torch.empty_like(x_NE)
        blocks, constants = whole_rows(*x_NE.shape)
        launch(conformer_triton.glu_kernel, blocks, inner_N2E, own_N, gated_NE, len(x_NE), **constants)
        _depthwise(gated_NE, depth_EK, depth_E, mixed_NE, num, is_backward=False)
        mean_E, rstd_E = _batch_norm(mixed_NE, norm)
        moments = (mean_E, rstd_E, norm_E, offset_E)
        launch(convolution_triton.norm_silu_kernel, blocks, mixed_NE, *moments, active_NE, len(x_NE), **constants)
        ctx.save_for_backward(
            x_NE, own_N, inner_N2E, gated_NE, mixed_NE, active_NE, *moments,
            weight_2EE, bias_2E, depth_EK, depth_E, weight_EE,
        )  # fmt: skip
        ctx.num = num
        return product(active_NE, weight_EE, bias_E)

    @staticmethod
    def backward(ctx: Kept, *grads: Tensor) -> Gradients:
        from voxstill.nn import conformer_triton, convolution_triton

        x_NE, own_N, inner_N2E, gated_NE, mixed_NE, active_NE, *rest = ctx.saved_tensors
        moments, (weight_2EE, bias_2E, depth_EK, depth_E, weight_EE) = rest[:4], rest[4:]
        rows, grad_NE = len(x_NE), grads[0].contiguous()
        blocks, constants = whole_rows(*x_NE.shape)
        grad_active_NE = torch.mm(grad_NE, weight_EE)
        norm_2E = _norm_gradients(grad_active_NE, mixed_NE, moments)
        grad_mixed_NE, grad_gated_NE = torch.empty_like(x_NE), torch.empty_like(x_NE)
        launch(
            convolution_triton.norm_silu_backward_kernel,
            blocks,
            grad_active_NE,
            mixed_NE,
            *moments,
            norm_2E,
            grad_mixed_NE,
            rows,
            **constants,
        )
        _depthwise(grad_mixed_NE, depth_EK, None, grad_gated_NE, ctx.num, is_backward=True)
        depth_KE = _depthwise_gradients(gated_NE, grad_mixed_NE, depth_EK.shape[1], ctx.num)
        grad_inner_N2E = torch.empty_like(inner_N2E)
        launch(
            conformer_triton.glu_backward_kernel,
            blocks,
            grad_gated_NE,
            inner_N2E,
            own_N,
            grad_inner_N2E,
            rows,
            **constants,
        )
        return (
            torch.mm(grad_inner_N2E, weight_2EE),
            *(None,) * 4,
            norm_2E[0],
            norm_2E[1],
            weight_gradient(grad_inner_N2E, x_NE)[..., None],
            bias_gradient(grad_inner_N2E, bias_2E),
            depth_KE[:-1].t()[:, None],
            None if depth_E is None else depth_KE[-1],
            weight_gradient(grad_NE, active_NE)[..., None],
            None,
        )


def _depthwise(
    x_NE: Tensor, weight_EK: Tensor, bias_E: Tensor | None, out_NE: Tensor, num: int, *, is_backward: bool
) -> None:
    """Write the depthwise convolution over time, or the gradient of its input."""
    from voxstill.nn import convolution_triton as kernels

    (rows, width), taps = x_NE.shape, weight_EK.shape[1]
    frames = rows // num
    launch(
        kernels.depthwise_kernel,
        (-(-frames // _FRAMES), num, -(-width // _WIDE_CHANNELS)),
        x_NE,
        weight_EK,
        bias_E,
        out_NE,
        frames,
        WIDTH=width,
        TAPS=taps,
        IS_BACKWARD=is_backward,
        HAS_BIAS=bias_E is not None,
        BLOCK_F=_FRAMES,
        BLOCK_E=_WIDE_CHANNELS,
    )


def _depthwise_gradients(x_NE: Tensor, grad_NE: Tensor, taps: int, num: int) -> Tensor:
    """Gradients (K + 1, E) of the taps of the depthwise convolution, and of its bias."""
    from voxstill.nn import convolution_triton as kernels

    rows, width = x_NE.shape
    programs, tiles = parts_of(rows, _TAP_ROWS, _TAP_PROGRAMS)
    part_PKE = torch.empty(programs, taps + 1, width, device=x_NE.device)
    constants = {"WIDTH": width, "TAPS": taps, "BLOCK_N": _TAP_ROWS, "BLOCK_E": _CHANNELS, "num_warps": 2}
    blocks = (programs, -(-width // _CHANNELS))
    launch(kernels.depthwise_weight_kernel, blocks, x_NE, grad_NE, part_PKE, rows, rows // num, tiles, **constants)
    return sum_of_parts(part_PKE)


def _batch_norm(x_NE: Tensor, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation (E,) of a batch, which the running ones of the norm follow."""
    from voxstill.nn import convolution_triton as kernels

    rows, width = x_NE.shape
    (programs, tiles), columns = parts_of(rows, _ROWS, _PROGRAMS), -(-width // _CHANNELS)
    part_P2E = torch.empty(programs, 2, width, device=x_NE.device)
    mean_E, rstd_E = torch.empty(2, width, device=x_NE.device)
    constants = {"WIDTH": width, "BLOCK_E": _CHANNELS}
    launch(kernels.moments_kernel, (programs, columns), x_NE, part_P2E, rows, tiles, BLOCK_N=_ROWS, **constants)
    running = (norm.running_mean, norm.running_var)
    shape = (rows, programs, tiles * _ROWS, norm.momentum)
    launch(kernels.batch_norm_kernel, (columns,), part_P2E, mean_E, rstd_E, *running, *shape, eps=norm.eps, **constants)
    return mean_E, rstd_E


def _norm_gradients(grad_NE: Tensor, x_NE: Tensor, moments: Sequence[Tensor]) -> Tensor:
    """Gradients (2, E) of the weight and the bias of the batch norm."""
    from voxstill.nn import convolution_triton as kernels

    rows, width = x_NE.shape
    programs, tiles = parts_of(rows, _ROWS, _PROGRAMS)
    part_P2E = torch.empty(programs, 2, width, device=x_NE.device)
    constants = {"WIDTH": width, "BLOCK_N": _ROWS, "BLOCK_E": _CHANNELS}
    blocks = (programs, -(-width // _CHANNELS))
    launch(kernels.norm_silu_sums_kernel, blocks, grad_NE, x_NE, *moments, part_P2E, rows, tiles, **constants)
    return sum_of_parts(part_P2E)
