"""What cannot fit into memory is refused before the first step: with how much it would take, and what would fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from voxstill.core import memory
from voxstill.core.config import Config
from voxstill.core.errors import TrainingError
from voxstill.core.monitor import log
from voxstill.data.plan import EpochPlan
from voxstill.training import parallel, step_memory
from voxstill.training.cards import GIB
from voxstill.training.footprint import Footprint, Lengths, States, largest_budget, states_of
from voxstill.training.setup import TrainingSetup
from voxstill.training.step_memory import Shapes
from voxstill.training.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROCESS_BYTES = 600 << 20
"""Memory of a process before it has a tensor: its libraries, or on a GPU the CUDA context."""
GPU_OVERHEAD, CPU_OVERHEAD = 1.12, 1.35
"""What the allocator takes for a byte of tensors, at most. On CPUs 1.12 to 1.29 were measured; for GPUs it is assumed.
"""


def safe_bytes(total_bytes: int, *, on_gpu: bool) -> int:
    """What tensors may take of a memory, so that the process fits into it."""
    return max(int((total_bytes - PROCESS_BYTES) / (GPU_OVERHEAD if on_gpu else CPU_OVERHEAD)), 0)


def process_bytes(tensor_bytes: int, *, on_gpu: bool) -> tuple[int, int]:
    """The least and the most that a process takes whose tensors take so much."""
    return PROCESS_BYTES + tensor_bytes, PROCESS_BYTES + int(tensor_bytes * (GPU_OVERHEAD if on_gpu else CPU_OVERHEAD))


def device_bytes(device: torch.device, ranks_here: int = 1) -> int:
    """All memory of a GPU, or the part that each of so many processes may take of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return memory.total_bytes() // ranks_here


def refuse_what_cannot_fit(setup: TrainingSetup, cfg: Config, device: torch.device, ranks: int) -> None:
    """TrainingError if the largest batch of the first epoch needs more than all memory of the device.

    What needs nearly all of it is left to the step that the loop makes of that batch. A model that cannot be made for
    its shapes alone is left to it too.
    """
    limit_bytes = device_bytes(device, cfg.train.devices)
    plan = setup.data.plan(0, ascending=True)
    shapes = Shapes.of_plan(plan)
    states = states_of(setup.model, setup.task, cfg.train, ranks)
    try:
        if _fits_by_far(setup, cfg, states, shapes, limit_bytes):
            return
        footprint = footprint_of(setup.model, setup.task, cfg, plan, ranks, parallel.precision(cfg.train)[0])
    except Exception as error:  # of a model of another package: the first step of the loop shows it
        log.debug("train: the memory of a step cannot be estimated: %s", error)
        return
    needed_N = footprint.least(shapes)
    needed_bytes = int(needed_N.max())
    if needed_bytes > limit_bytes:
        frontend = getattr(setup.task, "frontend", None)
        lengths = lengths_of(plan, cfg, getattr(frontend, "max_duration_ms", None))
        raise _too_large(footprint, shapes.at(int(needed_N.argmax())), lengths, cfg, limit_bytes, device)


def footprint_of(
    model: PreTrainedModel, task: Task, cfg: Config, plan: EpochPlan, ranks: int, precision: str
) -> Footprint:
    """What a training in this precision takes on each of so many ranks."""
    step = step_memory.measure(
        model,
        task,
        tokens_per_s(plan),
        precision,
        checkpoints_activations=cfg.train.activation_checkpointing,
    )
    return Footprint(states_of(model, task, cfg.train, ranks), step, plan.batches_per_step // ranks)


def tokens_per_s(plan: EpochPlan) -> float:
    """Tokens in a second of audio, of the steps that have the most."""
    audio_ms_S = plan.audio_ms_by_batch.reshape(-1, plan.batches_per_step).sum(axis=1)
    return 1000 * float((plan.step_tokens / audio_ms_S).max())


def lengths_of(plan: EpochPlan, cfg: Config, longest_ms: int | None) -> Lengths:
    """The lengths that batches of any epoch may have."""
    longer = 1 + (cfg.augment.tempo if plan.tempo_N is not None else 0.0)
    durations_ms = plan.durations_ms if plan.crops is None else plan.augmented_ms()
    return Lengths(np.ceil(durations_ms * longer).astype(np.int64), cfg.plan.max_utterances, longest_ms)


def _fits_by_far(setup: TrainingSetup, cfg: Config, states: States, shapes: Shapes, limit_bytes: int) -> bool:
    """Whether all batches fit, by one small batch: bytes grow no faster than the number of utterances, and than
    the square of their length.
    """
    most_N = step_memory.upper_bound(
        setup.model,
        setup.task,
        parallel.precision(cfg.train)[0],
        shapes,
        checkpoints_activations=cfg.train.activation_checkpointing,
    )
    return states.kept + states.gradients + int(most_N.max()) <= limit_bytes


def ranks_needed(footprint: Footprint, lengths: Lengths, safe: int) -> int | None:
    """How many devices share the weights, where one cannot hold them beside a batch of one utterance; None if that
    helps nothing, or one is enough."""
    smallest = lengths.batches_of(int(np.quantile(lengths.durations_ms, 0.5)))
    states = footprint.states
    batch_bytes = int(footprint.step.peak(smallest).max()) - footprint.step.gradients
    shared = states.weights + footprint.step.gradients + states.optimizer + states.average
    if shared + states.teacher + batch_bytes <= safe:
        return None
    left = safe - states.teacher - batch_bytes
    return max(2, math.ceil(shared / left)) if left > 0 else None


def _too_large(
    footprint: Footprint, shapes: Shapes, lengths: Lengths, cfg: Config, limit_bytes: int, device: torch.device
) -> TrainingError:
    """The error that names what is needed, and what would fit."""
    free_bytes = limit_bytes if device.type == "cuda" else memory.available_bytes() // cfg.train.devices
    safe = safe_bytes(min(limit_bytes, free_bytes), on_gpu=device.type == "cuda")
    where = "the GPU" if device.type == "cuda" else "this machine"
    num, longest_s = int(shapes.num_utterances_N[0]), int(shapes.duration_ms_N[0]) / 1000
    parts = ", ".join(f"{name} {gib(part)}" for name, part in footprint.parts(shapes).items() if part)
    budget_ms = largest_budget(footprint, lengths, safe)
    ranks = ranks_needed(footprint, lengths, safe) if device.type == "cuda" else None
    fixes = [] if budget_ms is None else [f"set `plan.budget_ms` to {budget_ms}"]
    if budget_ms is None and ranks is not None:
        fixes.append(
            f"train on {ranks} GPUs or more (`train.devices: {ranks}` and `train.shard_above: 0`): one alone cannot "
            "hold the model"
        )
    if not cfg.train.activation_checkpointing:
        fixes.append("set `train.activation_checkpointing: true`")
    fixes.append("use a smaller `student.size`, or a smaller model to start from")
    return TrainingError(
        f"the training needs {gib(int(footprint.least(shapes)[0]))} of memory, but {where} has {gib(limit_bytes)}",
        code="out-of-memory",
        why=f"its largest batch has {num} utterances of up to {longest_s:.1f} s; {parts}",
        fix="; or ".join(fixes),
    )


def gib(num_bytes: int) -> str:
    """A number of bytes as people read it."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.1f} MiB"
