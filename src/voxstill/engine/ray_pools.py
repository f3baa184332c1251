"""The worker processes of all stages: started, drained, killed, replaced, and how much of the cluster each reserves."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from voxstill.core.config import Engine
from voxstill.core.errors import ClusterError, VoxstillError
from voxstill.core.monitor import log
from voxstill.engine import ray_cluster
from voxstill.engine.ray_workers import Worker, WorkerActor, WorkerPool
from voxstill.engine.retry import RetryTracker
from voxstill.engine.stage import Stage

EVENT_WAIT_S = 0.2
PENDING_LIMIT_S = 10.0
"""A worker that is still not ready by then may wait for CPUs that are gone."""
START_LIMIT_S = 1800.0
"""A large model may take minutes to load; a stage of which nothing has started by then never will."""
CLOSE_LIMIT_S = 10.0
LEAST_CPUS = 1e-4
"""As few as Ray can count."""


class Events:
    """What is to happen in the driver's thread once a future is done."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def when_done(self, future: Future[Any], event: Callable[[], None]) -> None:
        """Call `event` in the driver's thread once the future is done."""
        future.add_done_callback(lambda _: self._queue.put(event))

    def handle(self) -> None:
        """Wait for one event, at most `EVENT_WAIT_S`, then handle all that are there."""
        try:
            event = self._queue.get(timeout=EVENT_WAIT_S)
            while True:
                event()
                event = self._queue.get_nowait()
        except queue.Empty:
            pass


