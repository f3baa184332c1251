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
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from voxstill.core import pcm, world
from voxstill.core.config import Config, Train
from voxstill.core.monitor import Progress, clock, log
from voxstill.core.records import Batch, fingerprint
from voxstill.data.plan import EpochPlan
from voxstill.data.transfer import to_device
from voxstill.nn.freezing import Frozen
from voxstill.storage.rundir import RunDir
from voxstill.training import checkpoint, optim, parallel
from voxstill.training.budget import Budget
from voxstill.training.guard import Guard, MemoryGuard
from voxstill.training.meter import Meter
from voxstill.training.state import State
from voxstill.training.task import DevBatch, ModelInput, StepContext, Task, make_generator, minimised
from voxstill.training.watchdog import Watchdog

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Prepared = TypeVar("Prepared")
LOSS_MEMORY = 0.05
"""The loss reported is a running mean over about 1 / LOSS_MEMORY steps."""


class Data(Protocol):
    """Where steps come from."""

    def plan(self, epoch: int, *, ascending: bool) -> EpochPlan:
        """The batches of an epoch."""
        ...

    def steps(self, plan: EpochPlan, first: int, make: Callable[[int, list[Batch]], Prepared]) -> Iterator[Prepared]:
        """What `make` makes of this rank's batches of each step from `first` on, ahead of time in a thread."""
        ...

    def replaced(self) -> int:
        """Utterances that could not be read so far, each replaced by a neighbour of weight zero."""
        ...

    def bottleneck(self, seconds: float) -> str:
        """Say what a training of so many seconds was held up by."""
        ...

    def finish(self) -> None:
        """Remove what was fetched ahead."""
        ...

    def dev_batches(self, beat: Callable[[], None]) -> Iterable[DevBatch]:
        """The batches of the dev split, always the same; none where there is nothing. Calls `beat` before each."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """This rank's batches of a step, and what the model takes of each, or the error that the task raised."""

    batches: list[Batch]
    inputs: list[ModelInput] | Exception


def train(
    fabric: Fabric,
    model: nn.Module,
    task: Task,
    data: Data,
    cfg: Config,
    run: RunDir,
    budget: Budget,
    frozen: Frozen,
    check_owned: Callable[[], None] = lambda: None,
) -> State | None:
    """Train to the end of the budget, from the newest checkpoint on; `model` ends as the averaged student.

    What is `frozen` of it stays as it is. SIGINT or SIGTERM to any rank ends all of them after the step, with a
    checkpoint: then there is no state. `check_owned` is called before each write, and raises where the experiment is
    another process's now.
    """
    return _Trainer(fabric, model, task, data, cfg, run, budget, frozen, check_owned).train()


