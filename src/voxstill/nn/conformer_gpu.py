"""A FastConformer in training on a GPU: the block by hand, forward and backward, instead of module by module.

One core starts the kernels of a GPU, some microseconds each, and a block of `transformers` in mixed precision starts
two hundred: casts, transposed copies, and passes over memory for each small operation. Here a block is its matrix
products with one kernel between two of them (`conformer_triton`), channels last, and its weights are cast once.
Relative positions are projected once and not for each utterance. Outputs and gradients are those of the modules to
rounding; in evaluation, with dropout, or on a CPU the modules themselves run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from voxstill.core.monitor import log
from voxstill.nn import attention_gpu, conformer_conv_gpu, subsampling_gpu
from voxstill.nn.linear_gpu import (
    Gradients,
    Kept,
    cast,
    compute_dtype,
    parts_of,
    power_of_2,
    product,
    silu_backward,
    sum_of_parts,
    weight_gradient,
)
from voxstill.nn.triton_launch import launch

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.parakeet.modeling_parakeet import (
        ParakeetEncoderBlock,
        ParakeetEncoderFeedForward,
        ParakeetEncoderSubsamplingConv2D,
    )


def fuse(model: PreTrainedModel) -> PreTrainedModel:
    """Let the blocks of a FastConformer, and the convolutions before them, run fused in training on a GPU."""
    from transformers.models.parakeet import modeling_parakeet as parakeet

    for module in model.modules():
        if isinstance(module, parakeet.ParakeetEncoderBlock):
            module.forward = functools.partial(_block_forward, module, module.forward)
        elif isinstance(module, parakeet.ParakeetEncoderSubsamplingConv2D):
            module.forward = functools.partial(_subsampling_forward, module, module.forward)
    return model


@functools.cache
def triton_runs(device: torch.device) -> bool:
    """Whether Triton runs on a GPU; logs once a warning where it does not."""
    try:
        from voxstill.nn import conformer_triton as kernels

        x_18, own_1 = torch.zeros(1, 8, device=device), torch.ones(1, dtype=torch.uint8, device=device)
        launch(kernels.glu_kernel, (1,), x_18, own_1, torch.empty(1, 4, device=device), 1, WIDTH=4, LANES=4, ROWS=1)
    except Exception as error:  # no Triton, or none that works: it needs a C compiler, and a GPU that it knows
        log.warning(
            "a FastConformer trains by its modules on %s, which is slower: Triton does not run: %s", device, error
        )
        return False
    return True


def is_fused(module: nn.Module, inputs: Tensor) -> bool:
    """Whether a module in training on a GPU leaves its forward pass to the kernels."""
    return (
        inputs.is_cuda
        and module.training
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and triton_runs(inputs.device)
    )


def _block_forward(
    module: ParakeetEncoderBlock, plain: Callable[..., Tensor], hidden_BFE: Tensor, **kwargs: Tensor
) -> Tensor:
    is_single = hidden_BFE.shape[:2].numel() == 1  # BatchNorm of the modules refuses a single frame
    if is_single or not is_known(module) or not is_fused(module, hidden_BFE):
        return plain(hidden_BFE, **kwargs)
    return block(module, hidden_BFE, kwargs["attention_mask"], kwargs["position_embeddings"])


def _subsampling_forward(
    module: ParakeetEncoderSubsamplingConv2D,
    plain: Callable[..., Tensor],
    features_BFD: Tensor,
    attention_mask: Tensor | None = None,
) -> Tensor:
    if attention_mask is None or not subsampling_gpu.is_known(module) or not is_fused(module, features_BFD):
        return plain(features_BFD, attention_mask)
    return subsampling_gpu.subsampling(module, features_BFD, attention_mask.sum(-1))


def is_known(module: ParakeetEncoderBlock) -> bool:
    """Whether a block is what the kernels compute: without dropout, with BatchNorm in training."""
    norm, attention = module.conv.norm, module.self_attn
    return (
        type(norm) is nn.BatchNorm1d
        and norm.training
        and norm.momentum is not None
        and not module.feed_forward1.activation_dropout
        and not attention.attention_dropout
        and attention.num_key_value_groups == 1
        and attention.config.hidden_act == "silu"
    )


def block(module: ParakeetEncoderBlock, hidden_BFE: Tensor, mask_B1FF: Tensor | None, positions_BPE: Tensor) -> Tensor:
    """A `ParakeetEncoderBlock` in training: (B, F, E) to (B, F, E), with its mask and embedded positions."""
    num, frames, width = hidden_BFE.shape
    dtype = compute_dtype(hidden_BFE)
    out_dtype = torch.float32 if torch.is_autocast_enabled("cuda") else hidden_BFE.dtype  # as a norm of torch gives it
    if mask_B1FF is None:
        own_N = torch.ones(num * frames, dtype=torch.uint8, device=hidden_BFE.device)
    else:  # a frame is seen by itself where it is not padding
        own_N = mask_B1FF[:, 0].diagonal(dim1=1, dim2=2).reshape(-1).to(torch.uint8)
    with torch.autocast(hidden_BFE.device.type, enabled=False):
        casted = _cast(module, dtype)
        x_NE = hidden_BFE.reshape(-1, width).float().contiguous()
        y_NE = _AddNorm.apply(x_NE, None, 1.0, *_norm(module.norm_feed_forward1), dtype, None)  # type: ignore[no-untyped-call]
        y_NE = _feed_forward(module.feed_forward1, y_NE, casted["feed_forward1"])
        bias_E = module.feed_forward1.linear2.bias
        x_NE, y_NE = _AddNorm.apply(x_NE, y_NE, 0.5, *_norm(module.norm_self_att), dtype, bias_E)  # type: ignore[no-untyped-call]
        y_NE = attention_gpu.attention(
            module.self_attn, y_NE, positions_BPE[0].to(dtype), own_N, num, casted["self_attn"]
        )
        bias_E = module.self_attn.o_proj.bias
        x_NE, y_NE = _AddNorm.apply(x_NE, y_NE, 1.0, *_norm(module.norm_conv), dtype, bias_E)  # type: ignore[no-untyped-call]
        y_NE = conformer_conv_gpu.convolution(module.conv, y_NE, own_N, num, casted["conv"])
        bias_E = module.conv.pointwise_conv2.bias
        x_NE, y_NE = _AddNorm.apply(x_NE, y_NE, 1.0, *_norm(module.norm_feed_forward2), dtype, bias_E)  # type: ignore[no-untyped-call]
        y_NE = _feed_forward(module.feed_forward2, y_NE, casted["feed_forward2"])
        bias_E = module.feed_forward2.linear2.bias
        _, y_NE = _AddNorm.apply(x_NE, y_NE, 0.5, *_norm(module.norm_out), out_dtype, bias_E)  # type: ignore[no-untyped-call]
    out_BFE: Tensor = y_NE.view(num, frames, width)
    return out_BFE


def _cast(module: ParakeetEncoderBlock, dtype: torch.dtype) -> dict[str, list[Any]]:
    """The weights of the parts of a block, cast."""
    weights = {
        "feed_forward1": _feed_forward_weights(module.feed_forward1),
        "self_attn": attention_gpu.weights(module.self_attn),
        "conv": conformer_conv_gpu.weights(module.conv),
        "feed_forward2": _feed_forward_weights(module.feed_forward2),
    }
    copies = iter(cast(dtype, [tensor for tensors in weights.values() for tensor in tensors]))
    return {name: [next(copies) for _ in tensors] for name, tensors in weights.items()}


def _feed_forward_weights(module: ParakeetEncoderFeedForward) -> list[Tensor | None]:
    return [module.linear1.weight, module.linear1.bias, module.linear2.weight, module.linear2.bias]


def _norm(norm: nn.LayerNorm) -> tuple[Tensor, Tensor, float]:
    return norm.weight, norm.bias, norm.eps


class _AddNorm(torch.autograd.Function):
    """x (N, E) in fp32 and what is added to it, scaled, to their sum and its layer norm; without any, to the norm.

    The last linear layer of what is added leaves the gradient of its bias to this: it is the sum of what is written.
    """

    ROWS = 4

    @staticmethod
    def forward(
        ctx: Kept,
        x_NE: Tensor,
        delta_NE: Tensor | None,
        scale: float,
        weight_E: Tensor,
        bias_E: Tensor,
        eps: float,
        dtype: torch.dtype,
        delta_bias_E: Tensor | None,
    ) -> Any:
        from voxstill.nn import conformer_triton as kernels

        rows, width = x_NE.shape
        has_delta = delta_NE is not None
        sum_NE = torch.empty_like(x_NE) if has_delta else x_NE
        normed_NE = torch.empty_like(x_NE, dtype=dtype)
        mean_N, rstd_N = x_NE.new_empty(rows), x_NE.new_empty(rows)
        constants = {"WIDTH": width, "LANES": power_of_2(width), "ROWS": _AddNorm.ROWS, "HAS_DELTA": has_delta}
        tensors = (x_NE, delta_NE, weight_E, bias_E, sum_NE, normed_NE, mean_N, rstd_N)
        blocks = (-(-rows // _AddNorm.ROWS),)
        launch(kernels.add_norm_kernel, blocks, *tensors, rows, scale, eps=eps, **constants)
        ctx.save_for_backward(sum_NE, mean_N, rstd_N, weight_E)
        ctx.scale, ctx.constants = scale, {**constants, "ROWS": 1}
        ctx.has_bias = delta_bias_E is not None
        ctx.delta_dtype = None if delta_NE is None else delta_NE.dtype
        ctx.set_materialize_grads(False)
        return (sum_NE, normed_NE) if has_delta else normed_NE

    @staticmethod
    def backward(ctx: Kept, *grads: Tensor | None) -> Gradients:
        from voxstill.nn import conformer_triton as kernels

        sum_NE, mean_N, rstd_N, weight_E = ctx.saved_tensors
        rows, width = sum_NE.shape
        grad_sum_NE, grad_normed_NE = grads if len(grads) == 2 else (None, *grads)
        if grad_normed_NE is None:
            grad_normed_NE = torch.zeros_like(sum_NE)
        programs, tiles = parts_of(rows, 1, 1024)
        part_P3E = sum_NE.new_empty(programs, 3, width)
        grad_x_NE = torch.empty_like(sum_NE)
        grad_delta_NE = torch.empty_like(sum_NE, dtype=ctx.delta_dtype) if ctx.delta_dtype else None
        launch(
            kernels.add_norm_backward_kernel,
            (programs,),
            None if grad_sum_NE is None else grad_sum_NE.contiguous(),
            grad_normed_NE.contiguous(),
            sum_NE,
            mean_N,
            rstd_N,
            weight_E,
            grad_x_NE,
            grad_delta_NE,
            part_P3E,
            rows,
            tiles,
            ctx.scale,
            HAS_GRAD_SUM=grad_sum_NE is not None,
            num_warps=2,
            **ctx.constants,
        )
        grad_weight_E, grad_bias_E, grad_delta_bias_E = sum_of_parts(part_P3E)
        own = (grad_weight_E, grad_bias_E, None, None)
        return grad_x_NE, grad_delta_NE, None, *own, grad_delta_bias_E if ctx.has_bias else None


def _feed_forward(module: ParakeetEncoderFeedForward, x_NE: Tensor, casted: Sequence[Any]) -> Tensor:
    out_NE: Tensor = _FeedForward.apply(x_NE, casted, *_feed_forward_weights(module))  # type: ignore[no-untyped-call]
    return out_NE


class _FeedForward(torch.autograd.Function):
    """Linear, SiLU, linear; `_AddNorm` has the gradient of the last bias."""

    @staticmethod
    def forward(ctx: Kept, x_NE: Tensor, casted: Sequence[Any], *_: Tensor | None) -> Tensor:
        weight_IE, bias_I, weight_EI, bias_E = casted
        inner_NI = product(x_NE, weight_IE, bias_I)
        active_NI = functional.silu(inner_NI)
        ctx.save_for_backward(x_NE, inner_NI, active_NI, weight_IE, weight_EI)
        ctx.has_bias = bias_I is not None
        return product(active_NI, weight_EI, bias_E)

    @staticmethod
    def backward(ctx: Kept, *grads: Tensor) -> Gradients:
        x_NE, inner_NI, active_NI, weight_IE, weight_EI = ctx.saved_tensors
        grad_NE = grads[0].contiguous()
        grad_NI, grad_bias_I = silu_backward(torch.mm(grad_NE, weight_EI), inner_NI)
        return (
            torch.mm(grad_NI, weight_IE),
            None,
            weight_gradient(grad_NI, x_NE),
            grad_bias_I if ctx.has_bias else None,
            weight_gradient(grad_NE, active_NI),
            None,
        )
