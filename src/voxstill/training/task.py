"""What the training loop asks of a task, and what the two hand to each other. The loop knows a task by this alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor, nn

from voxstill.core.errors import TrainingError
from voxstill.core.records import Batch, fingerprint
from voxstill.data.plan import EpochPlan

Unit = Literal["tokens", "masked frames", "utterances", "frames"]
"""What a loss is counted by. A plan of audio without texts counts masked frames where others count tokens."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """Where a step stands: its share of the training, and what its sums are divided by on all ranks together."""

    progress: float
    num_tokens: int
    num_frames: int
    step: int = 0
    """Steps made before it."""
    num_utterances: int = 0

    @classmethod
    def of_step(cls, plan: EpochPlan, k: int, progress: float, step: int = 0) -> StepContext:
        """Count step `k` of a plan."""
        num_utterances = int(plan.bounds[(k + 1) * plan.batches_per_step] - plan.bounds[k * plan.batches_per_step])
        return cls(
            progress=progress,
            num_tokens=int(plan.step_tokens[k]),
            num_frames=int(plan.step_frames[k]),
            step=step,
            num_utterances=num_utterances,
        )

    @classmethod
    def of_plan(cls, plan: EpochPlan) -> StepContext:
        """Count a whole plan as if it were the last step of a training: that of a dev split."""
        return cls(
            progress=1.0,
            num_tokens=int(plan.step_tokens.sum()),
            num_frames=int(plan.step_frames.sum()),
            num_utterances=int(plan.bounds[-1]),
        )

    def count(self, unit: Unit) -> int:
        """Return what a loss in this unit is divided by, at least 1; TrainingError for another unit than these."""
        counts: dict[Unit, int] = {
            "tokens": self.num_tokens,
            "masked frames": self.num_tokens,
            "utterances": self.num_utterances,
            "frames": self.num_frames,
        }
        if unit not in counts:
            raise TrainingError(
                f"a loss cannot be normalised by `{unit}`",
                code="plugin-broken",
                why=f"a plan counts {', '.join(counts)}",
                fix="set one of them as the `unit` of the task",
            )
        return max(counts[unit], 1)


@dataclass(frozen=True, slots=True)
class Loss:
    """`value` is this batch's part of the step's loss: parts of all batches of all ranks add up to it."""

    value: Tensor
    figures: dict[str, Tensor] = field(default_factory=dict)

    def plus(self, other: Loss) -> Loss:
        """Add another loss of the same batch, with its figures."""
        return Loss(self.value + other.value, {**self.figures, **other.figures})


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A batch as the model takes it: augmented features or samples, and the length of each utterance in them (B,).

    `frame_ms_B` is the length of an output frame in milliseconds of the audio as it was.
    """

    batch: Batch
    inputs: Tensor
    len_B: Tensor
    frame_ms_B: Tensor


@dataclass(frozen=True, slots=True)
class DevBatch:
    """A batch of the dev split with its references: one text for each utterance, empty if there is none.

    `context` counts the whole dev split, so that losses of its batches add up to that of all.
    """

    batch: Batch
    references: tuple[str, ...]
    context: StepContext


class Task(Protocol):
    """One way to learn."""

    @property
    def unit(self) -> Unit:
        """What its loss is counted by, and reported in."""
        ...

    def prepare(self, batch: Batch, progress: float, generator: Generator) -> ModelInput:
        """Augment a batch and compute its features; all chance comes from `generator`.

        It uses no weights, so it may run in another thread, while the step before is learnt from. Its tensors are
        fields of dataclasses, or in lists, tuples or mappings: the memory of others may be used again too early on a
        GPU.
        """
        ...

    def loss(self, model: nn.Module, model_input: ModelInput, context: StepContext) -> Loss:
        """Compute the batch's part of the step's loss: a sum divided by a count of `context`."""
        ...

    def validate(self, model: nn.Module, batches: Iterable[DevBatch]) -> dict[str, float] | None:
        """Judge the model, in evaluation mode, by the dev split; return figures, the first of which is to become small.

        None, and not an empty dictionary, where there is nothing to judge by.
        """
        ...

    def watch(self, step: int, figures: Mapping[str, float]) -> None:
        """Look at the figures that its loss had in a step, of all ranks, and warn in the log where it goes wrong."""
        ...

    def move(self, device: torch.device) -> None:
        """Move what belongs to the task but not to the model."""
        ...


def minimised(task: Task, figures: Mapping[str, float]) -> float:
    """Return the figure of the dev split that is to become small, the first; TrainingError if there is none."""
    if not figures:
        raise TrainingError(
            "the validation on the dev split returned no figures",
            code="plugin-broken",
            why=f"`{type(task).__name__}.validate` returned an empty dictionary",
            fix="return the figure to minimise first, or None if there is nothing to evaluate",
        )
    return next(iter(figures.values()))


def make_generator(device: torch.device, seed: int, step: int, micro: int, rank: int) -> Generator:
    """Make the generator that the augmentation of one batch is drawn from."""
    generator = Generator(device)
    return generator.manual_seed(int(fingerprint(seed, "augment", step, micro, rank), 16) % 2**63)
