"""The figures of a step on the engine, as they are at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """What the engine of a model reports of itself. What it does not report is None."""

    engine: str
    """Which engine: workers that ask one server report it once."""
    measured_at: float
    """When, in seconds since 1970."""
    kv_cache_ratio: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    requests_running: float | None = None
    requests_waiting: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """One stage of a step: what its workers do now, and how long all of them together have done it.

    A worker that takes several calls at once counts once for each.
    """

    name: str
    num_workers: int = 0
    num_working: int = 0
    num_queued: int = 0
    """Parts of chunks that wait for a worker."""
    start_s: float = 0.0
    """Loading what the work needs, such as a model."""
    work_s: float = 0.0
    wait_in_s: float = 0.0
    """Waiting for the source or the stage before."""
    wait_out_s: float = 0.0
    """Waiting for the stages after, or for the commit: they hold as many chunks as are let in."""
    models: Sequence[ModelFigures] = ()

    @property
    def busy(self) -> float:
        """Utilisation of its workers, 0 to 1."""
        return self.work_s / max(self.start_s + self.work_s + self.wait_in_s + self.wait_out_s, 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of a distributed step so far. `num_open` chunks are in progress; the rest counts what is written."""

    num_chunks: int = 0
    num_open: int = 0
    num_items: int = 0
    num_skipped: int = 0
    num_retries: int = 0
    num_restarts: int = 0
    elapsed_s: float = 0.0
    stages: Sequence[StageFigures] = ()

    @property
    def busy(self) -> Mapping[str, float]:
        """Utilisation of the workers of each stage, 0 to 1: the bottleneck is near 1."""
        return {stage.name: stage.busy for stage in self.stages}
