"""The loop: a plan's steps become a student. It is independent of models and tasks.

A step's loss is a sum divided by counts from the plan, so accumulation and ranks need no collective to be right. All
randomness is drawn from (seed, step, rank), so resuming needs no generator state.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from voxstill.core import world
from voxstill.core.config import Config, Train
from voxstill.core.errors import TrainingError
from voxstill.core.monitor import Progress, clock, log
from voxstill.core.records import Batch
from voxstill.nn.freezing import Frozen
from voxstill.storage.rundir import RunDir
from voxstill.training import checkpoint, divergence, optim, parallel, probe, segments, stagnation
from voxstill.training.budget import Budget
from voxstill.training.data_source import Data
from voxstill.training.exports import Exports
from voxstill.training.guard import Guard, MemoryGuard
from voxstill.training.live_options import LiveOptions
from voxstill.training.meter import Meter
from voxstill.training.profiler import StepProfiler
from voxstill.training.state import State
from voxstill.training.step import PreparedStep, all_sums, one_step, prepare_step, sum_losses
from voxstill.training.task import Loss, StepContext, Task, minimised
from voxstill.training.waits import Stopwatch, WaitMeter
from voxstill.training.watchdog import Watchdog

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
    exports: Exports | None = None,
    command: str = "train",
) -> State | None:
    """Train to the end of the budget, from the newest checkpoint on; `model` ends as the averaged student.

    What is `frozen` of it stays as it is. SIGINT, SIGTERM or SIGHUP to any rank ends all of them after the step, with a
    checkpoint: then there is no state. `check_owned` is called before each write, and raises where the experiment is
    another process's now. With `exports` each checkpoint gets a smaller copy. Advice names the `command`.
    """
    trainer = _Trainer(fabric, model, task, data, cfg, run, budget, frozen, check_owned, exports, command)
    with contextlib.closing(trainer.meter):
        return trainer.train()


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
        exports: Exports | None,
        command: str,
    ) -> None:
        self._fabric, self._model, self._task, self._data = fabric, model, task, data
        self._run, self._frozen = run, frozen
        self._check_owned, self._exports, self._command = check_owned, exports, command
        self._options = LiveOptions(fabric, run, cfg, budget, check_owned)
        parallel.prepare(model, fabric, cfg.train)
        self._wrapped, self._optimizer = fabric.setup(model, optim.make_optimizer(model, cfg.train))
        task.move(fabric.device)
        self._average = optim.Average(cfg.train.average_decay)
        self._state = self._resumed()
        self._scaling = parallel.Scaling(fabric, self._state.scaling)
        if self._state.step:
            log.info("resuming at step %d of epoch %d", self._state.step, self._state.epoch)
        self._is_first = fabric.global_rank == 0
        self.meter = Meter(run, self._is_first, self._state, fabric.world_size)
        self._waits = WaitMeter(run, fabric.global_rank, fabric.world_size, cfg.train, data)
        self._waits.watch(model)
        self._replaced_before, self._seconds = self._state.replaced, self._state.seconds
        self._guard = Guard(run, fabric.global_rank, self._advice)
        self._memory = MemoryGuard(cfg.plan.budget_ms)
        self._profiler = StepProfiler(run, cfg.train.profile if self._is_first else None, self._state.step)
        # Weights that make steps fail may be broken: they are neither judged nor saved before a step is taken again.
        self._is_sound, self._is_judged_next, self._is_saved_next = True, False, False
        self._is_stepped = False

    @property
    def _cfg(self) -> Config:
        return self._options.cfg

    @property
    def _budget(self) -> Budget:
        return self._options.budget

    def _resumed(self) -> State:
        """The state of the newest whole checkpoint, which model, optimizer and average are brought to; else a new one.

        Rank 0 chooses for all: it alone reads every byte.
        """
        folder = parallel.broadcast_from_rank0(self._fabric, lambda: checkpoint.newest(self._run))
        if folder is None:
            self._options.resume(State())
            return State()
        state = checkpoint.load(folder, self._model, self._optimizer, self._average)
        self._options.resume(state)
        begun = parallel.broadcast_from_rank0(self._fabric, lambda: segments.begun_since(self._run, state.step))
        if begun:
            state.stale = 0  # what ended the training before, by `train.patience`, does not end this segment
        if state.step_in_epoch and segments.change_batches(begun):
            state.epoch, state.step_in_epoch = state.epoch + 1, 0
        if self._budget.progress(state.step, state.seconds) < 1 - self._cfg.train.average_share:
            self._average = optim.Average(self._cfg.train.average_decay)  # that of a shorter training ends here
        return state

    def train(self) -> State | None:
        """Make all steps, then the averaged student, and judge it; None if a signal has ended it before."""
        cfg, state = self._cfg, self._state
        with (
            world.Signals(_after_this_step, hangup=True) as signals,
            Watchdog(self._run, self._fabric.global_rank, cfg.train.step_timeout_s) as watchdog,
            Progress("train", 1.0, "", done=self._progress()) as bar,
            self._profiler,
            self._options,
            self._waits,
        ):
            self._options.take(state, True, self._last_step)
            self._model.train()  # `transformers` loads a checkpoint in evaluation mode
            self._frozen.set_modes(0.0)
            self.meter.flops_per_s = self._probe()
            while self._progress() < 1:
                if self._epoch(signals, watchdog, bar):
                    return None
            self._end_epoch()
        if cfg.train.patience and state.stale >= cfg.train.patience:
            log.info("train: ends by `train.patience`: no improvement on the dev split in %d validations", state.stale)
        if state.skipped and state.skipped == state.step:
            raise TrainingError(
                "the training has made no step",
                code="loss-not-finite",
                why=f"the loss or its gradient was not finite in all {state.step}",
                fix=self._advice(is_loss_finite=False),
            )
        if self._is_sound:
            self._save()
        else:
            log.warning("the last step was skipped: the newest checkpoint is of an earlier step")
        self._fabric.barrier()
        if cfg.train.average == "last":
            self._average.apply(self._model)
        elif folders := parallel.broadcast_from_rank0(
            self._fabric, lambda: checkpoint.whole_best(self._run, cfg.train.keep_best)
        ):
            checkpoint.load_mean(self._model, folders)
        else:
            log.warning(
                "`train.average` is best, but no checkpoint was evaluated on a dev split: the last ones are used"
            )
        validate(self._task, self._model, self._data, state, self.meter, None)
        if state.risen_from is not None and self._is_first:
            divergence.warn(self._run, state, cfg, self._command, is_over=True)
        log.info("%d steps in %s, %d epochs started", state.step, clock(state.seconds), state.epoch + 1)
        return state

    def _probe(self) -> float:
        """Make the largest step of the first epoch beside all memory that the training will hold; it leaves no trace.

        All its batches are held, and the largest computed. Returns the floating-point operations for a second of audio.
        """
        plan = self._data.plan(0, ascending=True)
        worst = probe.largest_step(plan)
        seed = self._cfg.seed

        def prepare(_: int, batches: list[Batch]) -> PreparedStep:
            return prepare_step(self._fabric, self._task, batches, 0.0, seed, 0)

        step = next(iter(self._data.steps(plan, worst, prepare)))
        context, largest = probe.context_of(plan, worst), probe.largest_batches(step)
        averages = self._cfg.train.average == "last"
        with (
            self._memory.in_step(0),
            probe.held(self._model, self._optimizer, self._average if averages else None),
            probe.counted(self._model, largest.batches) as count,
        ):
            self._gradients(largest, context, 0, Stopwatch())
        return count()

    def _progress(self) -> float:
        return self._budget.progress(self._state.step, self._state.seconds, self._state.stale)

    def _save(self) -> None:
        self._check_owned()
        checkpoint.save(
            self._run, self._model, self._optimizer, self._average, self._state, self._cfg.train, writes=self._is_first
        )
        if self._exports is not None and self._exports.are_wanted:
            weights = checkpoint.whole_weights(self._model)
            if self._is_first:
                self._exports.add(self._run.checkpoint(self._state.epoch, self._state.step).name, weights)

    def _epoch(self, signals: world.Signals, watchdog: Watchdog, bar: Progress) -> bool:
        """Make the remaining steps of an epoch, or of the budget; return whether a signal to any rank has ended it."""
        cfg, state = self._cfg, self._state
        if state.step_in_epoch == 0:
            state.ascending = self._progress() < cfg.train.ascending_share
        plan = self._data.plan(state.epoch, ascending=state.ascending)
        steps_before = state.step - state.step_in_epoch

        def prepare(k: int, batches: list[Batch]) -> PreparedStep:
            # the clock stands where the step before this one started: near enough for what it decides
            progress = self._budget.progress(steps_before + k, state.seconds)
            return prepare_step(self._fabric, self._task, batches, progress, cfg.seed, steps_before + k)

        steps = iter(self._data.steps(plan, state.step_in_epoch, prepare, cfg.train.loader_workers))
        while state.step_in_epoch < plan.steps:
            if (progress := self._progress()) >= 1:
                break
            start = time.perf_counter()
            watchdog.beat(state.step)
            self._profiler.before_step(state.step)
            with self._waits.step():
                with self.meter.waiting.running():
                    step = next(steps)
                context = StepContext.of_step(plan, state.step_in_epoch, progress, state.step)
                norm, sums = self._step(step, context, start, signals)
            loss, stops, is_asked = sums.pop("loss"), bool(sums.pop("stops")), bool(sums.pop("asks"))
            lr = self._optimizer.param_groups[0]["lr"]
            watchdog.note(own_s=self._waits.own_s, **self.meter.of_rank(state, loss, norm, lr, self._progress()))
            self._report(step, loss if self._is_sound else None, sums, norm, progress, bar)
            state.error = None
            self._is_judged_next = self._is_judged_next or state.step % cfg.train.validate_every == 0
            if self._is_judged_next and self._is_sound:
                self._is_judged_next = False
                self._profiler.end()
                validate(self._task, self._model, self._data, state, self.meter, watchdog)
            state.scaling = self._scaling.state()
            self._is_saved_next = self._is_saved_next or stops or is_saved(state, cfg.train)
            if self._is_saved_next and self._is_sound:
                self._is_saved_next = False
                self._save()
            if stops:
                return True
            if self._options.is_due(state.step, is_asked):
                self._options.take(state, is_asked, self._last_step)
                break  # with other options the data loader begins again, as where a training is resumed
        self._end_epoch()
        return False

    def _last_step(self) -> int:
        """The step that this epoch ends with."""
        state = self._state
        return state.step - state.step_in_epoch + self._data.plan(state.epoch, ascending=state.ascending).steps

    def _end_epoch(self) -> None:
        """Go on to the next epoch where all steps are made, also after a kill between the last step and this."""
        state = self._state
        if state.step_in_epoch and state.step >= self._last_step():
            state.epoch, state.step_in_epoch = state.epoch + 1, 0

    def _step(
        self, step: PreparedStep, context: StepContext, start: float, signals: world.Signals
    ) -> tuple[float, dict[str, float]]:
        """Make one step that started at `start`; return the norm of its gradients, and its figures over all ranks.

        The figures hold `loss`; `stops`, which is not 0 where a signal has reached a rank; and `asks`, which is not 0
        where options are requested.
        """
        cfg, state, progress = self._cfg, self._state, context.progress
        for group in self._optimizer.param_groups:
            group["lr"] = optim.lr_at(progress, cfg.train)
        self._frozen.set_modes(progress)
        with self._memory.in_step(state.step):
            losses = self._gradients(step, context, state.step, self._waits.own)
        self._frozen.drop_gradients(progress)
        norm = self._scaling.clipped(self._wrapped, self._optimizer, cfg.train.clip_norm)
        loss, figures = sum_losses(losses)  # after the norm, for which a GPU is waited for anyway
        sums = all_sums(
            self._fabric,
            {
                **figures,
                "loss": loss,
                "stops": signals.caught is not None,
                "asks": self._options.is_asked,
                "replaced": self._data.replaced(),
                "seconds": self._is_first * (self._seconds + time.perf_counter() - start),
            },
        )
        self._waits.own.start()
        loss, state.seconds = sums["loss"], sums.pop("seconds")
        state.replaced = self._replaced_before + int(sums.pop("replaced"))
        overflows = self._scaling.overflows(loss, norm)
        self._is_sound = overflows or self._passes(loss, norm, step.batches, context)
        if self._is_sound:
            self._optimizer.step()  # which fp16 leaves out where gradients are too large for it
            self._is_stepped = self._is_stepped or not overflows
        else:
            state.skipped += 1
            self._scaling.passed_over()
        self._optimizer.zero_grad(set_to_none=True)
        if self._is_sound and cfg.train.average == "last" and progress >= 1 - cfg.train.average_share:
            self._average.add(self._model)
        state.step += 1
        state.step_in_epoch += 1
        self._seconds += time.perf_counter() - start
        return norm, sums

    def _gradients(self, prepared: PreparedStep, context: StepContext, step: int, own: Stopwatch) -> list[Loss]:
        fabric, model, seed, memory = self._fabric, self._wrapped, self._cfg.seed, self._memory
        return one_step(fabric, model, self._task, prepared, context, seed=seed, step=step, memory=memory, own=own)

    def _passes(self, loss: float, norm: float, batches: list[Batch], context: StepContext) -> bool:
        """Whether the update of a step is taken; TrainingError if too many in a row were not.

        Then the training continues, if it does, from a checkpoint before it diverged.
        """
        try:
            return self._guard.passes(loss, norm, self._state.step, batches, context)
        except TrainingError:
            if self._is_first:
                self._check_owned()
                checkpoint.set_aside_diverged(self._run, self._cfg.train)
            raise

    def _advice(self, is_loss_finite: bool) -> str:
        return divergence.advice(
            self._run, self._cfg, self._command, is_stepped=self._is_stepped, overflows=is_loss_finite
        )

    def _report(
        self,
        step: PreparedStep,
        loss: float | None,
        figures: dict[str, float],
        norm: float,
        progress: float,
        bar: Progress,
    ) -> None:
        """Count and log a step; one that was skipped has no loss."""
        state = self._state
        self.meter.count(step.batches, loss, figures)
        self._waits.clip(norm, self._cfg.train.clip_norm)
        if loss is not None:
            self._task.watch(state.step, figures)
            if divergence.follow(state, loss, tuple(sorted(figures))) and self._is_first:
                divergence.warn(self._run, state, self._cfg, self._command)
        shown = "no step was made yet" if state.loss is None else f"loss {state.loss:.3f}"
        bar.set_done(progress, f"step {state.step:,}, {self.meter.steps_per_s:.2g} steps/s, {shown}")
        if state.step % self._cfg.train.log_every == 0 or self._progress() >= 1:
            more = {**self._waits.line(), **self._options.answer()}
            self.meter.write(state, norm, self._optimizer.param_groups[0]["lr"], progress, more)


def is_saved(state: State, cfg: Train) -> bool:
    """Whether a step leaves a checkpoint: to resume from, because it was judged, or to be kept."""
    every = (cfg.checkpoint_every, cfg.keep_every)
    return state.error is not None or any(buffer and state.step % buffer == 0 for buffer in every)


def _after_this_step(name: str) -> None:
    log.warning("%s: this step is the last one; another SIGINT or SIGTERM stops at once", name)


def validate(task: Task, model: nn.Module, data: Data, state: State, meter: Meter, watchdog: Watchdog | None) -> None:
    """Log the figures of the dev split and remember them with the best so far."""
    model.eval()
    figures = task.validate(model, data.dev_batches(watchdog.beat if watchdog else _no_beat))
    model.train()
    if figures is None:
        return
    error = minimised(task, figures)
    state.error = error if math.isfinite(error) else None  # weights that give NaN are not the best
    is_best = state.error is not None and (state.best_error is None or state.error < state.best_error)
    state.stale = 0 if is_best else state.stale + 1
    state.best_error = state.error if is_best else state.best_error
    meter.write_split("dev", state, figures)
    stagnation.watch(state, next(iter(figures)))


def _no_beat() -> None:
    """Do nothing: no watchdog waits for a heartbeat."""
