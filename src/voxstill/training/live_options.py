"""The options that a training works by: those it was started with and, over them, what was requested while it runs.

Rank 0 polls the request in a thread. The collective that a step has anyway says whether there is a new one; then all
ranks take it after that step. What was taken is noted in `environment.json` with its step, before anything is done by
it: so a training that was killed and continues from an earlier checkpoint takes it again after the same step.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from voxstill.core import config, monitor, process, world
from voxstill.core.config import Config, Train
from voxstill.core.errors import ConfigError, StorageError, VoxstillError, system_code
from voxstill.core.monitor import log
from voxstill.storage.control import Poller, Request
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training import control, parallel, segments
from voxstill.training.budget import Budget
from voxstill.training.control import TrainingStatus
from voxstill.training.state import State
from voxstill.training.summary import Segment

if TYPE_CHECKING:
    from lightning_fabric import Fabric

MOST_WORKERS_PER_CORE = 16
"""Of processes that read batches: a request cannot fill the machine with them."""
_PACE = {f"train.{name}" for name, field in Train.model_fields.items() if config.is_pace(field)} | {"monitor.log_level"}


class LiveOptions:
    """The configuration and the budget of a training, the same on all ranks after the same step.

    While its block runs, rank 0 polls the request and reports the status.
    """

    def __init__(
        self, fabric: Fabric, run: RunDir, cfg: Config, budget: Budget, check_owned: Callable[[], None]
    ) -> None:
        self._fabric, self._run, self._started, self._check_owned = fabric, run, cfg, check_owned
        self.cfg, self.budget = cfg, budget
        self._later: list[Segment] = []
        """Changes that a process before this one took after steps that are to be made again."""
        self._answered = Segment(0, {})
        self._asked: tuple[str, Request] | None = None
        self._is_later_refused = False
        """Whether the last request was refused: that stays the answer when an earlier one is taken after it."""
        self._lock = threading.Lock()
        self._poller: Poller[TrainingStatus] | None = None
        self._told_at: str | None = None
        self._known_at: str | None = None
        """When that was requested which a process before this one took, until the request is read."""

    def resume(self, state: State) -> None:
        """Go back to the options of a checkpoint; what was taken later is taken again, and what is pace alone now."""
        for segment in parallel.broadcast_from_rank0(self._fabric, lambda: segments.requested(self._run)):
            if segment.step <= state.step:
                self._change(segment)
            else:
                self._change(_part(segment, is_pace=True))
                self._later.append(_part(segment, is_pace=False))
            self._answered = segment
        self._told_at = self._answered.requested_at
        if changed := control.changes(self._started, self.cfg):
            log.info("control: as requested before: %s", segments.describe(changed))

    def __enter__(self) -> Self:
        if self._fabric.global_rank == 0:
            at = self._known_at = self._answered.requested_at
            status = TrainingStatus(
                host=socket.gethostname(),
                pid=os.getpid(),
                started=process.started(os.getpid()),
                running=True,
                asked_at=at,
                refused=None,
                since=None if at is None else self._answered.step,
                train=control.shown(self.cfg),
                log_level=self.cfg.monitor.log_level,
            )
            self._poller = Poller(Store(str(self._run.path.absolute())), control.NAME, status, self._ask).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._poller is not None:
            self._poller.__exit__(kind, value, trace)

    @property
    def is_asked(self) -> bool:
        """Whether this rank knows of a request that is to be taken."""
        return self._asked is not None

    def is_due(self, step: int, is_asked: bool) -> bool:
        """Whether there is something to `take` after so many steps; `is_asked` is that of any rank."""
        return is_asked or (bool(self._later) and self._later[0].step <= step)

    def take(self, state: State, is_asked: bool, last_step: Callable[[], int]) -> None:
        """Take what is due; all ranks call it after the same step. `last_step` says which the epoch ends with."""
        while self._later and self._later[0].step <= state.step:
            before = self._later.pop(0)
            self._change(before)
            if before.changed and self._poller is not None:
                log.info("control: from step %d on, as before: %s", state.step, segments.describe(before.changed))
                self._poller.update(lambda status: _with_options(status, self.cfg))
        if is_asked:
            segment = parallel.broadcast_from_rank0(self._fabric, lambda: self._answer(state, last_step))
            if segment is not None:
                self._later.clear()  # the steps that they were taken after are made otherwise now
                self._change(segment)

    def answer(self) -> Mapping[str, object]:
        """The outcome of the last request, as `control`, once; empty without a new answer, and on later ranks."""
        status = None if self._poller is None else self._poller.status
        if status is None or status.asked_at == self._told_at:
            return {}
        self._told_at = status.asked_at
        result = {"since": status.since} if status.refused is None else {"refused": status.refused}
        return {"control": {"asked_at": status.asked_at, **result}}

    def _change(self, segment: Segment) -> None:
        self.cfg = control.with_segment(self.cfg, segment)
        if "monitor.log_level" in segment.changed:
            monitor.set_level(self.cfg.monitor.log_level)
        self.budget = self.budget.changed(self.cfg.train, segment.step, segment.seconds or 0.0)

    def _ask(self, at: str, request: Request) -> None:
        """Hand a request to `take`, where it was not taken by a process before this one.

        A file that is edited later counts, also where the time in it is left as it was.
        """
        known_at, self._known_at = self._known_at, None
        if at == known_at:
            return
        try:
            _check_workers(control.apply(request.set, self._started), self._started.train.loader_workers)
        except Exception:
            self._is_later_refused = True
            raise
        with self._lock:
            self._asked, self._is_later_refused = (at, request), False

    def _answer(self, state: State, last_step: Callable[[], int]) -> Segment | None:
        """What a request changes after these steps, which is noted; None if there is none, or it is refused."""
        with self._lock:
            asked, self._asked = self._asked, None
        if asked is None or self._poller is None:
            return None
        at, request = asked
        self._check_owned()
        try:
            cfg = control.apply(request.set, self._started)
            _check_end(self.budget, cfg.train, state)
            if request.stop_after_epoch:
                end = last_step()
                cfg = control.with_options(cfg, {"train": {"steps": min(end, cfg.train.steps or end)}})
            segment = Segment(state.step, control.changes(self.cfg, cfg), at, state.seconds)
            segments.note_request(self._run, segment)
        except (VoxstillError, OSError) as error:
            refusal = (
                error
                if isinstance(error, VoxstillError)
                else StorageError("it cannot be recorded", code=system_code(error), why=str(error))
            )
            if self._is_later_refused:
                log.warning("control: the request before it is refused as well: %s", refusal.what)
            else:
                self._poller.refuse(at, refusal)
            return None
        self._answered = segment
        log.info("control: from step %d on: %s", state.step, segments.describe(segment.changed) or "nothing changes")

        def taken(status: TrainingStatus) -> TrainingStatus:
            status = _with_options(status, cfg)
            return status if self._is_later_refused else replace(status, asked_at=at, refused=None, since=state.step)

        self._poller.update(taken)
        return segment


def _with_options(status: TrainingStatus, cfg: Config) -> TrainingStatus:
    return replace(status, train=control.shown(cfg), log_level=cfg.monitor.log_level)


def _part(segment: Segment, *, is_pace: bool) -> Segment:
    return replace(
        segment, changed={name: pair for name, pair in segment.changed.items() if (name in _PACE) is is_pace}
    )


def _check_workers(cfg: Config, started: int) -> None:
    most = max(MOST_WORKERS_PER_CORE * world.num_cores(), started)
    if cfg.train.loader_workers > most:
        raise ConfigError(
            f"`train.loader_workers` cannot be {cfg.train.loader_workers:,} while it trains",
            code="change-refused",
            why=f"the machine has {world.num_cores()} cores, and at most {MOST_WORKERS_PER_CORE} for each are started",
            fix=f"request {most} or fewer",
        )


def _check_end(budget: Budget, cfg: Train, state: State) -> None:
    is_over = budget.progress(state.step, state.seconds) >= 1
    if is_over or budget.changed(cfg, state.step, state.seconds).progress(state.step, state.seconds) >= 1:
        raise ConfigError(
            "the training is over" if is_over else "the training would already be over",
            code="training-over",
            why=f"it has made {state.step:,} steps in {state.seconds / 60:.1f} minutes",
            fix="continue it with `voxstill train CONFIG --continue EXP`"
            if is_over
            else "request more `train.steps`, `train.epochs` or `train.max_minutes`; to end it, use "
            "`--stop-after-epoch`",
        )