class _Trainer:
    """The training of one rank: its model and optimizer, and what each step counts, logs and saves."""

    def __init__(
        self,
        fabric: Fabric,
        model: nn.Module,
        task: Task,
        data: Data,
        cfg: Config,
        run: RunDir,
        budget: Budget,
        frozen: Frozen,
        check_owned: Callable[[], None],
    ) -> None:
        self._fabric, self._model, self._task, self._data = fabric, model, task, data
        self._cfg, self._run, self._budget, self._frozen = cfg, run, budget, frozen
        self._check_owned = check_owned
        if cfg.train.activation_checkpointing:
            parallel.checkpoint_activations(model)
        if cfg.train.compile:
            parallel.compiled(model)
        parallel.shard_model(model, fabric, cfg.train)
        self._wrapped, self._optimizer = fabric.setup(model, optim.adamw(model, cfg.train))
        task.move(fabric.device)
        self._average = optim.Average(cfg.train.average_decay)
        self._state = self._resumed()
        self._scaling = parallel.Scaling(fabric, self._state.scaling)
        if self._state.step:
            log.info("resuming at step %d of epoch %d", self._state.step, self._state.epoch)
        self._is_first = fabric.global_rank == 0
        self._meter = Meter(run, self._is_first, self._state, fabric.world_size)
        self._replaced_before, self._seconds = self._state.replaced, self._state.seconds
        self._guard = Guard(run, fabric.global_rank)
        self._memory = MemoryGuard(cfg.plan.budget_ms)

    def _resumed(self) -> State:
        """The state of the newest whole checkpoint, which model, optimizer and average are brought to; else a new one.

        Rank 0 chooses for all: it alone reads every byte.
        """
        folder = parallel.broadcast_from_rank0(self._fabric, lambda: checkpoint.newest(self._run))
        if folder is None:
            return State()
        return checkpoint.load(folder, self._model, self._optimizer, self._average)

    def train(self) -> State | None:
        """Make all steps, then the averaged student, and judge it; None where a signal has ended it before."""
        cfg, state = self._cfg, self._state
        with (
            world.Signals(_after_this_step) as signals,
            Watchdog(self._run, self._fabric.global_rank, cfg.train.step_timeout_s) as watchdog,
            Progress("train", 1.0, "") as bar,
        ):
            self._frozen.set_modes(0.0)
            self._meter.flops_per_s = probe_memory(
                self._fabric, self._wrapped, self._task, self._data, cfg, self._memory
            )
            while self._progress() < 1:
                if self._epoch(signals, watchdog, bar):
                    log.info("stopped at step %d, which is saved", state.step)
                    return None
        self._save()
        self._fabric.barrier()
        if cfg.train.average == "last":
            self._average.apply(self._model)
        elif folders := parallel.broadcast_from_rank0(
            self._fabric, lambda: checkpoint.whole_best(self._run, cfg.train.keep_best)
        ):
            checkpoint.load_mean(self._model, folders)
        else:
            log.warning("`train.average` is best, and no checkpoint was judged on a dev split: the last are taken")
        validate(self._task, self._model, self._data, state, self._meter, None)
        log.info("%d steps in %s, %d epochs begun", state.step, clock(state.seconds), state.epoch + 1)
        return state

    def _progress(self) -> float:
        return self._budget.progress(self._state.step, self._state.seconds, self._state.stale)

    def _save(self) -> None:
        self._check_owned()
        checkpoint.save(
            self._run, self._model, self._optimizer, self._average, self._state, self._cfg.train, writes=self._is_first
        )

    def _epoch(self, signals: world.Signals, watchdog: Watchdog, bar: Progress) -> bool:
        """Make the remaining steps of an epoch, or of the budget; return whether a signal to any rank has ended it."""
        cfg, state = self._cfg, self._state
        if state.step_in_epoch == 0:
            state.ascending = self._progress() < cfg.train.ascending_share
        plan = self._data.plan(state.epoch, ascending=state.ascending)
        steps_before = state.step - state.step_in_epoch

        def prepare(k: int, batches: list[Batch]) -> PreparedStep:
            # the clock stands where the step before this one began: near enough for what it decides
            progress = self._budget.progress(steps_before + k, state.seconds)
            return prepare_step(self._fabric, self._task, batches, progress, cfg.seed, steps_before + k)

        steps = iter(self._data.steps(plan, state.step_in_epoch, prepare))
        while state.step_in_epoch < plan.steps:
            if (progress := self._progress()) >= 1:
                break
            start = time.perf_counter()
            watchdog.beat(state.step)
            with self._meter.waiting.running():
                step = next(steps)
            context = StepContext.of_step(plan, state.step_in_epoch, progress, state.step)
            norm, sums = self._step(step, context, start, signals)
            loss, stops = sums.pop("loss"), bool(sums.pop("stops"))
            self._report(step, loss, sums, norm, progress, bar)
            state.error = None
            if state.step % cfg.train.validate_every == 0:
                validate(self._task, self._model, self._data, state, self._meter, watchdog)
            state.scaling = self._scaling.state()
            if stops or is_saved(state, cfg.train):
                self._save()
            if stops:
                return True
        if state.step_in_epoch >= plan.steps:
            state.epoch, state.step_in_epoch = state.epoch + 1, 0
        return False

    def _step(
        self, step: PreparedStep, context: StepContext, start: float, signals: world.Signals
    ) -> tuple[float, dict[str, float]]:
        """Make one step that began at `start`; return the norm of its gradients, and its figures over all ranks.

        The figures hold `loss`, and `stops`, which is not 0 where a signal has reached a rank.
        """
        cfg, state, progress = self._cfg, self._state, context.progress
        for group in self._optimizer.param_groups:
            group["lr"] = optim.lr_at(progress, cfg.train)
        self._frozen.set_modes(progress)
        with self._memory.in_step(state.step):
            loss, figures = one_step(
                self._fabric,
                self._wrapped,
                self._task,
                step,
                context,
                seed=cfg.seed,
                step=state.step,
                memory=self._memory,
            )
        self._frozen.drop_gradients(progress)
        norm = self._scaling.clipped(self._wrapped, self._optimizer, cfg.train.clip_norm)
        sums = all_sums(
            self._fabric,
            {
                **figures,
                "loss": loss,
                "stops": signals.caught is not None,
                "replaced": self._data.replaced(),
                "seconds": self._is_first * (self._seconds + time.perf_counter() - start),
            },
        )
        loss, state.seconds = sums["loss"], sums.pop("seconds")
        state.replaced = self._replaced_before + int(sums.pop("replaced"))
        overflows = self._scaling.overflows(loss, norm)
        if overflows or self._guard.passes(loss, norm, state.step, step.batches, context):
            self._optimizer.step()  # which fp16 leaves out where gradients are too large for it
        else:
            state.skipped += 1
            self._scaling.passed_over()
        self._optimizer.zero_grad(set_to_none=True)
        if cfg.train.average == "last" and progress >= 1 - cfg.train.average_share:
            self._average.add(self._model)
        state.step += 1
        state.step_in_epoch += 1
        self._seconds += time.perf_counter() - start
        return norm, sums

    def _report(
        self, step: PreparedStep, loss: float, figures: dict[str, float], norm: float, progress: float, bar: Progress
    ) -> None:
        """Count and log a step."""
        state = self._state
        self._meter.count(step.batches, loss, figures)
        self._task.watch(state.step, figures)
        state.loss = loss if state.loss is None else state.loss + (loss - state.loss) * LOSS_MEMORY
        bar.set_done(progress, f"step {state.step:,}, loss {state.loss:.3f}")
        if state.step % self._cfg.train.log_every == 0 or self._progress() >= 1:
            self._meter.write(state, norm, self._optimizer.param_groups[0]["lr"], progress)


