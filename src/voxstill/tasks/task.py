"""What a batch means to a student. The loop knows a task only by this protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from voxstill.records import Batch


@dataclass(frozen=True, slots=True)
class Share:
    """Where a step stands: its share of the training, and what its sums are divided by on all ranks together."""

    progress: float
    num_tokens: int
    num_frames: int
    step: int = 0
    """Steps made before it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """`value` is this batch's part of the step's loss: parts of all batches of all ranks add up to it."""

    value: Tensor
    figures: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heard:
    """A batch as the model takes it, disturbed and as features or samples; `len_B` says how much is each utterance's.

    `frame_ms_B` is the length of an output frame in milliseconds of the audio as it was.
    """

    batch: Batch
    inputs: Tensor
    len_B: Tensor
    frame_ms_B: Tensor


class Task(Protocol):
    """One way to learn."""

    def heard(self, batch: Batch, progress: float, generator: Generator) -> Heard:
        """What the model is given of a batch; all chance comes from `generator`. No weight has a part in it, so it may
        happen in another thread, while the step before is learnt from."""
        ...

    def loss(self, model: nn.Module, heard: Heard, share: Share) -> Loss:
        """The batch's part of the loss."""
        ...

    def watch(self, step: int, figures: Mapping[str, float]) -> None:
        """Look at the figures that its loss had in a step, of all ranks, and say in the log where it goes wrong."""
        ...

    def move(self, device: torch.device) -> None:
        """Move what belongs to the task but not to the model."""
        ...
