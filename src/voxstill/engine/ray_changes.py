"""Changes of a run under Ray: a new work is tried by one worker, the canary, before the others are drained for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from voxstill.core.errors import ConfigError, VoxstillError
from voxstill.engine import ray_cluster
from voxstill.engine.ray_pools import WorkerPools
from voxstill.engine.ray_workers import Worker, WorkerPool
from voxstill.engine.retry import ChunkPart, Failure, RetryTracker, canary_error
from voxstill.engine.stage import Change, Changes, Stage


class RayChanges:
    """The change that is being made, if any. `requeue` takes back the parts that a canary held."""

    def __init__(
        self,
        changes: Changes,
        workers: WorkerPools,
        tracker: RetryTracker,
        requeue: Callable[[Sequence[ChunkPart]], None],
    ) -> None:
        self._changes, self._workers, self._tracker, self._requeue = changes, workers, tracker, requeue
        self._change: Change | None = None

    def poll(self) -> None:
        """Begin to make the change that is waiting, where there is one."""
        change = self._changes.poll()
        if change is None:
            return
        ray = self._workers.ray
        try:
            sizes = ray_cluster.num_workers(ray, change.stages)
            ray_cluster.cpu_share(ray, change.stages, sizes)
            ray_cluster.check_growth(ray, sum(sizes), sum(pool.size for pool in self._workers.pools))
        except ConfigError as error:
            self._changes.rejected(error)
            return
        self._change = change
        for pool, stage in zip(self._workers.pools, change.stages, strict=True):
            if pool.canary is not None and pool.canary.stage.work != stage.work:
                self._end_canary(pool)
            if pool.canary is None and pool.stage.work != stage.work:
                self._start_canary(pool, stage)
        self._apply()

    def _start_canary(self, pool: WorkerPool, stage: Stage) -> None:
        """Start a worker with another work, beside the others where there is a GPU for it, else in the place of one."""
        if not pool.workers:
            pool.num_held = pool.size  # the run has not started: what it started with is opened only where this fails
        elif not ray_cluster.is_free(self._workers.ray, stage.reserved):
            pool.num_held = 1
        pool.num_bad_starts = 0
        pool.canary = self._workers.start(pool, stage)

    def _end_canary(self, pool: WorkerPool) -> None:
        """Kill the canary; what it held is queued again as if it had never been given to it."""
        assert pool.canary is not None
        worker, pool.canary, pool.num_held, pool.num_bad_starts = pool.canary, None, 0, 0
        calls, worker.calls = worker.calls, deque()
        self._requeue([call.part for call in calls])
        self._workers.kill(worker)

    def on_bad_start(self, worker: Worker, error: BaseException) -> None:
        """A canary did not start: start it once more where that may help, else reject the change."""
        pool = worker.pool
        may_help = bool(worker.stage.num_gpus) or not isinstance(error, VoxstillError)
        if may_help and pool.num_bad_starts < self._workers.cfg.attempts:
            self._workers.kill(worker)
            pool.canary = self._workers.start(pool, worker.stage)
            return
        self.reject(error)

    def reject(self, cause: BaseException | Failure) -> None:
        """Make nothing of a change of which one canary has failed."""
        error = canary_error(cause)
        self._workers.check_node(error.why or error.what)
        for pool in self._workers.pools:
            if pool.canary is not None:
                self._end_canary(pool)
        self._changes.rejected(error)

    def promote(self, pool: WorkerPool) -> None:
        """The canary has worked on a chunk: its work is that of the stage from now on, and the others are drained."""
        assert pool.canary is not None
        before = pool.active
        pool.stage, pool.canary, pool.num_held = pool.canary.stage, None, 0
        pool.has_started, pool.num_bad_starts = True, 0
        for worker in before:
            self._workers.drain(worker)
        self._apply()

    def _apply(self) -> None:
        """Make what is left of the change, once there is no canary any more."""
        if self._change is None or any(pool.canary for pool in self._workers.pools):
            return
        try:
            self._workers.resize(self._change.stages)
        except ConfigError as error:
            self._changes.rejected(error)
            return
        self._workers.cfg = self._change.cfg
        self._tracker.attempts = self._change.cfg.attempts
        self._workers.fill_all()  # at once, as the next look at all workers may be seconds away
        self._changes.applied(self._change.stages)
