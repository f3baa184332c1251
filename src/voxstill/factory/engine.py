"""Each item ends in exactly one committed row, whatever raises, hangs or dies: `run` is under every distributed step.

A chunk is the unit of work, of retry and of output. It passes through the stages in order, each with workers of its
own, and its rows are committed in one call. The rules of retry (`_Ledger`) are the same for both engines: `inline` runs
the stages in this process, `ray` in actors. Only this module and `train/cluster.py` know Ray. It uses none of Ray's own
retries: after the loss of a node they can wait for ever, so every call has a lease that the driver keeps.
"""

from __future__ import annotations

import itertools
import os
import queue
import re
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from voxstill import world
from voxstill.config import Engine
from voxstill.errors import ClusterError, ConfigError, Interrupted, TeacherError, VoxstillError
from voxstill.monitor import Summary, log
from voxstill.records import fingerprint

Work = Callable[[Sequence[Any], Any], Any]
"""Items and the payload of the stage before it (None for the first) in, payload out; the last stage's payload is one
row for each item, in order. Arrays in a payload arrive read-only. A `close()` is called, where there is one, at the
end."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TICK_S = 0.2
JOIN_LIMIT_S = 10.0
HOMELESS_S = 10.0
"""A worker that is still not ready by then may wait for CPUs that are gone."""
START_LIMIT_S = 1800.0
"""A large model may take minutes to load; a stage of which nothing has started by then never will."""
CLOSE_LIMIT_S = 10.0
STOP_LIMIT_S = 20.0
"""After a signal, what is under way may take this long: Kubernetes and Slurm kill after 30 s."""
COMMITTERS = 8
HOPELESS_ITEMS = 16
"""So many items set aside and not one that worked: the fault is not in the items."""
REASON_CHARS = 500
SPARE_CPUS = 0.01
"""Share of the CPUs that no worker reserves at the start, so that those hired later find a little everywhere."""
LEAST_CPUS = 1e-4
"""As few as Ray can count."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Items that are worked on, retried and committed together; the id depends on what is in it, not on the order."""

    id: str
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One kind of work: `make` is pickled, and called once in each of `workers` processes to build the work."""

    name: str
    make: Callable[[], Work]
    workers: int | None = None
    """None takes as many as fit: by GPUs where each wants some, else one for each core of the cluster."""
    num_cpus: float = 1
    num_gpus: float = 0
    calls: int = 1
    """Calls that one work takes at once, from threads of their own; the inline engine makes one after the other."""

    def room(self, in_flight: int) -> int:
        """Chunks that one worker is given: those it works on, and those that wait with their payload."""
        return in_flight + self.calls - 1


class Changes(Protocol):
    """What somebody wants changed in a run that is under way; asked and told in the thread of the run."""

    def wanted(self) -> tuple[Sequence[Stage], Engine] | None:
        """Stages and limits as they shall be from now on, once for each change; None where there is none. At once."""
        ...

    def taken(self, stages: Sequence[Stage]) -> None:
        """These are at work from now on."""
        ...

    def refused(self, error: VoxstillError) -> None:
        """Why the change was not made: the run goes on as before."""
        ...


def chunk_id(ids: Iterable[str]) -> str:
    """Equal sets of ids give equal chunk ids, in whatever order they come."""
    return fingerprint(sorted(ids))


def chunks_of(items: Iterable[Any], size: int, key: Callable[[Any], str]) -> Iterator[Chunk]:
    """The items in their order, each in exactly one chunk of `size` (the last may be smaller); consumed lazily."""
    source = iter(items)
    while some := tuple(itertools.islice(source, size)):
        yield Chunk(chunk_id(map(key, some)), some)


def run(
    chunks: Iterable[Chunk],
    stages: Sequence[Stage],
    commit: Callable[[Chunk, list[Any]], None],
    fail: Callable[[Any, str], Any],
    cfg: Engine,
    on_progress: Callable[[Summary], None] | None = None,
    changes: Changes | None = None,
) -> Summary:
    """Each chunk is committed once, with one row for each of its items in order; the rows do not depend on timing.

    `commit` runs in this process, for several chunks at a time under `ray`. `fail(item, reason)` is the row of an item
    that is set aside because the work on it alone raised, died or took longer than `cfg.lease_s`, `cfg.attempts` times;
    the inline engine survives only the first of these. `chunks` is consumed as workers come free: at most
    `cfg.in_flight` chunks for each worker, and one for each further call that it takes at once, are between it and
    `commit`. `on_progress` is called after each commit.

    `changes` may give a stage another number of workers or another `make`, and other `cfg.attempts`, `cfg.lease_s` and
    `cfg.in_flight`. Workers that are too many finish what they hold. The work of another `make` is on trial until it
    has worked on one chunk: only then do those of before make room, and where it fails they go on with that chunk as if
    nothing had been. The inline engine knows one worker of each stage.

    SIGINT and SIGTERM stop the run: no chunk is begun any more, what the workers have in hand is finished and committed
    within `STOP_LIMIT_S`, the rest is given back, and Interrupted says so. A second signal stops at once.

    Raises what `commit` raises; VoxstillError where a stage cannot start, or where nothing that is tried works. A
    TeacherError of the work ends the run: it says that no other item would fare better.
    """
    source = iter(chunks)
    ledger = _Ledger(cfg.attempts, fail, on_progress)
    first = next(source, None)
    if first is not None:  # a model is not loaded for nothing
        source = itertools.chain([first], source)
        if cfg.name == "inline":
            _Inline(stages, commit, ledger, changes).run(source)
        else:
            _Driver(stages, commit, cfg, ledger, changes).run(source)
    return ledger.summary()


def _last_chunks(name: str) -> None:
    log.warning("%s: no more chunks are begun; once more stops at once", name)


# ---------------------------------------------------------------------------------------------- the rules of retry


@dataclass(slots=True, eq=False)
class _Job:
    """A chunk on its way: its rows so far, and how many are missing."""

    chunk: Chunk
    rows: list[Any]
    num_missing: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch `[start, stop)` of a chunk's items: all of them until the chunk has to be halved."""

    job: _Job
    start: int
    stop: int
    attempt: int = 0
    alone: bool = False
    """To be given to an idle worker that gets nothing else meanwhile, so that there is no doubt whom it kills."""

    @property
    def items(self) -> tuple[Any, ...]:
        return self.job.chunk.items[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class _Staff:
    """Workers of a stage since a moment, and the working time that there was before it."""

    workers: int
    since: float
    before_s: float

    def seconds(self, now: float) -> float:
        """Time in which all of them together could have worked."""
        return self.before_s + self.workers * (now - self.since)


class _Ledger:
    """Rows in equal rows out: each part is answered, tried again, halved, or (one item) set aside with its reason."""

    def __init__(
        self, attempts: int, fail: Callable[[Any, str], Any], on_progress: Callable[[Summary], None] | None
    ) -> None:
        self.attempts, self._fail, self._on_progress = attempts, fail, on_progress
        self._start = time.monotonic()
        self._staff: dict[str, _Staff] = {}
        self._busy_s: dict[str, float] = {}
        self._chunks = self._items = self._set_aside = self._worked = self._retries = 0
        self.restarts = 0
        self.num_open = 0

    def staffed(self, stage: Stage, workers: int) -> None:
        """Counts the workers of a stage from now on, by the calls that they take."""
        now = time.monotonic()
        before = self._staff.get(stage.name)
        self._staff[stage.name] = _Staff(workers, now, before.seconds(now) if before else 0.0)
        self._busy_s.setdefault(stage.name, 0.0)

    def opened(self, chunk: Chunk) -> _Part:
        """All of a chunk, to be worked on."""
        self.num_open += 1
        job = _Job(chunk, [None] * len(chunk.items), len(chunk.items))
        return _Part(job, 0, len(chunk.items))

    def answered(self, part: _Part, rows: Any) -> list[_Part]:
        """Takes the rows of a part; what is left to do of it."""
        num_items = part.stop - part.start
        if not isinstance(rows, Sequence) or len(rows) != num_items:
            given = f"{len(rows)} rows" if isinstance(rows, Sequence) else f"a {type(rows).__name__}"
            return self.failed(part, f"the last stage gave {given} for {num_items} items")
        self._worked += num_items
        self._fill(part, rows)
        return []

    def failed(self, part: _Part, reason: str, *, late: bool = False) -> list[_Part]:
        """What to do after a part failed: again, in halves, or nothing more because its one item is set aside.

        A whole chunk and a single item get all attempts; the halves between get one, since their chunk is known to be
        bad and each further try may cost the loading of a model. So does a chunk that was late: if it is the teacher
        that is slow, it would be late again.
        """
        num_items = part.stop - part.start
        self._retries += 1
        again = num_items == 1 or (num_items == len(part.job.rows) and not late)
        attempts = self.attempts if again else 1
        if part.attempt + 1 < attempts:
            return [replace(part, attempt=part.attempt + 1)]
        if num_items > 1:
            middle = part.start + num_items // 2
            log.warning("chunk %s failed (%s); halved at item %d", part.job.chunk.id, reason, middle)
            return [replace(part, stop=middle, attempt=0), replace(part, start=middle, attempt=0)]
        self._set_aside += num_items
        if self._set_aside >= HOPELESS_ITEMS and not self._worked:
            raise VoxstillError(
                f"the first {self._set_aside} items all failed",
                why=reason,
                fix="the fault is in the setting-up, not in the items: mend it and run again",
            )
        self._fill(part, [self._fail(item, reason) for item in part.items])
        return []

    def worked(self, stage: Stage, seconds: float) -> None:
        """Counts time in which a worker of the stage was busy."""
        self._busy_s[stage.name] += seconds

    def committed(self, job: _Job) -> None:
        """Counts a chunk that is safe."""
        self.num_open -= 1
        self._chunks += 1
        self._items += len(job.rows)
        if self._on_progress is not None:
            self._on_progress(self.summary())

    def interrupted(self, signal_name: str) -> Interrupted:
        """The error that says what a signal has left."""
        return Interrupted(
            f"stopped by {signal_name}",
            why=f"{self._chunks} chunks are safe, {self.num_open} that were under way were given back",
            fix="the same command goes on where this one stopped",
        )

    def summary(self) -> Summary:
        """The counts."""
        return Summary(
            num_chunks=self._chunks,
            num_open=self.num_open,
            num_items=self._items,
            num_set_aside=self._set_aside,
            num_retries=self._retries,
            num_restarts=self.restarts,
            elapsed_s=time.monotonic() - self._start,
            busy=self._busy(),
        )

    def _busy(self) -> dict[str, float]:
        now = time.monotonic()
        return {name: self._busy_s[name] / max(staff.seconds(now), 1e-9) for name, staff in self._staff.items()}

    @staticmethod
    def _fill(part: _Part, rows: Sequence[Any]) -> None:
        part.job.rows[part.start : part.stop] = rows
        part.job.num_missing -= part.stop - part.start


def _open(name: str, make: Callable[[], Work]) -> Work:
    """The work; any failure to build it is an error a user can act on."""
    try:
        return make()
    except VoxstillError:
        raise
    except Exception as error:
        raise VoxstillError(
            f"the stage `{name}` cannot start", why=_reason(error), fix="mend the cause and run again"
        ) from error


def _reason(error: BaseException) -> str:
    """An exception in one line."""
    if isinstance(error, VoxstillError):
        text = f"{error.what}: {error.why}" if error.why else error.what
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:REASON_CHARS]


