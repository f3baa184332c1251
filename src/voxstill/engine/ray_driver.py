"""The engine under Ray: the driver hands parts of chunks to workers, keeps the lease of every call, and commits.

None of Ray's own retries are used: after the loss of a node they can wait for ever, so the driver ends what overstays
its lease and queues it again.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from voxstill.core import world
from voxstill.core.config import Engine
from voxstill.core.errors import VoxstillError
from voxstill.engine.ray_changes import RayChanges
from voxstill.engine.ray_pools import START_LIMIT_S, WorkerPools
from voxstill.engine.ray_workers import Call, CallStatus, Worker, WorkerPool
from voxstill.engine.retry import (
    ChunkPart,
    Failure,
    FailureKind,
    OpenChunk,
    RetryTracker,
    describe,
    log_stopping,
)
from voxstill.engine.stage import Changes, Chunk, Stage

STOP_LIMIT_S = 20.0
"""After a signal, what is under way may take this long: Kubernetes and Slurm kill after 30 s."""
COMMIT_THREADS = 8
LOOK_SHARE = 0.1
"""About so much of its time the driver looks at all workers at most: of thousands it would after every event."""


class RayRun:
    """One run under Ray. Everything happens in one thread; answers come in as events of one queue."""

    def __init__(
        self,
        stages: Sequence[Stage],
        commit: Callable[[Chunk, list[Any]], None],
        cfg: Engine,
        tracker: RetryTracker,
        changes: Changes | None,
    ) -> None:
        self._commit, self._tracker = commit, tracker
        self._workers = WorkerPools(stages, cfg, tracker, self._on_open)
        self._ray, self._pools, self._events = self._workers.ray, self._workers.pools, self._workers.events
        self._changes = None if changes is None else RayChanges(changes, self._workers, tracker, self._requeue)
        self._num_committing = 0
        self._due_s = 0.0
        self._threads = ThreadPoolExecutor(COMMIT_THREADS, thread_name_prefix="commit")

    def run(self, chunks: Iterator[Chunk]) -> None:
        """Work on every chunk and commit it; end all workers."""
        with world.Signals(log_stopping) as signals:
            try:
                self._work(chunks, signals)
                self._workers.close()
            finally:
                self._workers.kill_all()
                self._threads.shutdown(cancel_futures=True)
        if signals.caught:
            raise self._tracker.interrupted(signals.caught)

    def _work(self, chunks: Iterator[Chunk], signals: world.Signals) -> None:
        """Go on until all is committed or, after a signal, what the workers have in hand."""
        while not signals.caught:
            if self._changes is not None:
                self._changes.poll()
            start_s = time.monotonic()
            is_due = start_s >= self._due_s
            if is_due:
                self._workers.fill_all()
            for chunk in itertools.islice(chunks, max(0, self._workers.max_chunks - self._tracker.num_open)):
                self._pools[0].queue.append((self._tracker.open_chunk(chunk), None))
            if not self._tracker.num_open:
                return
            self._dispatch()
            if is_due:
                loads = {pool.stage.name: pool.load for pool in self._pools}
                self._tracker.clock.update(loads, is_full=self._tracker.num_open >= self._workers.max_chunks)
                self._due_s = time.monotonic() + (time.monotonic() - start_s) / LOOK_SHARE
            self._events.handle()
            if is_due:  # after the events: answers that are there already are not late
                self._check_leases()
                self._workers.check_limits()
        deadline_s = time.monotonic() + STOP_LIMIT_S
        while time.monotonic() < deadline_s and (
            self._num_committing or any(worker.calls for worker in self._workers.workers)
        ):
            self._events.handle()

    def _dispatch(self) -> None:
        """Hand the parts that wait to the workers with the fewest calls."""
        in_flight = self._workers.cfg.in_flight
        for pool in self._pools:
            while pool.queue and (worker := pool.take(pool.queue[0][0], in_flight)) is not None:
                self._call(worker, *pool.queue.popleft())

    def _call(self, worker: Worker, part: ChunkPart, payload: object) -> None:
        status, result = worker.actor.call.options(num_returns=2).remote(part.items, payload)
        call = Call(part, status.future(), result)
        worker.calls.append(call)
        worker.pool.offer(worker)
        worker.start_leases()
        self._events.when_done(call.status, lambda: self._on_answer(worker, call))

    # ---------------------------------------------------------------------------------------- events

    def _on_open(self, worker: Worker, opened: Future[VoxstillError | None]) -> None:
        pool = worker.pool
        if worker not in pool.workers:  # it was ended meanwhile
            return
        error = opened.exception() or opened.result()
        if error is None:
            worker.is_ready = True
            pool.has_started = pool.has_started or not worker.is_canary
            pool.num_bad_starts = 0
            pool.offer(worker)
            return
        pool.num_bad_starts += 1
        if worker.is_canary:
            assert self._changes is not None
            self._changes.on_bad_start(worker, error)
            return
        # What started before may start again: a GPU is not always free at once after its process was killed.
        may_help = pool.has_started or not isinstance(error, VoxstillError)
        if may_help and pool.num_bad_starts < self._workers.cfg.attempts:
            self._workers.replace(worker, describe(error))
        elif isinstance(error, VoxstillError):
            raise error
        else:
            raise VoxstillError(
                f"the stage `{pool.stage.name}` cannot start",
                code="worker-cannot-start",
                why=f"its worker died {pool.num_bad_starts} times while starting: {describe(error)}",
                fix="check the free memory; `--set engine.name=inline` shows what happens",
            )

    def _on_answer(self, worker: Worker, call: Call) -> None:
        if call not in worker.calls:  # its worker was given up meanwhile
            return
        error = call.status.exception()
        if worker.is_canary:
            assert self._changes is not None
            cause = error or call.status.result().failure
            if cause is not None:
                self._changes.reject(cause)
                return
            self._changes.promote(worker.pool)
        if error is not None and not self._is_call_error(error):
            self._on_death(worker, error)
            return
        worker.calls.remove(call)
        worker.pool.offer(worker)
        worker.start_leases()
        if worker.is_draining:
            self._workers.drain(worker)
        status = call.status.result() if error is None else CallStatus(self._result_lost(error))
        if status.figures is not None:
            self._tracker.clock.record_model(worker.stage.name, status.figures)
        if status.failure is not None:
            self._on_failure(worker, call.part, status.failure)
            return
        worker.num_failures = 0
        self._pass_on(worker.pool, call)

    def _on_failure(self, worker: Worker, part: ChunkPart, failure: Failure) -> None:
        """Charge an attempt to the part; replace a worker that fails again and again."""
        if failure.error is not None:
            if not worker.is_draining:
                raise failure.error
            self._requeue([part])  # the workers that replace this one may fare better
            return
        self._settle(part, self._tracker.record_failure(part, failure))
        worker.num_failures += 1
        if worker.num_failures >= self._workers.cfg.attempts:
            # a broken process (a CUDA error stays) would fail all it is given
            lost = self._give_up(worker, f"its last {worker.num_failures} calls failed")
            self._requeue([call.part for call in lost])

    def _is_call_error(self, error: BaseException) -> bool:
        """Whether the call alone failed (its answer cannot be pickled, its payload is lost), not the worker."""
        kinds = self._ray.exceptions
        return isinstance(error, (kinds.RayTaskError, kinds.ObjectLostError))

    def _result_lost(self, error: BaseException) -> Failure:
        """Why an answer did not come through, in words that are the same each time: Ray's own hold process ids."""
        if isinstance(error, self._ray.exceptions.RayTaskError):
            return Failure(FailureKind.RESULT_LOST, describe(getattr(error, "cause", None) or error))
        return Failure(FailureKind.RESULT_LOST, f"its payload was lost ({type(error).__name__})")

    def _pass_on(self, pool: WorkerPool, call: Call) -> None:
        """Hand the payload to the next stage, or take the rows from the last."""
        if pool is not self._pools[-1]:
            self._pools[pool.index + 1].queue.append((call.part, call.payload))
            return
        try:
            rows = self._ray.get(call.payload, timeout=self._workers.cfg.lease_s)
        except self._ray.exceptions.RayError as error:
            todo = self._tracker.record_failure(call.part, self._result_lost(error))
        else:
            todo = self._tracker.record_rows(call.part, rows)
        self._settle(call.part, todo)

    def _settle(self, part: ChunkPart, todo: list[ChunkPart]) -> None:
        """Go on with what is left of a part; commit its chunk where nothing is."""
        self._requeue(todo)
        if part.parent.num_missing == 0:
            self._num_committing += 1
            committed = self._threads.submit(self._commit, part.parent.chunk, part.parent.rows)
            self._events.when_done(committed, lambda: self._on_commit(part.parent, committed))

    def _requeue(self, parts: Sequence[ChunkPart]) -> None:
        """Let parts start over at the first stage, before any new chunk."""
        self._pools[0].queue.extendleft((part, None) for part in reversed(parts))

    def _on_commit(self, parent: OpenChunk, committed: Future[None]) -> None:
        self._num_committing -= 1
        committed.result()
        self._tracker.record_commit(parent)

    # ---------------------------------------------------------------------------------------- deaths and leases

    def _on_death(self, worker: Worker, error: BaseException) -> None:
        """Charge an attempt to the one call that was there; whatever may be deadly is tried again alone.

        Among several calls there is no telling: the answers of those that were through may have died with the process.
        """
        lost = self._give_up(worker, describe(error))
        self._suspect([call.part for call in lost], Failure(FailureKind.DIED, "its worker died"))

    def _suspect(self, parts: list[ChunkPart], failure: Failure) -> None:
        """Charge an attempt where there is but one part; where there are more, try each again alone."""
        todo = self._tracker.record_failure(parts[0], failure) if len(parts) == 1 else parts
        for part in parts[:1]:
            self._settle(part, [replace(suspect, alone=True) for suspect in todo])

    def _give_up(self, worker: Worker, reason: str) -> list[Call]:
        """Replace a worker; return the calls that it had not answered, oldest first."""
        calls, worker.calls = worker.calls, deque()
        self._workers.replace(worker, reason)
        unanswered = []
        for call in calls:
            if call.has_succeeded:
                self._pass_on(worker.pool, call)  # its event, still on the way, will be ignored
            else:
                unanswered.append(call)
        return unanswered

    def _check_leases(self) -> None:
        """Give up each worker of which a call overstays its lease, and a canary that does not start."""
        now_s, lease_s = time.monotonic(), self._workers.cfg.lease_s
        for worker in self._workers.workers:
            if worker.is_canary and not worker.is_ready and now_s - worker.since_s > START_LIMIT_S:
                assert self._changes is not None
                self._changes.reject(
                    VoxstillError(f"it has not started within {START_LIMIT_S:.0f} s", code="change-refused")
                )
            if not any(call.is_overdue(now_s, lease_s) for call in worker.calls):
                continue
            reason = f"no answer within the time limit of {lease_s:g} s, `engine.lease_s`"
            if worker.is_canary:
                assert self._changes is not None
                self._changes.reject(VoxstillError(reason, code="change-refused"))
                continue
            lost = self._give_up(worker, reason)
            self._requeue([call.part for call in lost if call.since_s is None])
            begun = [call.part for call in lost if call.since_s is not None]
            self._suspect(begun, Failure(FailureKind.TIMED_OUT, reason))
