"""The loop: a plan's steps become a student. It knows no model and no task by name.

A step's loss is a sum divided by counts from the plan, so accumulation and ranks need no collective to be right. All
randomness is drawn from (seed, step, rank), so resuming needs no generator state.
"""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from voxstill.core import world
from voxstill.core.config import Config, Train
from voxstill.core.monitor import Progress, clock, log
from voxstill.core.records import Batch, fingerprint
from voxstill.data.plan import EpochPlan
from voxstill.nn.freezing import Frozen
from voxstill.storage.rundir import RunDir
from voxstill.training import checkpoint, optim, parallel
from voxstill.training.checkpoint import State
from voxstill.training.guard import Guard, MemoryGuard
from voxstill.training.meter import Meter
from voxstill.training.task import DevBatch, ModelInput, StepContext, Task, make_generator, to_device
from voxstill.training.watchdog import Watchdog

Made = TypeVar("Made")
LOSS_MEMORY = 0.05
"""The loss reported is a running mean over about 1 / LOSS_MEMORY steps."""


class Data(Protocol):
    """Where steps come from."""

    def plan(self, epoch: int, *, ascending: bool) -> EpochPlan:
        """The batches of an epoch."""
        ...

    def steps(self, plan: EpochPlan, first: int, make: Callable[[int, list[Batch]], Made]) -> Iterator[Made]:
        """What `make` makes of this rank's batches of each step from `first` on, ahead of time in a thread."""
        ...

    def replaced(self) -> int:
        """Utterances that could not be read so far, each replaced by a neighbour of weight zero."""
        ...

    def limit(self, seconds: float) -> str:
        """Say what a training of so many seconds was held up by."""
        ...

    def finish(self) -> None:
        """Remove what was fetched ahead."""
        ...

    def dev_batches(self, beat: Callable[[], None]) -> Iterable[DevBatch]:
        """The batches of the dev split, always the same; none where there is nothing. Calls `beat` before each."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to train: the first limit reached counts."""

    steps: int | None
    seconds: float | None
    patience: int | None = None
    """Judgements in a row without a better one."""

    def progress(self, step: int, seconds: float, stale: int = 0) -> float:
        """Share of the training done, in [0, 1], after so many steps, seconds and judgements in a row none better."""
        if self.patience and stale >= self.patience:
            return 1.0
        shares = [step / self.steps] if self.steps else []
        shares += [seconds / self.seconds] if self.seconds else []
        return min(max(shares), 1.0)


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """This rank's batches of a step, and what the model takes of each, or the error that the task raised."""

    batches: list[Batch]
    inputs: list[ModelInput] | Exception


