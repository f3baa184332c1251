"""What vLLM's engine reports of itself, and what its server shows of the same at `/metrics`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from voxstill.core.metrics.figures import ModelFigures

SERVER_NAMES = {
    "vllm:kv_cache_usage_perc": "kv_cache_ratio",
    "vllm:gpu_cache_usage_perc": "kv_cache_ratio",  # before 0.10
    "vllm:num_requests_running": "requests_running",
    "vllm:num_requests_waiting": "requests_waiting",
    "vllm:generation_tokens_total": "tokens",
}
"""Metrics of vLLM's server (https://docs.vllm.ai/en/stable/usage/metrics), and what is made of each."""


class EngineStats:
    """Adds up what the engine reports after each of its iterations; vLLM calls it as one of its stat loggers.

    Between two reads it keeps the most that was seen at once: at the end of a batch nothing runs any more.
    """

    def __init__(self, engine: str) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._since_s = time.monotonic()
        self._most: dict[str, float] = {}
        self._num_tokens = 0

    def record(self, scheduler_stats: object, iteration_stats: object, *_: object, **__: object) -> None:
        """Take the statistics of one iteration, of which either may be None."""
        now = {
            "kv_cache_ratio": getattr(scheduler_stats, "kv_cache_usage", None),
            "requests_running": getattr(scheduler_stats, "num_running_reqs", None),
            "requests_waiting": getattr(scheduler_stats, "num_waiting_reqs", None),
        }
        with self._lock:
            for name, value in now.items():
                if value is not None:
                    self._most[name] = max(self._most.get(name, 0.0), value)
            self._num_tokens += getattr(iteration_stats, "num_generation_tokens", 0)

    def log_engine_initialized(self) -> None:
        """Nothing is logged."""

    def log(self) -> None:
        """Nothing is logged."""

    def record_sleep_state(self, *_: object, **__: object) -> None:
        """An engine of ours does not sleep."""

    def take(self) -> ModelFigures:
        """The figures since they were taken last."""
        with self._lock:
            now_s = time.monotonic()
            rate = self._num_tokens / max(now_s - self._since_s, 1e-9)
            most, self._most, self._num_tokens, self._since_s = self._most, {}, 0, now_s
        return ModelFigures(engine=self._engine, measured_at=time.time(), tokens_per_second=rate, **most)


class ServerStats:
    """Makes figures of what a server of vLLM shows at `/metrics`."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._tokens: tuple[float, float] | None = None

    def read(self, page: str) -> ModelFigures | None:
        """The figures of a page; None where it has none of vLLM's. Tokens a second are those since the page before."""
        values = _values(page)
        if not values:
            return None
        now_s, tokens, rate = time.monotonic(), values.pop("tokens", None), None
        if tokens is not None:
            if self._tokens is not None and tokens >= self._tokens[1]:
                rate = (tokens - self._tokens[1]) / max(now_s - self._tokens[0], 1e-9)
            self._tokens = now_s, tokens
        return ModelFigures(engine=self._server, measured_at=time.time(), tokens_per_second=rate, **values)


def _values(page: str) -> dict[str, float]:
    """The fullest cache and the sums of all else, over the models and the engines of a server."""
    values: dict[str, float] = {}
    for name, value in _samples(page):
        figure = SERVER_NAMES.get(name)
        if figure is not None:
            before = values.get(figure, 0.0)
            values[figure] = max(before, value) if figure == "kv_cache_ratio" else before + value
    return values


def _samples(page: str) -> Iterator[tuple[str, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.value
