"""Run a step for its shapes alone: what it would allocate and how many operations it would make, at next to no cost."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

Phase = Literal["forward", "backward"]
Moment = tuple[Phase, str]
"""The stretch of a step that begins when a module of the model has ended, by the name of that module."""


class LiveBytes(TorchDispatchMode):
    """A `with` block that counts the bytes of the tensors made in it, as long as they live, and floating-point
    operations.

    Within `shapes_only()` large floating-point tensors are allocated and never written, so that they take no memory of
    the machine and no time. Integers, masks and small tensors are computed, so what depends on them is as in a step.
    `known` are tensors that were there before.
    """

    def __init__(self, known: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.flops = self.operations = 0
        self.peaks: dict[Moment, int] = {}
        """The most bytes alive in each moment."""
        self._phase: Phase = "forward"
        self._moment: Moment = ("forward", "")
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._computes = True

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        self.operations += not func.is_view
        count = flop_registry.get(func._overloadpacket)  # of products of matrices and convolutions alone
        if self._computes:
            out = func(*args, **kwargs)
        elif func is torch.ops.aten.rand.default and not args[0]:
            out = torch.ones(())  # of LayerDrop: no layer is skipped
        else:
            out = func(*args, **kwargs) if count is None else _allocated(func, args, kwargs)
        if count is not None:
            self.flops += int(count(*args, **kwargs, out_val=out))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        self.peaks[self._moment] = max(self.peaks.get(self._moment, 0), self.live)
        return out

    @contextlib.contextmanager
    def shapes_only(self) -> Iterator[None]:
        """From now on nothing large is computed."""
        self._computes = False
        try:
            yield
        finally:
            self._computes = True

    @contextlib.contextmanager
    def moments_of(self, model: nn.Module) -> Iterator[None]:
        """Tell the peaks apart by the modules of a model, forward and backward."""
        handles = [
            module.register_forward_hook(functools.partial(self._after, name))
            for name, module in model.named_modules()
            if next(module.children(), None) is None
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def backward(self, loss: Tensor) -> None:
        """Make the backward pass of a loss."""
        self._phase, self._moment = "backward", ("backward", "")
        loss.backward()  # type: ignore[no-untyped-call]

    def _after(self, name: str, module: nn.Module, args: object, out: object) -> None:
        self._enter((self._phase, name))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(functools.partial(self._before_backward, name))  # type: ignore[no-untyped-call]

    def _before_backward(self, name: str, gradient: Tensor) -> None:
        self._enter(("backward", f"{name}, backward"))

    def _enter(self, moment: Moment) -> None:
        self._moment = moment
        self.peaks[moment] = max(self.peaks.get(moment, 0), self.live)

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._alive and key not in self._known:
            num_bytes = storage.nbytes()
            self.live += num_bytes
            self._alive[key] = weakref.ref(storage, functools.partial(self._forget, key, num_bytes))

    def _forget(self, key: int, num_bytes: int, _: object) -> None:
        self.live -= num_bytes
        del self._alive[key]


def _allocated(func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """The result of an operation, allocated and not computed; computed where there is no kernel for shapes alone."""
    try:
        shaped = func(*map(_without_storage, args), **kwargs)
    except (NotImplementedError, RuntimeError):
        return func(*args, **kwargs)
    return tuple(map(_with_storage, shaped)) if isinstance(shaped, tuple) else _with_storage(shaped)


def _without_storage(leaf: object) -> object:
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device="meta")


def _with_storage(leaf: object) -> object:
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype) if isinstance(leaf, Tensor) else leaf
