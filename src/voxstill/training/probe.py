"""The largest step of a training, made before the first: what does not fit into memory is reported then, not at hour
40."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from voxstill.core import pcm
from voxstill.core.monitor import log
from voxstill.core.records import Batch
from voxstill.data.plan import EpochPlan
from voxstill.training.optim import Average
from voxstill.training.step import PreparedStep
from voxstill.training.task import StepContext


def largest_step(plan: EpochPlan) -> int:
    """The step of an epoch that has the batch of most audio, padding included."""
    padded_ms_B = plan.longest_ms_by_batch * np.diff(plan.bounds)
    return int(padded_ms_B.argmax()) // plan.batches_per_step


def largest_batches(step: PreparedStep) -> PreparedStep:
    """The batches of a step that take most memory: three, or all where there are fewer, the same number on all ranks.

    The one of most audio comes last, where ranks exchange gradients; before it that of most audio times tokens, which
    transducers notice; first another one, as memory holds the gradients of earlier batches in a long step too.
    """
    if isinstance(step.inputs, Exception):
        return step
    sizes = [(batch.audio_BT.numel(), batch.audio_BT.numel() * batch.tokens_BU.numel()) for batch in step.batches]
    longest = max(range(len(sizes)), key=lambda i: sizes[i][0])
    wordiest = max(range(len(sizes)), key=lambda i: sizes[i][1])
    chosen = sorted(range(len(sizes)), key=lambda i: (i == longest, i == wordiest))[-3:]
    return PreparedStep([step.batches[i] for i in chosen], [step.inputs[i] for i in chosen])


def context_of(plan: EpochPlan, step: int) -> StepContext:
    """The context of a step at the beginning of a training, with counts that can be divided by."""
    context = StepContext.of_step(plan, step, 0.0)
    return dataclasses.replace(context, num_tokens=max(context.num_tokens, 1), num_frames=max(context.num_frames, 1))


@contextmanager
def held(model: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None) -> Iterator[None]:
    """Hold the memory that a training takes later: AdamW's two moments of each weight, and the average of the weights.

    What is there already, as it is where a training continues, is not held twice. The buffers of the model are put back
    to what they were, and its gradients removed.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad]
    later: list[Tensor] = [weight for weight in weights if not optimizer.state.get(weight) for _ in range(2)]
    if average is not None and not average.mean:
        later += [value for value in model.state_dict().values() if value.is_floating_point()]
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    taken = [torch.zeros_like(value, dtype=torch.float32, requires_grad=False) for value in later]
    try:
        yield
    finally:
        taken.clear()
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


@contextmanager
def counted(model: nn.Module, batches: Sequence[Batch]) -> Iterator[Callable[[], float]]:
    """Count the floating-point operations of a block: of matrices and convolutions, forward and backward.

    The function says how many there were for a second of the padded audio of `batches`. Logs the most memory taken.
    """
    # what is compiled cannot be counted
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        yield (
            lambda: (
                float(counter.get_total_flops()) / sum(pcm.samples_to_s(batch.audio_BT.numel()) for batch in batches)
            )
        )
    padded_s = pcm.samples_to_s(max(batch.audio_BT.numel() for batch in batches))
    device = next(model.parameters()).device
    log.info("train: the largest step fits: batches of up to %.0f s, %s", padded_s, peak_memory(device))


def peak_memory(device: torch.device) -> str:
    """Describe the most memory that was taken until now."""
    if device.type == "cuda":
        taken, whole = torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
        return f"{taken / 2**30:.1f} of {whole / 2**30:.0f} GiB on the GPU"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB of memory"
