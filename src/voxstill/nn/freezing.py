"""Frozen layers: weights of a checkpoint that stay as they are, for good or until they are unfrozen one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from voxstill.nn.students import encoder_and_stack

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Frozen:
    """Frozen parts of a model: not trained, without dropout, and with BatchNorm in evaluation mode.

    With `unfreeze_share` they are unfrozen over that share of the training, in the order of `parts`; else they stay
    frozen. Those to be unfrozen take part in every backward pass, so that ranks that reduce gradients never wait for
    each other; the gradients are dropped until then.
    """

    def __init__(
        self, parts: Sequence[Sequence[nn.Module]] = (), unfreeze_share: float = 0.0, stack: nn.Module | None = None
    ) -> None:
        self._parts, self._unfreeze_share, self._stack = parts, unfreeze_share, stack
        if not unfreeze_share:
            for module in (module for part in parts for module in part):
                module.requires_grad_(False)

    def set_modes(self, progress: float) -> None:
        """Before a step at this share of the training: frozen parts go to evaluation mode, others to training mode."""
        for i, part in enumerate(self._parts):
            for module in part:
                module.train(i < self._num_unfrozen(progress))
        if self._stack is not None:  # its own dropout comes before its layers
            self._stack.training = self._num_unfrozen(progress) == len(self._parts)

    def drop_gradients(self, progress: float) -> None:
        """After the backward pass of a step: drop the gradients of frozen parts, so that weights do not decay."""
        for part in self._parts[self._num_unfrozen(progress) :]:
            for module in part:
                module.zero_grad(set_to_none=True)

    def _num_unfrozen(self, progress: float) -> int:
        if not self._unfreeze_share:
            return 0
        return min(int(progress / self._unfreeze_share * len(self._parts)), len(self._parts))


def freeze(model: PreTrainedModel, share: float, unfreeze_share: float) -> Frozen:
    """Freeze the lowest `share` of a student's encoder layers and all before them; 1 is the whole encoder."""
    base, stack = encoder_and_stack(model)
    layers = list(stack.layers)
    num = round(share * len(layers))
    if not num:
        return Frozen()
    norm = getattr(stack, "layer_norm", None)
    # the encoder's own norm comes after its layers, or, with post-norm layers, before them
    above = [norm] if norm is not None and getattr(model.config, "do_stable_layer_norm", True) else []
    excluded = {id(module) for module in (stack, stack.layers, *above)}
    children = [*base.children(), *(stack.children() if stack is not base else ())]
    parts: list[list[nn.Module]] = [[layer] for layer in reversed(layers[:num])]
    parts[0] += above if num == len(layers) else []
    parts[-1] += [child for child in children if id(child) not in excluded]
    return Frozen(parts, unfreeze_share, stack)
