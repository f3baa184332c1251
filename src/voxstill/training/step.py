"""One step of a training: its batches as the model takes them, and its loss and gradients over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from voxstill.core.records import Batch, fingerprint
from voxstill.data.transfer import to_device
from voxstill.training.guard import MemoryGuard
from voxstill.training.task import Loss, ModelInput, StepContext, Task, make_generator
from voxstill.training.waits import Stopwatch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """This rank's batches of a step, and what the model takes of each, or the error that the task raised."""

    batches: list[Batch]
    inputs: list[ModelInput] | Exception


def one_step(
    fabric: Fabric,
    model: nn.Module,
    task: Task,
    prepared: PreparedStep,
    context: StepContext,
    *,
    seed: int,
    step: int,
    memory: MemoryGuard,
    own: Stopwatch,
) -> list[Loss]:
    """Gradients of one step, of all ranks together, not yet clipped; returns the losses of this rank's batches.

    Only the task's own loss may wait for a GPU. `own` runs but for the backward pass and where the ranks exchange
    something before a forward pass.
    """
    drawn = int(fingerprint(seed, "dropout", step, fabric.global_rank), 16)
    torch.default_generator.manual_seed(drawn % 2**63)  # torch.manual_seed writes down a traceback for other devices
    if fabric.device.type == "cuda":
        torch.cuda.manual_seed(drawn % 2**63)
    np.random.seed(drawn % 2**32)  # transformers draws the masks of wav2vec 2.0 from it
    losses = []
    for micro, batch in enumerate(prepared.batches):
        memory.before_batch(batch)
        if isinstance(prepared.inputs, Exception):
            raise prepared.inputs
        last = micro == len(prepared.batches) - 1
        with fabric.no_backward_sync(model, enabled=not last):
            own.stop()  # which the model starts, once it has what the ranks exchange before
            loss = task.loss(model, prepared.inputs[micro], context)
            own.stop()
            fabric.backward(loss.value * fabric.world_size)  # DDP takes the mean over ranks; the plan wants the sum
        # one that a plug-in has not detached would hold its graph
        figures = {name: torch.as_tensor(value).detach() for name, value in loss.figures.items()}
        losses.append(Loss(loss.value.detach(), figures))
    return losses


def sum_losses(losses: Sequence[Loss]) -> tuple[float, dict[str, float]]:
    """The sum of the losses of some batches, and of each of their figures; waits until a GPU has computed them."""
    figures = dict[str, float]()
    for loss in losses:
        for name, value in loss.figures.items():
            figures[name] = figures.get(name, 0.0) + float(value)
    return sum(float(loss.value) for loss in losses), figures


def all_sums(fabric: Fabric, numbers: dict[str, float]) -> dict[str, float]:
    """Each number summed over the ranks, which give the same names: the one collective of a step beside the gradients.

    What one rank alone knows is 0 on the others.
    """
    whole = fabric.all_reduce(torch.tensor(list(numbers.values()), dtype=torch.float64), reduce_op="sum")
    return dict(zip(numbers, whole.tolist(), strict=True))


def prepare_step(
    fabric: Fabric, task: Task, batches: list[Batch], progress: float, seed: int, step: int
) -> PreparedStep:
    """Let the task prepare the batches of a step on the device; equal arguments give equal tensors."""
    inputs = []
    try:
        for micro, batch in enumerate(batches):
            generator = make_generator(fabric.device, seed, step, micro, fabric.global_rank)
            inputs.append(task.prepare(to_device(batch, fabric.device), progress, generator))
    except Exception as error:  # it may happen in a thread: who takes the step raises it, and says what did not fit
        return PreparedStep(batches, error)
    return PreparedStep(batches, inputs)
