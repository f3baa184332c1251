"""Layers that stay as a checkpoint has them, for good or until they are unfrozen: little data could spoil them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from voxstill.nn.students import SAMPLES_TYPES


class Frozen:
    """Parts of a model that learn nothing, have no dropout, and whose BatchNorm counts nothing.

    With `unfreeze` they are unfrozen over that share of the training, in their order; else they stay so. Those that
    will be unfrozen take part in every backward pass, so that ranks whose gradients are put together never wait for
    each other; their gradients are dropped until then.
    """

    def __init__(self, parts: Sequence[Sequence[nn.Module]] = (), unfreeze: float = 0.0, around: Any = None) -> None:
        self._parts, self._unfreeze, self._around = parts, unfreeze, around
        if not unfreeze:
            for module in (module for part in parts for module in part):
                module.requires_grad_(False)

    def hold(self, progress: float) -> None:
        """Before a step at this share of the training: what is frozen works as where it is judged."""
        for i, part in enumerate(self._parts):
            for module in part:
                module.train(i < self._num_unfrozen(progress))
        if self._around is not None:  # what it does itself happens beneath its layers
            self._around.training = self._num_unfrozen(progress) == len(self._parts)

    def drop(self, progress: float) -> None:
        """After the backward pass of a step: what is frozen has no gradients, so that not even weights decay."""
        for part in self._parts[self._num_unfrozen(progress) :]:
            for module in part:
                module.zero_grad(set_to_none=True)

    def _num_unfrozen(self, progress: float) -> int:
        if not self._unfreeze:
            return 0
        return min(int(progress / self._unfreeze * len(self._parts)), len(self._parts))


def freeze(model: Any, share: float, unfreeze: float) -> Frozen:
    """The lowest `share` of the layers of a student's encoder with what lies beneath them; of 1, all of the encoder."""
    base, stack = _encoder(model)
    layers = list(stack.layers)
    num = round(share * len(layers))
    if not num:
        return Frozen()
    norm = getattr(stack, "layer_norm", None)
    # the norm of all layers stands above them, or, in the first wav2vec 2.0, beneath
    above = [norm] if norm is not None and getattr(model.config, "do_stable_layer_norm", True) else []
    apart = {id(each) for each in (stack, stack.layers, *above)}
    own = [*base.children(), *(stack.children() if stack is not base else ())]
    parts: list[list[nn.Module]] = [[layer] for layer in reversed(layers[:num])]
    parts[0] += above if num == len(layers) else []
    parts[-1] += [each for each in own if id(each) not in apart]
    return Frozen(parts, unfreeze, stack)


def _encoder(model: Any) -> tuple[Any, Any]:
    """All that hears, and the part of it that has the layers."""
    if model.config.model_type in SAMPLES_TYPES:
        return model.base_model, model.base_model.encoder
    encoder = model.get_encoder() if model.config.model_type == "whisper" else model.encoder
    return encoder, encoder