def _refusal(error: BaseException | str) -> VoxstillError:
    """Why a work that was on trial did not pass."""
    if isinstance(error, VoxstillError):
        return error
    why = error if isinstance(error, str) else _reason(error)
    return VoxstillError("it failed on the first chunk that it was given", why=why, fix="mend the cause and ask again")


# ---------------------------------------------------------------------------------------------- in this process


class _Inline:
    """The state of one run in this process: a work for each stage."""

    def __init__(
        self,
        stages: Sequence[Stage],
        commit: Callable[[Chunk, list[Any]], None],
        ledger: _Ledger,
        changes: Changes | None,
    ) -> None:
        self._stages, self._commit, self._ledger, self._changes = stages, commit, ledger, changes
        self._works: dict[str, Work] = {}

    def run(self, chunks: Iterator[Chunk]) -> None:
        for stage in self._stages:
            self._ledger.staffed(stage, 1)
        try:
            with world.Signals(_last_chunks) as signals:
                for chunk in chunks:
                    whole = self._ledger.opened(chunk)
                    self._work_on(self._tried(whole))
                    self._commit(chunk, whole.job.rows)
                    self._ledger.committed(whole.job)
                    if signals.caught:
                        raise self._ledger.interrupted(signals.caught)
        finally:
            for work in self._works.values():
                _close(work)

    def _tried(self, whole: _Part) -> list[_Part]:
        """What is left to do of a chunk after the works of a change, where there is one, were on trial with it."""
        wanted = self._changes.wanted() if self._changes is not None else None
        if self._changes is None or wanted is None:
            return [whole]
        stages, cfg = wanted
        makes = {stage.name: stage.make for stage in self._stages}
        new: dict[str, Work] = {}
        try:
            for stage in stages:
                if stage.make != makes[stage.name]:
                    new[stage.name] = _open(stage.name, stage.make)
            if new:
                self._open(but=new)
                payload = self._through(whole, self._works | new)
        except Exception as error:
            for work in new.values():
                _close(work)
            self._changes.refused(_refusal(error))
            return [whole]
        for name in new.keys() & self._works.keys():
            _close(self._works[name])
        self._stages, self._works, self._ledger.attempts = stages, self._works | new, cfg.attempts
        self._changes.taken(stages)
        return self._ledger.answered(whole, payload) if new else [whole]

    def _work_on(self, todo: list[_Part]) -> None:
        if todo:
            self._open(but=())
        while todo:
            part = todo.pop()
            try:
                payload = self._through(part, self._works)
            except TeacherError:
                raise
            except Exception as error:
                todo += self._ledger.failed(part, _reason(error))
            else:
                todo += self._ledger.answered(part, payload)

    def _open(self, but: Container[str]) -> None:
        for stage in self._stages:
            if stage.name not in self._works and stage.name not in but:
                self._works[stage.name] = _open(stage.name, stage.make)

    def _through(self, part: _Part, works: Mapping[str, Work]) -> Any:
        payload: Any = None
        for stage in self._stages:
            start = time.perf_counter()
            payload = works[stage.name](part.items, payload)
            self._ledger.worked(stage, time.perf_counter() - start)
        return payload