class WorkerPools:
    """One pool for each stage. `on_open(worker, future)` is called once a worker has tried to open its work."""

    def __init__(
        self,
        stages: Sequence[Stage],
        cfg: Engine,
        tracker: RetryTracker,
        on_open: Callable[[Worker, Future[VoxstillError | None]], None],
    ) -> None:
        self.ray = ray_cluster.start_ray(cfg)
        self.cfg, self.events = cfg, Events()
        self._tracker, self._on_open = tracker, on_open
        self.pools = [WorkerPool(stage, index) for index, stage in enumerate(stages)]
        self.resize(stages)

    @property
    def workers(self) -> list[Worker]:
        """The workers of all stages."""
        return [worker for pool in self.pools for worker in pool.workers]

    @property
    def max_chunks(self) -> int:
        """The most chunks that are under way at a time."""
        return sum(pool.size * pool.stage.max_chunks(self.cfg.in_flight) for pool in self.pools)

    def resize(self, stages: Sequence[Stage]) -> None:
        """Set how many workers each stage has; ConfigError if they want more GPUs than there are."""
        sizes = ray_cluster.num_workers(self.ray, stages)
        self._cpu_share = ray_cluster.cpu_share(self.ray, stages, sizes)
        for pool, stage, size in zip(self.pools, stages, sizes, strict=True):
            pool.stage, pool.size = stage, size

    def fill_all(self) -> None:
        """Start and drain the workers of all pools, and offer them to the parts that wait, whatever has changed."""
        for pool in self.pools:
            self.fill(pool)
            pool.offer_all()

    def fill(self, pool: WorkerPool) -> None:
        """Start workers, or drain those that have least to do, until the pool has as many as it is to have."""
        active, size = pool.active, pool.size - pool.num_held
        for _ in range(size - len(active)):
            self.start(pool, pool.stage)
        active.sort(key=lambda worker: (worker.is_ready, len(worker.calls)))
        for worker in active[: max(0, len(active) - size)]:
            self.drain(worker)

    def start(self, pool: WorkerPool, stage: Stage) -> Worker:
        """Start a worker with the work of `stage`."""
        num_cpus = self._cpus_for(stage)
        actor_class = self.ray.remote(WorkerActor).options(
            num_cpus=num_cpus,
            num_gpus=stage.num_gpus,
            resources=dict(stage.resources),
            max_concurrency=stage.calls,
            max_restarts=0,
            max_task_retries=0,
        )
        worker = Worker(pool, stage, actor_class.remote(max(1, int(stage.num_cpus))), num_cpus, time.monotonic())
        pool.add(worker)
        opened = worker.actor.open.remote(stage.name, stage.work).future()
        self.events.when_done(opened, lambda: self._on_open(worker, opened))
        return worker

    def _cpus_for(self, stage: Stage) -> float:
        """What a worker of the stage reserves: its share, or next to nothing if others have all.

        Else one that is started for a run that has grown would wait for those that it is to help.
        """
        num_cpus = stage.num_cpus * self._cpu_share
        free = self.ray.cluster_resources().get("CPU", 0) - sum(worker.num_cpus for worker in self.workers)
        return int(num_cpus * 1e4) / 1e4 if num_cpus <= free else LEAST_CPUS  # Ray counts in such steps

    def drain(self, worker: Worker) -> None:
        """End a worker as soon as it has finished what it holds."""
        worker.is_draining = True
        if worker.calls or worker.closing_since_s is not None:
            return
        if not worker.is_ready:
            self.kill(worker)
            return
        worker.closing_since_s = time.monotonic()
        closed = worker.actor.close.remote().future()
        self.events.when_done(closed, lambda: self.kill(worker))

    def kill(self, worker: Worker) -> None:
        """End the process of a worker, whatever it does."""
        if worker in worker.pool.workers:
            del worker.pool.workers[worker]
            self.ray.kill(worker.actor)

    def replace(self, worker: Worker, reason: str) -> None:
        """Kill a worker and start another in its place; ClusterError if the driver's own node is lost."""
        self.check_node(reason)
        log.warning("a worker of `%s` is replaced: %s", worker.stage.name, reason)
        self._tracker.num_restarts += 1
        self.kill(worker)
        self.fill(worker.pool)

    def check_node(self, reason: str) -> None:
        """ClusterError if what died is the node that this process belongs to."""
        own_id = self.ray.get_runtime_context().get_node_id()
        if any(node["NodeID"] == own_id and not node["Alive"] for node in self.ray.nodes()):
            raise ClusterError(  # workers of a dead owner are ended, and those it still asks for never start
                "the cluster has lost the node that this run is attached to",
                code="cluster-lost",
                why=f"the cluster therefore counts this process as dead: {reason}",
                fix="the same command resumes where this one stopped",
            )

    def check_limits(self) -> None:
        """Kill what closes for too long, replace what waits for lost CPUs; VoxstillError if nothing starts."""
        now_s = time.monotonic()
        for worker in self.workers:
            if worker.closing_since_s is not None and now_s - worker.closing_since_s > CLOSE_LIMIT_S:
                self.kill(worker)
        self._replace_pending(now_s)
        for pool in self.pools:
            waited_s = max((now_s - worker.since_s for worker in pool.workers), default=0.0)
            if not any(worker.is_ready for worker in pool.workers) and waited_s > START_LIMIT_S:
                free = self.ray.available_resources()
                raise VoxstillError(
                    f"no worker of the stage `{pool.stage.name}` has started within {START_LIMIT_S:.0f} s",
                    code="too-few-resources",
                    why=f"each needs {pool.stage.num_cpus * self._cpu_share:g} CPUs and {pool.stage.num_gpus:g} GPUs, "
                    f"and {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free",
                    fix="free or add machines, or lower `engine.workers` or `engine.teachers`",
                )

    def _replace_pending(self, now_s: float) -> None:
        """Start workers for less that wait for CPUs which the cluster has no more, because a node died."""
        pending = [
            worker
            for worker in self.workers
            if not worker.is_ready
            and not worker.is_canary
            and worker.num_cpus > LEAST_CPUS
            and now_s - worker.since_s > PENDING_LIMIT_S
        ]
        if not pending:
            return
        if sum(worker.num_cpus for worker in self.workers) > self.ray.cluster_resources().get("CPU", 0):
            for worker in pending:
                self.replace(worker, "the cluster has fewer CPUs than before, and the worker waits for one")

    def close(self) -> None:
        """Let all workers close their work, for at most `CLOSE_LIMIT_S`."""
        open_workers = [worker for worker in self.workers if worker.is_ready and worker.closing_since_s is None]
        closing = [worker.actor.close.remote() for worker in open_workers]
        self.ray.wait(closing, num_returns=len(closing), timeout=CLOSE_LIMIT_S)

    def kill_all(self) -> None:
        """End all worker processes."""
        for worker in self.workers:
            self.ray.kill(worker.actor)
