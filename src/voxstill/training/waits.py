"""Where the time of each rank goes: what it computes and what it waits for, in a small file of the experiment.

`data.bottleneck` judges it, at the end of the training for its log and at any time for `voxstill doctor`.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from voxstill.core import cgroup, world
from voxstill.core.atomic import write_atomically
from voxstill.core.config import Train
from voxstill.core.cpu_time import CpuClock, CpuTime
from voxstill.core.errors import DataError
from voxstill.core.monitor import log
from voxstill.core.process import machine
from voxstill.core.result import read
from voxstill.data.bottleneck import Resources, Waits, judge
from voxstill.storage.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from torch import nn

    from voxstill.training.data_source import Data

RECENT_S = 30.0
"""A training is judged by so many seconds while it continues."""
SHARES = ("computing", "core_wait", "read", "decode", "transfer", "prepare", "loader_core_wait")
"""What a line of the metrics has of it, as shares of the time of its steps."""
_WRITE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """What the file of a rank says: where it runs, with what, and its waits, lately and since its process started."""

    rank: int
    ranks: int
    machine: str
    written: float
    """Seconds since 1970."""
    resources: Resources
    recent: Waits
    total: Waits


class Stopwatch:
    """Adds up the seconds between `start` and `stop`; a second start forgets the first."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Count from now on."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Count no more, where it counts."""
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
            self._since = None

    @property
    def seconds(self) -> float:
        """What would be taken now."""
        return self._seconds

    def take(self) -> float:
        """The seconds so far; counting starts again."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class WaitMeter:
    """Measures the steps of one rank, `with meter.step()` each; `line` gives the shares of a line of the metrics.

    When it is left, what held up the rank since its process started goes into the log.
    """

    def __init__(self, run: RunDir, rank: int, ranks: int, cfg: Train, data: Data) -> None:
        self._file = run.waits / f"{rank}.json"
        self._rank, self._ranks, self._data = rank, ranks, data
        self._resources = _resources(cfg, data)
        self._cpu = CpuClock()
        self.own = Stopwatch()
        """Runs where a rank waits for no other one: not in the backward pass, nor before a forward pass, as DDP begins
        one with the buffers of rank 0."""
        self._seconds, self._num_steps, self._num_clipped = 0.0, 0, 0
        self._before, self._before_cpu = data.spent(), CpuTime()
        self._intervals: deque[Waits] = deque()
        self._since_line = self._total = Waits()
        self._written_s = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.write()
        if kind is None and self._total.steps:
            log.info("train: %s", judge(self._total, self._resources))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count one step, from asking for its batches to the exchange with the other ranks."""
        start = time.perf_counter()
        self.own.start()
        with self._cpu.running():
            yield
        self.own.stop()
        self._seconds += time.perf_counter() - start
        self._num_steps += 1
        if time.monotonic() - self._written_s >= _WRITE_S:
            self.write()

    @property
    def own_s(self) -> float:
        """Time that this rank has spent without waiting for another since it was started."""
        return self._total.own_s + self.own.seconds

    def watch(self, model: nn.Module) -> None:
        """Let the stopwatch run on once the model, which another may wrap, begins its forward pass."""
        own = self.own
        model.register_forward_pre_hook(lambda *_: own.start())

    def clip(self, norm: float, most: float) -> None:
        """Count a step whose gradient was scaled down."""
        self._num_clipped += norm > most

    def line(self) -> dict[str, float]:
        """Shares of the time of the steps since the line before, and the share of them that was clipped."""
        self._take()
        waits, loader = self._since_line, self._since_line.loader
        self._since_line, num_clipped, self._num_clipped = Waits(), self._num_clipped, 0
        if not waits.steps:
            return {}
        spent = (waits.computing_s, waits.core_wait_s, loader.read_s, loader.decode_s, loader.transfer_s)
        shares = dict(zip(SHARES, (*spent, loader.prepare_s, loader.core_wait_s), strict=True))
        return {name: value / waits.seconds for name, value in shares.items()} | {"clipped": num_clipped / waits.steps}

    def write(self) -> None:
        """Write the file of the rank."""
        self._written_s = time.monotonic()
        self._take()
        state = RankWaits(
            rank=self._rank,
            ranks=self._ranks,
            machine=machine(),
            written=time.time(),
            resources=self._resources,
            recent=sum(self._intervals, Waits()),
            total=self._total,
        )
        try:
            self._file.parent.mkdir(exist_ok=True)
            write_atomically(self._file, json.dumps(asdict(state)))
        except OSError as error:  # a full disk, which ends the training where it holds up what is learnt
            log.debug("train: the waits of rank %d are not written: %s", self._rank, error)

    def _take(self) -> None:
        """Add what was counted since the last time."""
        if not self._num_steps:
            return
        spent, cpu = self._data.spent(), self._cpu.total - self._before_cpu
        loader = spent - self._before
        waits = Waits(
            steps=self._num_steps,
            seconds=self._seconds,
            computing_s=cpu.computing_s,
            core_wait_s=cpu.core_wait_s,
            own_s=self.own.take(),
            loader=loader,
        )
        self._before, self._before_cpu, self._seconds, self._num_steps = spent, self._cpu.total, 0.0, 0
        self._total += waits
        self._since_line += waits
        self._intervals.append(waits)
        while sum(interval.seconds for interval in self._intervals) - self._intervals[0].seconds >= RECENT_S:
            self._intervals.popleft()


def _resources(cfg: Train, data: Data) -> Resources:
    """What this rank and its neighbours ask of their machine."""
    others = world.ranks()
    return Resources(
        cores=cgroup.cores(),
        ranks=others.num_local if others else cfg.devices,
        threads=cfg.threads,
        loader_workers=cfg.loader_workers,
        is_remote=data.is_remote,
    )


def read_waits(run: RunDir) -> Mapping[int, RankWaits]:
    """The waits of each rank of the last process that trained; none of an experiment of an earlier version."""
    states = dict[int, RankWaits]()
    for path in sorted(run.waits.glob("*.json")):
        try:
            state: Any = json.loads(path.read_text(encoding="utf-8"))
            states[int(path.stem)] = read(RankWaits, state)
        except (OSError, ValueError, DataError):  # it is written, or of another version
            continue
    last = max(states.values(), key=lambda state: state.written, default=None)
    return {rank: state for rank, state in states.items() if last is not None and rank < last.ranks}
