"""What a training holds in memory on each device, by part, and the largest batches that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from voxstill.core.config import Train
from voxstill.data.batching import Ints
from voxstill.training.muon import split
from voxstill.training.parallel import layers
from voxstill.training.step_memory import Shapes, StepMemory
from voxstill.training.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FP32 = 4
_GRID = 512
"""Lengths at which batches of a budget are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes that one device holds from the first step to the last."""

    weights: int
    """With buffers."""
    gradients: int
    """Those of a step, and where several devices exchange them the copy that DDP sends."""
    optimizer: int
    average: int
    teacher: int
    """The weights of the model that is distilled."""
    gathered: int
    """What FSDP puts together of sharded weights and gradients while a layer works."""

    @property
    def kept(self) -> int:
        """All but the gradients, which a step counts."""
        return self.weights + self.optimizer + self.average + self.teacher + self.gathered


def states_of(model: PreTrainedModel, task: Task, cfg: Train, ranks: int = 1) -> States:
    """What one of so many ranks holds, beside its batches."""
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    num_weights = sum(weight.numel() for weight in model.parameters())
    is_sharded = ranks > 1 and num_weights > cfg.shard_above * 1e6
    share = ranks if is_sharded else 1
    num_learnt = sum(weight.numel() for weight in learnt)
    num_matrices = 0
    if cfg.optimizer == "muon":
        num_matrices = sum(weight.numel() for weight in split(model)[0] if weight.requires_grad)
    num_averaged = sum(value.numel() for value in model.state_dict().values() if value.is_floating_point())
    gathered = 0
    if is_sharded:  # what lies outside the layers stays together; of the layers one works, and the next is fetched
        in_layers = [sum(weight.numel() for weight in layer.parameters()) for layer in layers(model)]
        gathered = 2 * _FP32 * (num_weights - sum(in_layers) + 2 * max(in_layers, default=0))
    teacher = getattr(getattr(task, "teacher", None), "model", None)
    return States(
        weights=_FP32 * num_weights // share + sum(buffer.nbytes for buffer in model.buffers()),
        gradients=_FP32 * num_learnt // share * (2 if ranks > 1 and not is_sharded else 1),
        optimizer=_FP32 * (2 * num_learnt - num_matrices) // share,
        average=_FP32 * num_averaged // share if cfg.average == "last" else 0,
        teacher=sum(weight.nbytes for weight in teacher.parameters()) if isinstance(teacher, nn.Module) else 0,
        gathered=gathered,
    )


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a training takes: its states, and its steps by the shapes of their batches.

    A rank makes `batches_per_rank` batches in a step, one after another.
    """

    states: States
    step: StepMemory
    batches_per_rank: int = 1

    def least(self, shapes: Shapes) -> Ints:
        """Bytes without which a step with a batch of these shapes cannot be made (N,)."""
        before = self.states.gradients - self.step.gradients if self.batches_per_rank == 1 else self.states.gradients
        least_N: Ints = self.states.kept + max(before, 0) + self.step.peak(shapes)
        return least_N

    def total(self, shapes: Shapes) -> Ints:
        """The same with the batches of the next step, which are prepared meanwhile (N,)."""
        total_N: Ints = self.least(shapes) + (2 * self.batches_per_rank - 1) * self.step.prepared(shapes)
        return total_N

    def parts(self, shapes: Shapes) -> Mapping[str, int]:
        """The bytes of each part with one batch; together at least the total."""
        held, states = int(self.step.held(shapes)[0]), self.states
        shown = states.kept - states.gathered + states.gradients + held
        return {
            "weights": states.weights,
            "gradients": states.gradients,
            "optimizer": states.optimizer,
            "average": states.average,
            "activations": held,
            **({"teacher": states.teacher} if states.teacher else {}),
            "workspace": max(int(self.total(shapes)[0]) - shown, 0),
        }

    def worst(self, shapes: Shapes) -> int:
        """Which of many batches takes most."""
        return int(self.total(shapes).argmax())


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the utterances that batches are made of, tempo included, and the limits that are not a budget."""

    durations_ms: Ints
    max_utterances: int
    longest_ms: int | None = None
    """What the model pads every utterance to; None if it takes any length."""

    def batches_of(self, budget_ms: int) -> Shapes:
        """The fullest batches that a budget allows, whatever the order of the utterances; none where all are longer."""
        lengths_ms = np.unique(np.minimum(self.durations_ms, budget_ms))
        if len(lengths_ms) > _GRID:
            lengths_ms = np.unique(np.quantile(lengths_ms, np.linspace(0, 1, _GRID), method="higher"))
        padded_ms = lengths_ms if self.longest_ms is None else np.maximum(lengths_ms, self.longest_ms)
        num_N = np.minimum(np.maximum(budget_ms // padded_ms, 1), min(self.max_utterances, len(self.durations_ms)))
        return Shapes(num_N.astype(np.int64), lengths_ms.astype(np.int64))


def largest_budget(footprint: Footprint, lengths: Lengths, limit_bytes: int) -> int | None:
    """The largest `plan.budget_ms` all of whose batches fit, in whole seconds; None if not even one second does.

    A larger one than all utterances fill, with `plan.max_utterances` in a batch, is not named.
    """

    def fits(budget_ms: int) -> bool:
        return int(footprint.total(lengths.batches_of(budget_ms)).max()) <= limit_bytes

    longest_ms = max(int(lengths.durations_ms.max()), lengths.longest_ms or 0)
    num = min(lengths.max_utterances, len(lengths.durations_ms))
    low, high = 0, -(-longest_ms * num // 1000)
    if fits(1000 * high):
        return 1000 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(1000 * middle) else (low, middle)
    return 1000 * low if low else None