def _close(work: Work) -> None:
    close = getattr(work, "close", None)
    if close is not None:
        close()


# ---------------------------------------------------------------------------------------------- in actors


class _Host:
    """The worker process of one stage: as many calls at a time as it takes, begun in the order they were made."""

    def __init__(self, num_threads: int) -> None:
        os.environ.update(dict.fromkeys(THREADS, str(num_threads)))  # before `make` brings in numpy or torch

    def open(self, name: str, make: Callable[[], Work]) -> VoxstillError | None:
        try:
            self._work = _open(name, make)
        except VoxstillError as error:
            return error
        return None

    def work(self, items: Sequence[Any], payload: Any) -> tuple[tuple[str | TeacherError | None, float], Any]:
        """(why it failed or None, seconds) and the payload: two objects, so that the driver never fetches a payload."""
        start = time.perf_counter()
        result: Any = None
        reason: str | TeacherError | None = None
        try:
            result = self._work(items, payload)
        except TeacherError as error:
            reason = error
        except Exception as error:  # any exception at all, also one that cannot be pickled, travels as its text
            reason = _reason(error)
        return (reason, time.perf_counter() - start), result

    def close(self) -> None:
        _close(self._work)


@dataclass(slots=True, eq=False)
class _Crew:
    """The workers of one stage and the parts that wait for them, each with the payload of the stage before."""

    stage: Stage
    place: int
    size: int = 0
    workers: list[_Worker] = field(default_factory=list)
    waiting: deque[tuple[_Part, Any]] = field(default_factory=deque)
    has_started: bool = False
    bad_starts: int = 0
    """Workers that failed to start since the last that did."""
    trial: _Worker | None = None
    """The one worker with another work than that of `stage`, until that has worked on a chunk."""
    held: int = 0
    """Places that are not filled while there is a trial."""

    @property
    def staying(self) -> list[_Worker]:
        """The workers of `stage` that are not on their way out."""
        return [worker for worker in self.workers if not worker.leaving and worker is not self.trial]