def train(
    fabric: Any,
    model: nn.Module,
    task: Task,
    data: Data,
    cfg: Config,
    run: RunDir,
    budget: Budget,
    frozen: Frozen,
) -> State | None:
    """Train to the end of the budget, from the newest checkpoint on; `model` ends as the averaged student.

    What is `frozen` of it stays as it is. SIGINT or SIGTERM to any rank ends all of them after the step, with a
    checkpoint: then there is no state.
    """
    if cfg.train.activation_checkpointing:
        parallel.checkpoint_activations(model)
    if cfg.train.compile:
        parallel.compiled(model)
    parallel.shard_model(model, fabric, cfg.train)
    optimizer = optim.adamw(model, cfg.train)
    wrapped, optimizer = fabric.setup(model, optimizer)
    task.move(fabric.device)
    average = optim.Average(cfg.train.average_decay)
    state = checkpoint.load(run, model, optimizer, average) or State()
    scaling = parallel.Scaling(fabric, state.scaling)
    if state.step:
        log.info("resuming at step %d of epoch %d", state.step, state.epoch)
    first = fabric.global_rank == 0
    meter = Meter(run, first, state, fabric.world_size)
    replaced, spent_s = state.replaced, state.seconds
    guard = Guard(run, fabric.global_rank)
    memory = MemoryGuard(cfg.plan.budget_ms)
    with (
        world.Signals(_after_this_step) as signals,
        Watchdog(run, fabric.global_rank, cfg.train.step_timeout_s) as watchdog,
        Progress("train", 1.0, "") as bar,
    ):
        frozen.hold(0.0)
        meter.flops_per_s = probe_memory(fabric, wrapped, task, data, cfg, memory)
        while (progress := budget.progress(state.step, state.seconds, state.stale)) < 1:
            if state.step_in_epoch == 0:
                state.ascending = progress < cfg.train.ascending_share
            plan = data.plan(state.epoch, ascending=state.ascending)
            before = state.step - state.step_in_epoch

            def ready(k: int, batches: list[Batch], before: int = before) -> PreparedStep:
                # the clock stands where the step before this one began: near enough for what it decides
                now = budget.progress(before + k, state.seconds)
                return prepare_step(fabric, task, batches, now, cfg.seed, before + k)

            steps = iter(data.steps(plan, state.step_in_epoch, ready))
            while state.step_in_epoch < plan.steps:
                if (progress := budget.progress(state.step, state.seconds, state.stale)) >= 1:
                    break
                start = time.perf_counter()
                watchdog.beat(state.step)
                with meter.waiting.running():
                    step = next(steps)
                context = StepContext.of_step(plan, state.step_in_epoch, progress, state.step)
                for group in optimizer.param_groups:
                    group["lr"] = optim.lr_at(progress, cfg.train)
                frozen.hold(progress)
                with memory.in_step(state.step):
                    loss, figures = one_step(fabric, wrapped, task, step, context, cfg.seed, state.step, memory)
                frozen.drop(progress)
                norm = scaling.clipped(wrapped, optimizer, cfg.train.clip_norm)
                sums = all_sums(
                    fabric,
                    {
                        **figures,
                        "loss": loss,
                        "stops": signals.caught is not None,
                        "replaced": data.replaced(),
                        "seconds": first * (spent_s + time.perf_counter() - start),
                    },
                )
                loss, stops, state.seconds = sums.pop("loss"), bool(sums.pop("stops")), sums.pop("seconds")
                state.replaced = replaced + int(sums.pop("replaced"))
                if scaling.overflows(loss, norm) or guard.passes(loss, norm, state.step, step.batches, context):
                    optimizer.step()  # which fp16 leaves out where gradients are too large for it
                else:
                    state.skipped += 1
                    scaling.passed_over()
                optimizer.zero_grad(set_to_none=True)
                if cfg.train.average == "last" and progress >= 1 - cfg.train.average_share:
                    average.add(model)
                state.step += 1
                state.step_in_epoch += 1
                spent_s += time.perf_counter() - start
                meter.count(step.batches, loss, sums)
                task.watch(state.step, sums)
                state.loss = loss if state.loss is None else state.loss + (loss - state.loss) * LOSS_MEMORY
                bar.to(progress, f"step {state.step:,}, loss {state.loss:.3f}")
                if state.step % cfg.train.log_every == 0:
                    meter.write(state, norm, optimizer.param_groups[0]["lr"], progress)
                state.error = None
                if state.step % cfg.train.validate_every == 0:
                    validate(task, model, data, state, meter, watchdog)
                state.scaling = scaling.state()
                if stops or is_saved(state, cfg.train):
                    checkpoint.save(run, model, optimizer, average, state, cfg.train, writes=first)
                if stops:
                    log.info("stopped at step %d, which is saved", state.step)
                    return None
            if state.step_in_epoch >= plan.steps:
                state.epoch, state.step_in_epoch = state.epoch + 1, 0
    checkpoint.save(run, model, optimizer, average, state, cfg.train, writes=first)
    fabric.barrier()
    if cfg.train.average == "last":
        average.apply(model)
    elif folders := checkpoint.best(run, cfg.train.keep_best):
        checkpoint.load_mean(model, folders)
    else:
        log.warning("`train.average` is best, and there is no dev split to judge by: the last weights are taken")
    validate(task, model, data, state, meter, None)
    log.info("%d steps in %s, %d epochs begun", state.step, clock(state.seconds), state.epoch + 1)
    return state


def is_saved(state: State, cfg: Train) -> bool:
    """Whether a step leaves a checkpoint: to resume from, because it was judged, or to be kept."""
    every = (cfg.checkpoint_every, cfg.keep_every)
    return state.error is not None or any(buffer and state.step % buffer == 0 for buffer in every)


