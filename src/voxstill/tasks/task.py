"""What a batch means to a student. The loop knows a task only by this protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from voxstill.records import Batch, Hypothesis


@dataclass(frozen=True, slots=True)
class Share:
    """Where a step stands: its share of the training, and what its sums are divided by on all ranks together."""

    progress: float
    num_tokens: int
    num_frames: int


@dataclass(frozen=True, slots=True)
class Loss:
    """`value` is this batch's part of the step's loss: parts of all batches of all ranks add up to it."""

    value: Tensor
    figures: dict[str, Tensor] = field(default_factory=dict)


class Task(Protocol):
    """One way to learn."""

    def loss(self, model: nn.Module, batch: Batch, share: Share, generator: Generator) -> Loss:
        """The batch's part of the loss; all chance comes from `generator`."""
        ...

    def decode(self, model: nn.Module, batch: Batch) -> list[Hypothesis]:
        """What the model says of each utterance of the batch, in order."""
        ...

    def move(self, device: torch.device) -> None:
        """Move what belongs to the task but not to the model."""
        ...