def is_saved(state: State, cfg: Train) -> bool:
    """Whether a step leaves a checkpoint: to resume from, because it was judged, or to be kept."""
    every = (cfg.checkpoint_every, cfg.keep_every)
    return state.error is not None or any(buffer and state.step % buffer == 0 for buffer in every)


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


def probe_memory(fabric: Fabric, model: nn.Module, task: Task, data: Data, cfg: Config, memory: MemoryGuard) -> float:
    """Run the largest step of the first epoch, forward and backward, before training; it leaves no trace in the model.

    What does not fit is told now, not at hour 40. The largest has the most audio, padding included. Returns the
    floating-point operations for a second of this rank's audio: of matrices and convolutions, forward and backward.
    """
    plan = data.plan(0, ascending=True)
    augmented_ms = plan.augmented_ms()
    padded_ms_B = np.maximum.reduceat(augmented_ms, plan.bounds[:-1]) * np.diff(plan.bounds)
    worst = int(padded_ms_B.argmax()) // plan.batches_per_step
    step = next(iter(data.steps(plan, worst, lambda _, batches: prepare_step(fabric, task, batches, 0.0, cfg.seed, 0))))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    context = StepContext.of_step(plan, worst, 0.0)
    context = dataclasses.replace(context, num_tokens=max(context.num_tokens, 1), num_frames=max(context.num_frames, 1))
    # what is compiled cannot be counted
    with memory.in_step(0), torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        one_step(fabric, model, task, step, context, seed=cfg.seed, step=0, memory=memory)
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    padded_s = pcm.samples_to_s(max(batch.audio_BT.numel() for batch in step.batches))
    log.info("train: the largest step fits: batches of up to %.0f s, %s", padded_s, peak_memory(fabric.device))
    return float(counter.get_total_flops()) / sum(pcm.samples_to_s(batch.audio_BT.numel()) for batch in step.batches)


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
    state.error = minimised(task, figures)
    state.stale = 0 if state.best_error is None or state.error < state.best_error else state.stale + 1
    state.best_error = state.error if state.best_error is None else min(state.error, state.best_error)
    meter.write_split("dev", state, figures)


def _no_beat() -> None:
    """Do nothing: no watchdog waits for a sign of life."""