def one_step(
    fabric: Any,
    model: Any,
    task: Task,
    prepared: PreparedStep,
    context: StepContext,
    seed: int,
    step: int,
    memory: MemoryGuard,
) -> tuple[float, dict[str, float]]:
    """Gradients of one step, of all ranks together, not yet clipped: (this rank's part of the loss, of the figures)."""
    drawn = int(fingerprint(seed, "dropout", step, fabric.global_rank), 16)
    torch.manual_seed(drawn % 2**63)
    np.random.seed(drawn % 2**32)  # transformers draws the masks of wav2vec 2.0 from it
    total, figures = 0.0, dict[str, float]()
    for micro, batch in enumerate(prepared.batches):
        memory.before_batch(batch)
        if isinstance(prepared.inputs, Exception):
            raise prepared.inputs
        last = micro == len(prepared.batches) - 1
        with fabric.no_backward_sync(model, enabled=not last):
            loss = task.loss(model, prepared.inputs[micro], context)
            fabric.backward(loss.value * fabric.world_size)  # DDP takes the mean over ranks; the plan wants the sum
        total += float(loss.value.detach())
        for name, value in loss.figures.items():
            figures[name] = figures.get(name, 0.0) + float(value)
    return total, figures


def all_sums(fabric: Any, numbers: dict[str, float]) -> dict[str, float]:
    """Each number summed over the ranks, which give the same names: the one collective of a step beside the gradients.

    What one rank alone knows is 0 on the others.
    """
    whole = fabric.all_reduce(torch.tensor(list(numbers.values()), dtype=torch.float64), reduce_op="sum")
    return dict(zip(numbers, whole.tolist(), strict=True))


def prepare_step(fabric: Any, task: Task, batches: list[Batch], progress: float, seed: int, step: int) -> PreparedStep:
    """Let the task prepare the batches of a step on the device; equal arguments give equal tensors."""
    inputs = []
    try:
        for micro, batch in enumerate(batches):
            generator = make_generator(fabric.device, seed, step, micro, fabric.global_rank)
            inputs.append(task.prepare(to_device(batch, fabric.device), progress, generator))
    except Exception as error:  # it may happen in a thread: who takes the step raises it, and says what did not fit
        return PreparedStep(batches, error)
    return PreparedStep(batches, inputs)


def probe_memory(fabric: Any, model: Any, task: Task, data: Data, cfg: Config, memory: MemoryGuard) -> float:
    """Run the largest step of the first epoch, forward and backward, before training; it leaves no trace in the model.

    What does not fit is told now, not at hour 40. The largest has the most audio, padding included. Returns the
    floating-point operations for a second of this rank's audio: of matrices and convolutions, forward and backward.
    """
    plan = data.plan(0, ascending=True)
    heard_ms = plan.heard_ms()
    padded_ms_B = np.maximum.reduceat(heard_ms, plan.bounds[:-1]) * np.diff(plan.bounds)
    worst = int(padded_ms_B.argmax()) // plan.slots
    step = next(iter(data.steps(plan, worst, lambda _, batches: prepare_step(fabric, task, batches, 0.0, cfg.seed, 0))))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    context = StepContext.of_step(plan, worst, 0.0)
    context = dataclasses.replace(context, num_tokens=max(context.num_tokens, 1), num_frames=max(context.num_frames, 1))
    # what is compiled cannot be counted
    with memory.in_step(0), torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        one_step(fabric, model, task, step, context, cfg.seed, 0, memory)
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    padded_s = max(batch.audio_BT.numel() for batch in step.batches) / 16_000
    log.info("train: the largest step fits: batches of up to %.0f s, %s", padded_s, peak_memory(fabric.device))
    return float(counter.get_total_flops()) / sum(batch.audio_BT.numel() / 16_000 for batch in step.batches)


def peak_memory(device: torch.device) -> str:
    """Describe the most memory that was taken until now."""
    if device.type == "cuda":
        taken, whole = torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
        return f"{taken / 2**30:.1f} of {whole / 2**30:.0f} GiB on the GPU"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB of memory"


def _after_this_step(name: str) -> None:
    log.warning("%s: this step is the last one; once more stops at once", name)


def validate(task: Task, model: nn.Module, data: Data, state: State, meter: Meter, watchdog: Watchdog | None) -> None:
    """Log the figures of the dev split and remember them with the best so far."""
    model.eval()
    figures = task.validate(model, data.dev_batches(watchdog.beat if watchdog else _no_beat))
    model.train()
    if figures is None:
        return
    state.error = next(iter(figures.values()))
    state.stale = 0 if state.best_error is None or state.error < state.best_error else state.stale + 1
    state.best_error = state.error if state.best_error is None else min(state.error, state.best_error)
    meter.write_split("dev", state, figures)


def _no_beat() -> None:
    """Do nothing: no watchdog waits for a sign of life."""