@dataclass(slots=True, eq=False)
class _Worker:
    crew: _Crew
    stage: Stage
    handle: Any
    num_cpus: float
    """Those it reserves."""
    since: float
    """When its start began."""
    ready: bool = False
    leaving: bool = False
    """It finishes what it holds and gets nothing more."""
    closing: float | None = None
    """Since when it closes its work: nothing is left that it holds."""
    calls: deque[_Call] = field(default_factory=deque)
    failures: int = 0
    """Calls that raised since the last that did not."""

    def begin(self) -> None:
        """Counts the lease of the calls that it can work on from now."""
        for call in itertools.islice(self.calls, self.stage.calls):
            call.since = call.since or time.monotonic()


@dataclass(slots=True, eq=False)
class _Call:
    part: _Part
    status: Future[tuple[str | TeacherError | None, float]]
    payload: Any  # an ObjectRef
    since: float | None = None
    """When it began; None while it waits behind others."""


class _Driver:
    """The state of one run under Ray. Everything happens in one thread; answers come in as events of one queue."""

    def __init__(
        self,
        stages: Sequence[Stage],
        commit: Callable[[Chunk, list[Any]], None],
        cfg: Engine,
        ledger: _Ledger,
        changes: Changes | None,
    ) -> None:
        self._ray = start_ray(cfg)
        self._commit, self._cfg, self._ledger, self._changes = commit, cfg, ledger, changes
        self._wanted = stages, cfg
        self._crews = [_Crew(stage, place) for place, stage in enumerate(stages)]
        self._set_sizes(stages)
        self._num_writing = 0
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(COMMITTERS, thread_name_prefix="commit")

    def run(self, chunks: Iterator[Chunk]) -> None:
        with world.Signals(_last_chunks) as signals:
            try:
                self._work(chunks, signals)
                at_work = [worker for worker in self._all_workers() if worker.ready and worker.closing is None]
                closing = [worker.handle.close.remote() for worker in at_work]
                self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_LIMIT_S)
            finally:
                for worker in self._all_workers():
                    self._ray.kill(worker.handle)
                self._pool.shutdown(cancel_futures=True)
        if signals.caught:
            raise self._ledger.interrupted(signals.caught)

    def _work(self, chunks: Iterator[Chunk], signals: world.Signals) -> None:
        """Until all is committed or, after a signal, what the workers have in hand."""
        while not signals.caught:
            self._look()
            for crew in self._crews:
                self._staff(crew)
            room = sum(crew.size * crew.stage.room(self._cfg.in_flight) for crew in self._crews)
            for chunk in itertools.islice(chunks, max(0, room - self._ledger.num_open)):
                self._crews[0].waiting.append((self._ledger.opened(chunk), None))
            if not self._ledger.num_open:
                return
            self._dispatch()
            self._handle_events()
            self._check_limits()
        deadline = time.monotonic() + STOP_LIMIT_S
        while time.monotonic() < deadline and (self._num_writing or any(w.calls for w in self._all_workers())):
            self._handle_events()

    def _all_workers(self) -> list[_Worker]:
        return [worker for crew in self._crews for worker in crew.workers]

    def _set_sizes(self, stages: Sequence[Stage]) -> None:
        """ConfigError where there are not so many GPUs; then nothing is set."""
        sizes = _sizes(self._ray, stages)
        self._cpu_share = _cpu_share(self._ray, stages, sizes)
        for crew, stage, size in zip(self._crews, stages, sizes, strict=True):
            crew.stage, crew.size = stage, size
            self._ledger.staffed(stage, size * stage.calls)

    def _staff(self, crew: _Crew) -> None:
        """Hires, or lets go those that have least to do, until there are as many as there shall be."""
        staying, size = crew.staying, crew.size - crew.held
        for _ in range(size - len(staying)):
            self._hire(crew, crew.stage)
        staying.sort(key=lambda worker: (worker.ready, len(worker.calls)))
        for worker in staying[: max(0, len(staying) - size)]:
            self._let_go(worker)

    def _hire(self, crew: _Crew, stage: Stage) -> _Worker:
        num_cpus = self._cpus_for(stage)
        actor = self._ray.remote(_Host).options(
            num_cpus=num_cpus,
            num_gpus=stage.num_gpus,
            max_concurrency=stage.calls,
            max_restarts=0,
            max_task_retries=0,
        )
        worker = _Worker(crew, stage, actor.remote(max(1, int(stage.num_cpus))), num_cpus, time.monotonic())
        crew.workers.append(worker)
        opened = worker.handle.open.remote(stage.name, stage.make).future()
        self._when(opened, lambda: self._on_open(worker, opened))
        return worker

    def _cpus_for(self, stage: Stage) -> float:
        """What a worker of the stage reserves: its share, or next to nothing where others have all.

        Else one that is hired for a run that has grown would wait for those that it shall help.
        """
        wanted = stage.num_cpus * self._cpu_share
        free = self._ray.cluster_resources().get("CPU", 0) - sum(worker.num_cpus for worker in self._all_workers())
        return int(wanted * 1e4) / 1e4 if wanted <= free else LEAST_CPUS  # Ray counts in such steps

    def _let_go(self, worker: _Worker) -> None:
        """It ends as soon as it has finished what it holds."""
        worker.leaving = True
        if worker.calls or worker.closing is not None:
            return
        if not worker.ready:
            self._dismiss(worker)
            return
        worker.closing = time.monotonic()
        closed = worker.handle.close.remote().future()
        self._when(closed, lambda: self._dismiss(worker))

    def _dismiss(self, worker: _Worker) -> None:
        """Ends its process, whatever it is at."""
        if worker in worker.crew.workers:
            worker.crew.workers.remove(worker)
            self._ray.kill(worker.handle)

    # ------------------------------------------------------------------------------------------ changes

    def _look(self) -> None:
        """Begins to make the change that is wanted, where there is one."""
        wanted = self._changes.wanted() if self._changes is not None else None
        if self._changes is None or wanted is None:
            return
        try:
            _cpu_share(self._ray, wanted[0], _sizes(self._ray, wanted[0]))
        except ConfigError as error:
            self._changes.refused(error)
            return
        self._wanted = wanted
        for crew, stage in zip(self._crews, wanted[0], strict=True):
            if crew.trial is not None and crew.trial.stage.make != stage.make:
                self._end_trial(crew)
            if crew.trial is None and crew.stage.make != stage.make:
                self._begin_trial(crew, stage)
        self._take()

    def _begin_trial(self, crew: _Crew, stage: Stage) -> None:
        """Hires one with another work, beside the others where there is a GPU for it, else in the place of one."""
        if not crew.workers:
            crew.held = crew.size  # the run has not begun: what it began with is opened only where this fails
        elif stage.num_gpus > self._ray.available_resources().get("GPU", 0):
            crew.held = 1
        crew.bad_starts = 0
        crew.trial = self._hire(crew, stage)

    def _end_trial(self, crew: _Crew) -> None:
        """The work that was on trial is given up, and what it held is queued again as if it had never been given."""
        assert crew.trial is not None
        worker, crew.trial, crew.held, crew.bad_starts = crew.trial, None, 0, 0
        calls, worker.calls = worker.calls, deque()
        self._queue([call.part for call in calls])
        self._dismiss(worker)

    def _refuse(self, error: BaseException | str) -> None:
        """Nothing of a change is made where one of its works fails."""
        refusal = _refusal(error)
        self._check_node(refusal.why or refusal.what)
        for crew in self._crews:
            if crew.trial is not None:
                self._end_trial(crew)
        assert self._changes is not None
        self._changes.refused(refusal)

    def _adopt(self, crew: _Crew) -> None:
        """The work on trial has worked on a chunk: it is that of the stage from now on, and those of before leave."""
        assert crew.trial is not None
        before = crew.staying
        crew.stage, crew.trial, crew.held, crew.has_started, crew.bad_starts = crew.trial.stage, None, 0, True, 0
        for worker in before:
            self._let_go(worker)
        self._take()

    def _take(self) -> None:
        """Makes what is left of the change, once nothing of it is on trial any more."""
        if self._changes is None or any(crew.trial for crew in self._crews):
            return
        stages, cfg = self._wanted
        try:
            self._set_sizes(stages)
        except ConfigError as error:
            self._changes.refused(error)
            return
        self._cfg, self._ledger.attempts = cfg, cfg.attempts
        self._changes.taken(stages)

    # ------------------------------------------------------------------------------------------ calls

    def _when(self, future: Future[Any], event: Callable[[], None]) -> None:
        """`event` happens in the driver's thread once the future is done."""
        future.add_done_callback(lambda _: self._events.put(event))

    def _handle_events(self) -> None:
        """Waits for one event at most a tick, then takes all there are."""
        try:
            event = self._events.get(timeout=TICK_S)
            while True:
                event()
                event = self._events.get_nowait()
        except queue.Empty:
            pass

    def _dispatch(self) -> None:
        """Hands what waits to the workers with the fewest calls."""
        for crew in self._crews:
            while crew.waiting:
                free = [worker for worker in crew.workers if self._has_room(worker, crew.waiting[0][0])]
                if not free:
                    break
                self._call(min(free, key=lambda worker: len(worker.calls)), *crew.waiting.popleft())

    def _has_room(self, worker: _Worker, part: _Part) -> bool:
        alone = part.alone or any(call.part.alone for call in worker.calls) or worker is worker.crew.trial
        room = 1 if alone else worker.stage.room(self._cfg.in_flight)
        return worker.ready and not worker.leaving and len(worker.calls) < room

    def _call(self, worker: _Worker, part: _Part, payload: Any) -> None:
        status, result = worker.handle.work.options(num_returns=2).remote(part.items, payload)
        call = _Call(part, status.future(), result)
        worker.calls.append(call)
        worker.begin()
        self._when(call.status, lambda: self._on_answer(worker, call))

    def _on_open(self, worker: _Worker, opened: Future[VoxstillError | None]) -> None:
        crew = worker.crew
        if worker not in crew.workers:  # it was ended meanwhile
            return
        error = opened.exception() or opened.result()
        if error is None:
            worker.ready = True
            crew.has_started = crew.has_started or worker is not crew.trial
            crew.bad_starts = 0
            return
        crew.bad_starts += 1
        if worker is crew.trial:
            self._on_bad_trial(worker, error)
            return
        # What started before may start again: a GPU is not always free at once after its process was killed.
        again = crew.has_started or not isinstance(error, VoxstillError)
        if again and crew.bad_starts < self._cfg.attempts:
            self._replace(worker, _reason(error))
        elif isinstance(error, VoxstillError):
            raise error
        else:
            raise VoxstillError(
                f"the stage `{crew.stage.name}` cannot start",
                why=f"its worker died {crew.bad_starts} times while starting: {_reason(error)}",
                fix="see whether memory is short; `--set engine.name=inline` shows what happens",
            )

    def _on_bad_trial(self, worker: _Worker, error: BaseException) -> None:
        """A work on trial did not start: once more where that may help, else the run goes on without it."""
        crew, may_help = worker.crew, bool(worker.stage.num_gpus) or not isinstance(error, VoxstillError)
        if may_help and crew.bad_starts < self._cfg.attempts:
            self._dismiss(worker)
            crew.trial = self._hire(crew, worker.stage)
            return
        self._refuse(error)

    def _on_answer(self, worker: _Worker, call: _Call) -> None:
        if call not in worker.calls:  # its worker was given up meanwhile
            return
        error = call.status.exception()
        if worker is worker.crew.trial:
            failure = error or call.status.result()[0]
            if failure is not None:
                self._refuse(failure)
                return
            self._adopt(worker.crew)
        if error is not None and not self._is_of_the_call(error):
            self._on_death(worker, error)
            return
        worker.calls.remove(call)
        worker.begin()
        if worker.leaving:
            self._let_go(worker)
        reason, seconds = call.status.result() if error is None else (self._loss(error), 0.0)
        self._ledger.worked(worker.stage, seconds)
        if isinstance(reason, TeacherError):
            if not worker.leaving:
                raise reason
            self._queue([call.part])  # those that take its place may fare better
            return
        if reason is None:
            worker.failures = 0
            self._pass_on(worker.crew, call)
            return
        self._settle(call.part, self._ledger.failed(call.part, reason))
        worker.failures += 1
        if worker.failures >= self._cfg.attempts:  # a broken process (a CUDA error stays) would fail all it is given
            self._queue([lost.part for lost in self._lose(worker, f"its last {worker.failures} calls failed")])

    def _is_of_the_call(self, error: BaseException) -> bool:
        """Whether the call alone failed (its answer cannot be pickled, its payload is lost), not the worker."""
        kinds = self._ray.exceptions
        return isinstance(error, (kinds.RayTaskError, kinds.ObjectLostError))

    def _loss(self, error: BaseException) -> str:
        """Why an answer did not come through, in words that are the same each time: Ray's own hold process ids."""
        if isinstance(error, self._ray.exceptions.RayTaskError):
            return _reason(getattr(error, "cause", None) or error)
        return f"its payload was lost ({type(error).__name__})"

    def _pass_on(self, crew: _Crew, call: _Call) -> None:
        """Hands the payload to the next stage, or takes the rows from the last."""
        if crew is not self._crews[-1]:
            self._crews[crew.place + 1].waiting.append((call.part, call.payload))
            return
        try:
            rows = self._ray.get(call.payload, timeout=self._cfg.lease_s)
        except self._ray.exceptions.RayError as error:
            todo = self._ledger.failed(call.part, self._loss(error))
        else:
            todo = self._ledger.answered(call.part, rows)
        self._settle(call.part, todo)

    def _settle(self, part: _Part, todo: list[_Part]) -> None:
        """Goes on with what is left of a part; commits its chunk where nothing is."""
        self._queue(todo)
        if part.job.num_missing == 0:
            self._num_writing += 1
            written = self._pool.submit(self._commit, part.job.chunk, part.job.rows)
            self._when(written, lambda: self._on_commit(part.job, written))

    def _queue(self, parts: list[_Part]) -> None:
        """Parts start over at the first stage, before any new chunk."""
        self._crews[0].waiting.extendleft((part, None) for part in reversed(parts))

    def _on_commit(self, job: _Job, written: Future[None]) -> None:
        self._num_writing -= 1
        written.result()
        self._ledger.committed(job)

    def _on_death(self, worker: _Worker, error: BaseException) -> None:
        """Charges an attempt to the one call that was there; whoever may be deadly is tried again alone.

        Among several calls there is no telling: the answers of those that were through may have died with the process.
        """
        self._suspect([call.part for call in self._lose(worker, _reason(error))], "its worker died")

    def _suspect(self, parts: list[_Part], reason: str, *, late: bool = False) -> None:
        """Charges an attempt where there is but one part; where there are more, each is tried again alone."""
        todo = self._ledger.failed(parts[0], reason, late=late) if len(parts) == 1 else parts
        for part in parts[:1]:
            self._settle(part, [replace(each, alone=True) for each in todo])

    def _lose(self, worker: _Worker, reason: str) -> list[_Call]:
        """Gives up a worker; the calls that it had not answered, oldest first."""
        calls, worker.calls = worker.calls, deque()
        self._replace(worker, reason)
        unanswered = []
        for call in calls:
            if call.status.done() and call.status.exception() is None and call.status.result()[0] is None:
                self._pass_on(worker.crew, call)  # its event, still on the way, will be ignored
            else:
                unanswered.append(call)
        return unanswered

    def _check_node(self, reason: str) -> None:
        """ClusterError where what died is the node that this process belongs to."""
        here = self._ray.get_runtime_context().get_node_id()
        if any(node["NodeID"] == here and not node["Alive"] for node in self._ray.nodes()):
            raise ClusterError(  # workers of a dead owner are ended, and those it still asks for never start
                "the cluster has lost the node that this run is attached to",
                why=f"to the cluster this process is dead with it: {reason}",
                fix="the same command goes on where this one stopped",
            )

    def _replace(self, worker: _Worker, reason: str) -> None:
        self._check_node(reason)
        log.warning("a worker of `%s` is replaced: %s", worker.stage.name, reason)
        self._ledger.restarts += 1
        self._dismiss(worker)
        self._staff(worker.crew)

    def _check_limits(self) -> None:
        now = time.monotonic()
        for worker in self._all_workers():
            if worker.closing is not None and now - worker.closing > CLOSE_LIMIT_S:
                self._dismiss(worker)
            if worker is worker.crew.trial and not worker.ready and now - worker.since > START_LIMIT_S:
                self._refuse(VoxstillError(f"it has not started within {START_LIMIT_S:.0f} s"))
            if any(call.since is not None and now - call.since > self._cfg.lease_s for call in worker.calls):
                reason = f"no answer within the time limit of {self._cfg.lease_s:g} s"
                if worker is worker.crew.trial:
                    self._refuse(VoxstillError(reason))
                    continue
                lost = self._lose(worker, reason)
                self._queue([call.part for call in lost if call.since is None])
                self._suspect([call.part for call in lost if call.since is not None], reason, late=True)
        self._replace_homeless(now)
        for crew in self._crews:
            waited_s = max((now - worker.since for worker in crew.workers), default=0.0)
            if not any(worker.ready for worker in crew.workers) and waited_s > START_LIMIT_S:
                free = self._ray.available_resources()
                raise VoxstillError(
                    f"no worker of the stage `{crew.stage.name}` has started within {START_LIMIT_S:.0f} s",
                    why=f"each wants {crew.stage.num_cpus * self._cpu_share:g} CPUs and {crew.stage.num_gpus:g} GPUs, "
                    f"and {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free",
                    fix="free or add machines, or lower `engine.workers` or `engine.teachers`",
                )

    def _replace_homeless(self, now: float) -> None:
        """Workers that wait for CPUs which the cluster has no more, because a node died, are hired for less."""
        late = [
            worker
            for worker in self._all_workers()
            if not worker.ready
            and worker is not worker.crew.trial
            and worker.num_cpus > LEAST_CPUS
            and now - worker.since > HOMELESS_S
        ]
        if late and sum(each.num_cpus for each in self._all_workers()) > self._ray.cluster_resources().get("CPU", 0):
            for worker in late:
                self._replace(worker, "the cluster has fewer CPUs than before, and it waits for one")


