"""How the workers of each stage spend their time: which stage starves which, as SPDL shows it of its pipelines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from voxstill.core.metrics.figures import ModelFigures, StageFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """What a stage has to do at one moment. A worker that takes several calls at once counts once for each."""

    num_workers: int
    num_starting: int = 0
    """Of these, the ones that still load what the work needs."""
    num_working: int = 0
    num_queued: int = 0
    """Parts of chunks that wait for a worker."""


@dataclass(slots=True)
class _Seconds:
    start: float = 0.0
    work: float = 0.0
    wait_in: float = 0.0
    wait_out: float = 0.0


class StageClock:
    """Adds up the time of all workers between the moments at which a run reports its loads; thread-safe.

    An idle worker waits for the stages after it where as many chunks are open as may be, and no part of one is at its
    stage or on the way to it; else it waits for input.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._lock = now_s, threading.Lock()
        self._loads: dict[str, StageLoad] = {}
        self._is_full = False
        self._since_s = now_s()
        self._seconds: dict[str, _Seconds] = {}
        self._models: dict[str, dict[str, ModelFigures]] = {}

    def update(self, loads: Mapping[str, StageLoad], *, is_full: bool) -> None:
        """Take over the loads of all stages, in order, from now on; `is_full` where no more chunk is let in."""
        with self._lock:
            self._advance()
            self._loads, self._is_full = dict(loads), is_full

    def record_model(self, stage: str, figures: ModelFigures) -> None:
        """Keep the newest figures of each engine of the model of a stage."""
        with self._lock:
            self._models.setdefault(stage, {})[figures.engine] = figures

    def figures(self) -> tuple[StageFigures, ...]:
        """Each stage now, with its time up to now."""
        with self._lock:
            self._advance()
            return tuple(self._figures(name, load) for name, load in self._loads.items())

    def _figures(self, name: str, load: StageLoad) -> StageFigures:
        seconds = self._seconds.get(name, _Seconds())
        return StageFigures(
            name=name,
            num_workers=load.num_workers,
            num_working=load.num_working,
            num_queued=load.num_queued,
            start_s=seconds.start,
            work_s=seconds.work,
            wait_in_s=seconds.wait_in,
            wait_out_s=seconds.wait_out,
            models=tuple(self._models.get(name, {}).values()),
        )

    def _advance(self) -> None:
        now_s = self._now_s()
        elapsed_s, self._since_s = now_s - self._since_s, now_s
        is_fed = False  # whether a part is on the way to the stage
        for name, load in self._loads.items():
            seconds = self._seconds.setdefault(name, _Seconds())
            seconds.work += load.num_working * elapsed_s
            seconds.start += load.num_starting * elapsed_s
            idle_s = max(0, load.num_workers - load.num_working - load.num_starting) * elapsed_s
            is_fed = is_fed or load.num_queued > 0
            if self._is_full and not is_fed:
                seconds.wait_out += idle_s
            else:
                seconds.wait_in += idle_s
            is_fed = is_fed or load.num_working > 0
