"""The figures of a step on the engine, on a progress bar and for Prometheus: items, errors, the time of each stage."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from voxstill.core.metrics.figures import ModelFigures, StageFigures, Summary
from voxstill.core.metrics.process import METRICS
from voxstill.core.metrics.registry import Metric, Sample, counters, gauges
from voxstill.core.monitor import Progress

MODEL_AGE_S = 120.0
"""Figures of a model that are older are not exported: it has not answered since."""
_STEP = gauges(
    ["step"],
    {
        "step_running": "1 while the step runs, 0 after it.",
        "items_planned": "Items of the step, where known.",
        "chunks_open": "Chunks in progress.",
        "elapsed_seconds": "Time of the step so far.",
        "time_left_seconds": "Time to the end at the rate so far.",
        "rtfx": "Seconds of audio per second of the step.",
        "last_commit_timestamp_seconds": "When a chunk was last written; before the first one, when the step started.",
    },
) | counters(
    ["step"],
    {
        "items": "Items written.",
        "audio_seconds": "Audio written.",
        "chunks": "Chunks written.",
        "set_aside": "Items skipped for good.",
        "retries": "Parts of chunks retried.",
        "worker_restarts": "Workers replaced.",
    },
)
_ERRORS = Metric("errors", "Items with an error.", ("step", "kind"), is_counter=True)
_STAGE = gauges(
    ["step", "stage"],
    {
        "stage_workers": "Calls that all workers can take at the same time.",
        "stage_working": "Calls in progress.",
        "stage_queue_parts": "Parts of chunks that wait for a worker.",
        "busy_ratio": "Utilisation of workers, 0 to 1: the bottleneck is near 1.",
    },
)
_STAGE_SECONDS = Metric(
    "stage_seconds",
    "Time of all workers: start, work, wait_in (for input), wait_out (for the stages after).",
    ("step", "stage", "state"),
    is_counter=True,
)
_MODEL = gauges(
    ["step", "stage"],
    {
        "teacher_kv_cache_ratio": "Share of the KV cache in use, 0 to 1: the fullest of all engines.",
        "teacher_requests_running": "Requests that the engines of the teacher are processing.",
        "teacher_requests_waiting": "Requests that wait for the engines.",
        "teacher_tokens_per_second": "Tokens that they generate.",
    },
)


class StepMeter:
    """The figures of one distributed step; a `with` block."""

    def __init__(self, step: str, total: int | None, unit: str) -> None:
        self.step, self.total = step, total
        self.audio_ms = 0
        self.errors: Counter[str] = Counter()
        self._is_running = False
        self._last_commit = time.time()
        self._summary: Callable[[], Summary] = Summary
        self._bar = Progress(step, total, unit)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._is_running, self._last_commit = True, time.time()
        METRICS.add(f"step {self.step}", self)
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        last = self._summary()
        self._summary = lambda: last
        self._is_running = False
        self._bar.__exit__(kind, value, trace)

    def follow(self, summary: Callable[[], Summary]) -> None:
        """Ask here for the engine's figures from now on; `summary` is called from any thread."""
        self._summary = summary

    def count_done(self, audio_ms: int, errors: Iterable[str]) -> None:
        """Count audio that is written and the errors in it; thread-safe."""
        with self._lock:
            self.audio_ms += audio_ms
            self.errors.update(map(error_label, errors))

    def update(self, summary: Summary) -> None:
        """Show the engine's figures on the bar, after each chunk."""
        self._last_commit = time.time()
        self._bar.set_done(summary.num_items, ", ".join(self._details(summary)))

    def samples(self) -> Iterator[Sample]:
        """The metrics of the step."""
        now = self._summary()
        with self._lock:
            audio_s, errors = self.audio_ms / 1000, dict(self.errors)
        values: dict[str, float | None] = {
            "step_running": self._is_running,
            "items": now.num_items,
            "items_planned": self.total,
            "audio_seconds": audio_s,
            "chunks": now.num_chunks,
            "chunks_open": now.num_open,
            "set_aside": now.num_skipped,
            "retries": now.num_retries,
            "worker_restarts": now.num_restarts,
            "elapsed_seconds": now.elapsed_s,
            "time_left_seconds": self._time_left_s(now),
            "rtfx": self._rtfx(now),
            "last_commit_timestamp_seconds": self._last_commit,
        }
        for name, value in values.items():
            if value is not None:
                yield _STEP[name].sample(value, self.step)
        for reason, count in errors.items():
            yield _ERRORS.sample(count, self.step, reason)
        for stage in now.stages:
            yield from self._of_stage(stage)

    def _of_stage(self, stage: StageFigures) -> Iterator[Sample]:
        labels = self.step, stage.name
        yield _STAGE["stage_workers"].sample(stage.num_workers, *labels)
        yield _STAGE["stage_working"].sample(stage.num_working, *labels)
        yield _STAGE["stage_queue_parts"].sample(stage.num_queued, *labels)
        yield _STAGE["busy_ratio"].sample(stage.busy, *labels)
        seconds = {
            "start": stage.start_s,
            "work": stage.work_s,
            "wait_in": stage.wait_in_s,
            "wait_out": stage.wait_out_s,
        }
        for state, value in seconds.items():
            yield _STAGE_SECONDS.sample(value, *labels, state)
        for name, value in _of_models(stage.models).items():
            yield _MODEL[f"teacher_{name}"].sample(value, *labels)

    def _rtfx(self, summary: Summary) -> float:
        """Inverse real-time factor: seconds of audio processed per second of the step."""
        return self.audio_ms / 1000 / max(summary.elapsed_s, 1e-9)

    def _time_left_s(self, summary: Summary) -> float | None:
        """Seconds to the end at the rate so far; None if the end or the rate is not known."""
        if self.total is None or not summary.num_items:
            return None
        return summary.elapsed_s * max(0, self.total - summary.num_items) / summary.num_items

    def _details(self, summary: Summary) -> Iterator[str]:
        with self._lock:
            errors = self.errors.most_common()
        if self.audio_ms:
            yield f"{self._rtfx(summary):,.0f} times real time"
        if errors:
            yield (
                f"{sum(count for _, count in errors):,} failed (" + ", ".join(f"{n:,} {why}" for why, n in errors) + ")"
            )
        if summary.num_retries:
            yield f"{summary.num_retries:,} retried"
        if summary.num_restarts:
            yield f"{summary.num_restarts:,} workers replaced"
        yield from (f"{name} {share:.0%} busy" for name, share in summary.busy.items())


def _of_models(models: Sequence[ModelFigures]) -> dict[str, float]:
    """The figures of several engines as one: the fullest cache, and the sum of all else."""
    current = [model for model in models if time.time() - model.measured_at < MODEL_AGE_S]
    merged: dict[str, float] = {}
    caches = [model.kv_cache_ratio for model in current if model.kv_cache_ratio is not None]
    if caches:
        merged["kv_cache_ratio"] = max(caches)
    for name in ("requests_running", "requests_waiting", "tokens_per_second"):
        values = [value for model in current if (value := getattr(model, name)) is not None]
        if values:
            merged[name] = sum(values)
    return merged


def error_label(error: str) -> str:
    """The label of an error for metrics: its words before the colon, `other` where they hold a path or a number."""
    kind = error.partition(":")[0].strip()
    return kind if re.fullmatch(r"[A-Za-z ,\-]{1,60}", kind) else "other"
