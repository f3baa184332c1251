"""Linear layers by hand for the fused Conformer: products in the precision of autocast, weight gradients in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from voxstill.nn.triton_launch import launch

_ROWS, _COLUMNS = 32, 64
_PARTS, _PART_COLUMNS = 64, 16
_WHOLE_ROWS = 4
Gradients = tuple[Tensor | None, ...]


class Kept(FunctionCtx):
    """What a forward pass keeps for its backward pass."""

    saved_tensors: tuple[Any, ...]
    num: int
    scale: float
    shape: tuple[int, ...]
    constants: dict[str, int]
    delta_dtype: torch.dtype | None
    has_bias: bool


def compute_dtype(like: Tensor) -> torch.dtype:
    """The precision of matrix products: that of autocast where it is on."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else like.dtype


def parts_of(rows: int, block: int, programs: int) -> tuple[int, int]:
    """Programs that add up `rows`, and how many blocks of rows each takes."""
    tiles = max(1, -(-rows // (block * programs)))
    return -(-rows // (block * tiles)), tiles


def whole_rows(rows: int, width: int) -> tuple[tuple[int], dict[str, int]]:
    """Programs and constants of a kernel whose programs take some whole rows each."""
    return (-(-rows // _WHOLE_ROWS),), {"WIDTH": width, "LANES": power_of_2(width), "ROWS": _WHOLE_ROWS}


def power_of_2(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()


def product(x_NC: Tensor, weight_DC: Tensor, bias_D: Tensor | None) -> Tensor:
    """A linear layer: (N, C) to (N, D)."""
    return torch.mm(x_NC, weight_DC.t()) if bias_D is None else torch.addmm(bias_D, x_NC, weight_DC.t())


def weight_gradient(grad_ND: Tensor, x_NC: Tensor) -> Tensor:
    """Gradient (D, C) of the weight of a linear layer, in fp32."""
    if grad_ND.dtype == torch.float32:
        return torch.mm(grad_ND.t(), x_NC)
    return torch.mm(grad_ND.t(), x_NC, out_dtype=torch.float32)


def bias_gradient(grad_ND: Tensor, bias_D: Tensor | None) -> Tensor | None:
    """Gradient (D,) of a bias, in fp32; None where there is none."""
    return None if bias_D is None else column_sum(grad_ND)


def column_sum(x_NC: Tensor) -> Tensor:
    """The sum of all rows (C,), in fp32; they may be part of wider ones."""
    from voxstill.nn import conformer_triton as kernels

    rows, width = x_NC.shape
    (programs, tiles), columns = parts_of(rows, _ROWS, 128), -(-width // _COLUMNS)
    part_PC = torch.empty(programs, width, device=x_NC.device)
    constants = {"WIDTH": width, "BLOCK_N": _ROWS, "BLOCK_C": _COLUMNS}
    launch(kernels.column_sum_kernel, (programs, columns), x_NC, part_PC, rows, tiles, x_NC.stride(0), **constants)
    return sum_of_parts(part_PC)


def sum_of_parts(part_PX: Tensor) -> Tensor:
    """The sum over the first axis of what programs have added up, in fp32."""
    from voxstill.nn import conformer_triton as kernels

    sum_X = part_PX.new_empty(part_PX.shape[1:])
    width = sum_X.numel()
    constants = {"WIDTH": width, "BLOCK_P": _PARTS, "BLOCK_C": _PART_COLUMNS}
    launch(kernels.sum_parts_kernel, (-(-width // _PART_COLUMNS),), part_PX, sum_X, len(part_PX), **constants)
    return sum_X


def silu_backward(grad_NC: Tensor, x_NC: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient (N, C) of what SiLU was computed from, and the sum of its rows (C,), in fp32."""
    from voxstill.nn import conformer_triton as kernels

    rows, width = x_NC.shape
    programs, tiles = parts_of(rows, _ROWS // 2, 64)
    part_PC, grad_x_NC = torch.empty(programs, width, device=x_NC.device), torch.empty_like(x_NC)
    constants = {"WIDTH": width, "BLOCK_N": _ROWS // 2, "BLOCK_C": 2 * _COLUMNS}
    blocks = (programs, -(-width // (2 * _COLUMNS)))
    launch(kernels.silu_backward_kernel, blocks, grad_NC, x_NC, grad_x_NC, part_PC, rows, tiles, **constants)
    return grad_x_NC, sum_of_parts(part_PC)


def cast(dtype: torch.dtype, tensors: Sequence[Tensor | None]) -> list[Any]:
    """Weights as matrix products take them, by one kernel; they follow one another in memory."""
    known = [tensor for tensor in tensors if tensor is not None]
    with torch.no_grad():
        flat = torch.empty(sum(tensor.numel() for tensor in known), dtype=dtype, device=known[0].device)
        parts = torch.split(flat, [tensor.numel() for tensor in known])
        copies = [part.view(tensor.shape) for part, tensor in zip(parts, known, strict=True)]
        torch._foreach_copy_(copies, known)
    following = iter(copies)
    return [None if tensor is None else next(following) for tensor in tensors]


def joined(first: Tensor, count: int) -> Tensor:
    """The first of `count` equal tensors that follow one another in memory, as one."""
    return first.as_strided((count * first.shape[0], *first.shape[1:]), first.stride())
