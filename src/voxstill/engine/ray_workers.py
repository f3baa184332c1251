"""Worker processes under Ray: the actor in the process, and what the driver knows of it and of its stage's pool."""

from __future__ import annotations

import heapq
import itertools
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from voxstill.core.errors import VoxstillError
from voxstill.core.metrics.figures import ModelFigures
from voxstill.engine.retry import ChunkPart, Failure, model_figures, open_work
from voxstill.engine.stage import Stage, StageWork
from voxstill.engine.stage_clock import StageLoad

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class CallStatus:
    """How a call went, apart from its payload: the driver fetches this alone."""

    failure: Failure | None
    figures: ModelFigures | None = None


class WorkerActor:
    """The process of one worker: as many calls at a time as its stage takes, started in the order they were made."""

    def __init__(self, num_threads: int) -> None:
        os.environ.update(dict.fromkeys(THREADS, str(num_threads)))  # before `open` imports numpy or torch

    def open(self, name: str, work: StageWork) -> VoxstillError | None:
        """Open the work of the stage `name`; return the error where it cannot be opened."""
        self._work = work
        try:
            open_work(name, work)
        except VoxstillError as error:
            return error
        return None

    def call(self, items: Sequence[Any], payload: object) -> tuple[CallStatus, object]:
        """Work on items; return the status and the payload as two objects of Ray, so that no payload is fetched."""
        result: object = None
        failure: Failure | None = None
        figures: ModelFigures | None = None
        try:
            result = self._work(items, payload)
            figures = model_figures(self._work)
        except Exception as error:  # any exception at all, also one that cannot be pickled, travels as its text
            failure = Failure.of(error)
        return CallStatus(failure, figures), result

    def close(self) -> None:
        """Close the work."""
        self._work.close()


@dataclass(slots=True, eq=False)
class Call:
    """A part of a chunk that a worker was called with."""

    part: ChunkPart
    status: Future[CallStatus]
    payload: object  # an ObjectRef
    since_s: float | None = None
    """When its lease started; None while it waits behind others."""

    @property
    def has_succeeded(self) -> bool:
        """Whether its answer has arrived and is not a failure."""
        return self.status.done() and self.status.exception() is None and self.status.result().failure is None

    def is_overdue(self, now_s: float, lease_s: float) -> bool:
        """Whether it has been worked on for longer than a lease."""
        return self.since_s is not None and now_s - self.since_s > lease_s


@dataclass(slots=True, eq=False)
class Worker:
    """A worker process, as the driver knows it."""

    pool: WorkerPool
    stage: Stage
    actor: Any
    num_cpus: float
    """Those it reserves."""
    since_s: float
    """When it was started."""
    is_ready: bool = False
    is_draining: bool = False
    """It finishes what it holds and gets nothing more."""
    closing_since_s: float | None = None
    """Since when it closes its work: nothing is left that it holds."""
    calls: deque[Call] = field(default_factory=deque)
    turn: int = 0
    """When it was started or last called, counted in calls of its pool."""
    num_failures: int = 0
    """Calls that failed since the last that did not."""

    @property
    def is_canary(self) -> bool:
        """Whether its work is new and has not worked on a chunk yet."""
        return self is self.pool.canary

    def start_leases(self) -> None:
        """Begin the lease of each call that it can work on from now."""
        for call in itertools.islice(self.calls, self.stage.calls):
            call.since_s = call.since_s or time.monotonic()

    def has_room(self, part: ChunkPart, in_flight: int) -> bool:
        """Whether it may be called with one more part."""
        gets_one = part.alone or any(call.part.alone for call in self.calls) or self.is_canary
        max_chunks = 1 if gets_one else self.stage.max_chunks(in_flight)
        return self.is_ready and not self.is_draining and len(self.calls) < max_chunks


@dataclass(slots=True, eq=False)
class WorkerPool:
    """The workers of one stage and the parts that wait for them, each with the payload of the stage before."""

    stage: Stage
    index: int
    """The place of the stage among the stages."""
    size: int = 0
    workers: dict[Worker, None] = field(default_factory=dict)
    """In the order in which they were started."""
    queue: deque[tuple[ChunkPart, object]] = field(default_factory=deque)
    has_started: bool = False
    """Whether a worker with the work of `stage` was ever ready."""
    num_bad_starts: int = 0
    """Workers that failed to start since the last that did."""
    canary: Worker | None = None
    """The one worker with another work than that of `stage`, until that has worked on a chunk."""
    num_held: int = 0
    """Workers of `size` that are not started while there is a canary."""
    _turns: Iterator[int] = field(default_factory=itertools.count)
    _free: list[tuple[int, int, Worker]] = field(default_factory=list)
    """A heap of workers by the number of their calls, then by their turn; an entry that is no longer true is stale."""

    def add(self, worker: Worker) -> None:
        """Take a new worker into the pool."""
        self.workers[worker] = None
        worker.turn = next(self._turns)

    def offer(self, worker: Worker) -> None:
        """Note that a worker is ready or has answered a call, so that it may have room."""
        heapq.heappush(self._free, (len(worker.calls), worker.turn, worker))

    def offer_all(self) -> None:
        """Note every worker again, whatever has changed."""
        self._free = [(len(worker.calls), worker.turn, worker) for worker in self.workers if worker.is_ready]
        heapq.heapify(self._free)

    def take(self, part: ChunkPart, in_flight: int) -> Worker | None:
        """The worker that a part is for: of those with the fewest calls the one called longest ago; None without room.

        It counts as called. Whoever gets no part now is offered again once it has answered.
        """
        while self._free:
            num_calls, turn, worker = self._free[0]
            is_true = worker in self.workers and (len(worker.calls), worker.turn) == (num_calls, turn)
            if is_true and num_calls and part.alone:
                return None  # it waits for an idle one, and others need not
            heapq.heappop(self._free)
            if is_true and worker.has_room(part, in_flight):
                worker.turn = next(self._turns)
                return worker
        return None

    @property
    def active(self) -> list[Worker]:
        """The workers with the work of `stage` that are not being drained."""
        return [worker for worker in self.workers if not worker.is_draining and not worker.is_canary]

    @property
    def load(self) -> StageLoad:
        """What its workers do now, and what waits for them."""
        ready = [worker for worker in self.workers if worker.is_ready]
        num_ready = sum(worker.stage.calls for worker in ready)
        num_workers = max(self.size * self.stage.calls, num_ready)
        num_calls = sum(len(worker.calls) for worker in ready)
        num_working = sum(min(len(worker.calls), worker.stage.calls) for worker in ready)
        return StageLoad(
            num_workers=num_workers,
            num_starting=num_workers - num_ready,
            num_working=num_working,
            num_queued=len(self.queue) + num_calls - num_working,
        )