def _sizes(ray: Any, stages: Sequence[Stage]) -> list[int]:
    """How many workers each stage has."""
    have = ray.cluster_resources()

    def fitting(stage: Stage) -> int:
        if stage.num_gpus:
            return max(1, int(have.get("GPU", 0) / stage.num_gpus + 1e-6))
        return max(1, int(have.get("CPU", 1)))

    return [stage.workers or fitting(stage) for stage in stages]


def _cpu_share(ray: Any, stages: Sequence[Stage], sizes: Sequence[int]) -> float:
    """The share of the CPUs asked for that a worker reserves, so that all workers fit; GPUs are not shared so."""
    have = ray.cluster_resources()
    wanted = list(zip(stages, sizes, strict=True))
    cpus = sum(size * stage.num_cpus for stage, size in wanted)
    gpus = sum(size * stage.num_gpus for stage, size in wanted)
    if gpus > have.get("GPU", 0):
        raise ConfigError(
            f"the workers want {gpus:g} GPUs and the cluster has {have.get('GPU', 0):g}",
            why=", ".join(f"`{stage.name}`: {size} workers of {stage.num_gpus:g} GPUs" for stage, size in wanted),
            fix="lower `engine.teachers` or `engine.teacher_gpus`",
        )
    return min(1.0, (1 - SPARE_CPUS) * have.get("CPU", 0) / cpus) if cpus else 1.0


