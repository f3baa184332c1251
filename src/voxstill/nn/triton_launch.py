"""Launches of Triton kernels without what Triton looks at anew each time: a step of a student has hundreds of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import triton

_compiled: dict[tuple[object, ...], Any] = {}


def launch(
    kernel: triton.JITFunction, grid: tuple[int, ...], *args: Tensor | float | None, **constants: float | bool
) -> None:
    """Launch a kernel, compiled once for types, alignment and constants.

    Its parameters are those of `args`, of which numbers are not specialized, and then the constants, in any order.
    """
    key = (kernel, torch.cuda.current_device() if torch.cuda.is_available() else None, *map(_kind, args))
    key += tuple(constants.items())
    compiled = _compiled.get(key)
    if compiled is not None:
        compiled[(*grid, 1, 1)[:3]](*args, *(constants[name] for name in kernel.arg_names[len(args) :]))
        return
    compiled = kernel[grid](*args, **constants)
    if compiled is not None:  # the interpreter compiles nothing
        _compiled[key] = compiled


def _kind(arg: Tensor | float | None) -> object:
    """What code for an argument depends on."""
    if isinstance(arg, Tensor):
        return arg.dtype, arg.data_ptr() % 16 == 0
    if isinstance(arg, int):
        return arg >> 31 == 0
    return type(arg)
