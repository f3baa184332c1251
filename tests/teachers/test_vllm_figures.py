"""What an engine of vLLM reports after its iterations becomes figures of a batch."""

from __future__ import annotations

from types import SimpleNamespace

from voxstill.teachers.vllm_figures import EngineStats


def test_the_most_at_once_and_the_tokens_since_the_last_read() -> None:
    stats = EngineStats("here")
    for running, cache, tokens in ((2, 0.1, 30), (5, 0.4, 50), (0, 0.0, 20)):
        scheduler = SimpleNamespace(num_running_reqs=running, num_waiting_reqs=1, kv_cache_usage=cache)
        stats.record(scheduler, SimpleNamespace(num_generation_tokens=tokens), None, engine_idx=0)
    stats.record(None, None)
    first = stats.take()
    assert (first.engine, first.requests_running, first.requests_waiting, first.kv_cache_ratio) == ("here", 5, 1, 0.4)
    assert (first.tokens_per_second or 0) > 0
    second = stats.take()
    assert (second.requests_running, second.tokens_per_second) == (None, 0)


def test_statistics_of_another_version_are_left_out() -> None:
    stats = EngineStats("here")
    stats.record(SimpleNamespace(num_running_reqs=1), object())
    assert (stats.take().requests_running, stats.take().kv_cache_ratio) == (1, None)