def start_ray(cfg: Engine) -> Any:
    """Ray, connected: one cluster for each process, joined or our own.

    Our own listens on the loopback interface only and asks for a token that only this process and its children know.
    """
    settings = {
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else `uv run` ships the working folder
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # a payload that is lost is seen by its status
    }
    if cfg.address is None:
        settings |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: bind to loopback
            "RAY_process_group_cleanup_enabled": "1",  # what a worker has started dies with it, however it dies
        }
    if "ray" not in sys.modules:  # read once, when Ray is imported
        for name, value in settings.items():
            os.environ.setdefault(name, value)
    import ray

    ray._private.worker._worker_logs_enabled = False  # else notices of dead workers go to standard output
    if ray.is_initialized():
        return ray
    own = {
        "num_cpus": world.num_cores(),
        "include_dashboard": False,
        # Ray refuses to start where /dev/shm is small, unless told a size; then it takes files in /tmp.
        "object_store_memory": min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8, 8 << 30),
    }
    try:
        if found := re.fullmatch(r"([^/]+):(\d+)", cfg.address or ""):  # Ray would wait for minutes
            socket.create_connection((found[1].strip("[]"), int(found[2])), JOIN_LIMIT_S).close()
        ray.init(
            address=cfg.address or "local",
            logging_level="ERROR",
            log_to_driver=False,
            **({} if cfg.address else own),
        )
    except Exception as error:
        raise ClusterError(
            f"the Ray cluster `{cfg.address}` cannot be joined" if cfg.address else "Ray cannot start",
            why=_reason(error),
            fix="check `engine.address`, or use `engine: inline`" if cfg.address else "use `engine: inline`",
        ) from error
    return ray


def shutdown() -> None:
    """Ends the cluster this process started, or leaves the one it joined; `run` starts anew."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
