"""Attention of the Conformer with relative positions by hand, forward and backward, for training on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from voxstill.nn.linear_gpu import Gradients, Kept, joined, parts_of, product, sum_of_parts, weight_gradient, whole_rows
from voxstill.nn.triton_launch import launch

if TYPE_CHECKING:
    from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderAttention

_LANES = 64
_ROWS, _PROGRAMS = 16, 128


def weights(module: ParakeetEncoderAttention) -> list[Tensor | None]:
    """Biases of content and position, the weight of positions; weights, then biases, of queries, keys and values; and
    those of the output."""
    projections = (module.q_proj, module.k_proj, module.v_proj)
    return [
        module.bias_u,
        module.bias_v,
        module.relative_k_proj.weight,
        *(layer.weight for layer in projections),
        *(layer.bias for layer in projections),
        module.o_proj.weight,
        module.o_proj.bias,
    ]


def attention(
    module: ParakeetEncoderAttention,
    x_NE: Tensor,
    positions_PE: Tensor,
    own_N: Tensor,
    num: int,
    casted: Sequence[Any],
) -> Tensor:
    """A `ParakeetEncoderAttention` in training: (N, E) to (N, E); `own_N` is 0 for padding.

    With relative positions, as in Dai et al. 2019, "Transformer-XL", section 3.3.
    """
    positions_PE = functional.pad(positions_PE, (0, 0, 0, -len(positions_PE) % 8))  # products of odd sizes are slow
    *of_scores, weight, bias = weights(module)
    query, key, value, score = _Scores.apply(x_NE, positions_PE, own_N, num, module.scaling, casted[:-2], *of_scores)  # type: ignore[no-untyped-call]
    out_BHFK = functional.scaled_dot_product_attention(query, key, value, attn_mask=score, scale=module.scaling)
    out_NE: Tensor = _Linear.apply(out_BHFK.transpose(1, 2).reshape(len(x_NE), -1), casted[-2:], weight, bias)  # type: ignore[no-untyped-call]
    return out_NE


class _Linear(torch.autograd.Function):
    """A linear layer whose weights are cast; `conformer_gpu` has the gradient of its bias."""

    @staticmethod
    def forward(ctx: Kept, x_NC: Tensor, casted: Sequence[Any], *_: Tensor | None) -> Tensor:
        weight_DC, bias_D = casted
        ctx.save_for_backward(x_NC, weight_DC)
        return product(x_NC, weight_DC, bias_D)

    @staticmethod
    def backward(ctx: Kept, *grads: Tensor) -> Gradients:
        x_NC, weight_DC = ctx.saved_tensors
        grad_ND = grads[0].contiguous()
        return torch.mm(grad_ND, weight_DC), None, weight_gradient(grad_ND, x_NC), None


class _Scores(torch.autograd.Function):
    """Queries with their content bias, keys, values (B, H, F, K), and scores of positions (B, H, F, F), masked."""

    @staticmethod
    def forward(
        ctx: Kept,
        x_NE: Tensor,
        positions_PE: Tensor,
        own_N: Tensor,
        num: int,
        scaling: float,
        casted: Sequence[Any],
        *_: Tensor | None,
    ) -> tuple[Tensor, ...]:
        from voxstill.nn import attention_triton as kernels

        rows, width = x_NE.shape
        content_HK, position_HK, relative_EE, *weights = casted
        heads, frames, num_positions = len(content_HK), rows // num, len(positions_PE)
        weight: Tensor = joined(weights[0], 3)
        bias: Any = None if weights[3] is None else joined(weights[3], 3)
        all_N3E = product(x_NE, weight, bias)
        query_NE, positional_NE = torch.empty_like(x_NE), torch.empty_like(x_NE)
        of_queries = (all_N3E, content_HK, position_HK, query_NE, positional_NE, rows)
        programs, of_rows = whole_rows(rows, width)
        launch(kernels.queries_kernel, programs, *of_queries, **of_rows)
        positional_NHK = positional_NE.view(rows, heads, -1)
        relative_PHK = torch.mm(positions_PE, relative_EE.t()).view(num_positions, heads, -1)
        score_HNP = torch.bmm(positional_NHK.transpose(0, 1), relative_PHK.permute(1, 2, 0))
        stride = -(-frames // 8) * 8  # as attention kernels want it
        shifted_BHFS = x_NE.new_empty(num, heads, frames, stride)
        shape = (rows, frames, num_positions, stride)
        least = torch.finfo(x_NE.dtype).min
        constants = {"scale": scaling, "least": least, "HEADS": heads, "BLOCK_F": 16, "BLOCK_G": _LANES}
        blocks = (num * heads, -(-frames // 16))  # the first may be large
        launch(kernels.shift_kernel, blocks, score_HNP, own_N, shifted_BHFS, *shape, **constants)
        ctx.save_for_backward(x_NE, positions_PE, own_N, positional_NHK, relative_PHK, weight)
        ctx.num, ctx.scale, ctx.has_bias = num, scaling, bias is not None
        of_attention = (query_NE, all_N3E[:, width : 2 * width], all_N3E[:, 2 * width :])
        split = (part.view(num, frames, heads, -1).transpose(1, 2) for part in of_attention)
        return *split, shifted_BHFS[..., :frames]

    @staticmethod
    def backward(ctx: Kept, *grads: Tensor) -> Gradients:
        from voxstill.nn import attention_triton as kernels

        x_NE, positions_PE, own_N, positional_NHK, relative_PHK, weight = ctx.saved_tensors
        (rows, width), (num_positions, heads, _) = x_NE.shape, relative_PHK.shape
        frames, grad_shifted = rows // ctx.num, grads[3]
        stride = grad_shifted.stride(2)
        if grad_shifted.stride() != (heads * frames * stride, frames * stride, stride, 1):
            grad_shifted, stride = grad_shifted.contiguous(), frames
        grad_score_HNP = x_NE.new_empty(heads, rows, num_positions)
        shape = (rows, frames, num_positions, stride)
        constants = {"scale": ctx.scale, "HEADS": heads, "BLOCK_F": 16, "BLOCK_P": _LANES}
        blocks = (ctx.num * heads, -(-frames // 16))
        launch(kernels.shift_backward_kernel, blocks, grad_shifted, own_N, grad_score_HNP, *shape, **constants)
        grad_positional_HNK = torch.bmm(grad_score_HNP, relative_PHK.transpose(0, 1))
        grad_relative_HPK = torch.bmm(grad_score_HNP.transpose(1, 2), positional_NHK.transpose(0, 1))
        grad_relative_PE = grad_relative_HPK.transpose(0, 1).reshape(num_positions, width)
        grad_all_N3E = x_NE.new_empty(rows, 3 * width)
        programs, tiles = parts_of(rows, _ROWS, _PROGRAMS)
        part_P4E = torch.empty(programs, 4, width, device=x_NE.device)
        launch(
            kernels.join_gradients_kernel,
            (programs, -(-width // _LANES)),
            *(grad.transpose(1, 2).reshape(rows, width) for grad in grads[:3]),
            grad_positional_HNK,
            grad_all_N3E,
            part_P4E,
            rows,
            tiles,
            WIDTH=width,
            HEAD=width // heads,
            BLOCK_N=_ROWS,
            BLOCK_C=_LANES,
        )
        content_E, key_E, value_E, position_E = sum_of_parts(part_P4E)
        grad_weight = weight_gradient(grad_all_N3E, x_NE)
        biases = (content_E + position_E, key_E, value_E) if ctx.has_bias else (None,) * 3
        return (
            torch.mm(grad_all_N3E, weight),
            *(None,) * 5,
            content_E.view(heads, -1),
            position_E.view(heads, -1),
            weight_gradient(grad_relative_PE, positions_PE),
            *grad_weight.chunk(3),
            *biases,
        )
