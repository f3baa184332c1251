"""The figures of a step, as a real Prometheus reads them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from prometheus import needs_prometheus, prometheus, values
from voxstill.core.config import Monitor
from voxstill.core.metrics.endpoint import Endpoint
from voxstill.core.metrics.figures import ModelFigures, StageFigures, Summary
from voxstill.core.metrics.registry import Metrics
from voxstill.core.metrics.steps import StepMeter, error_label

STAGES = (
    StageFigures(name="decode", num_workers=2, num_queued=1, work_s=1, wait_out_s=3),
    StageFigures(name="teach", num_workers=1, num_working=1, work_s=3, start_s=1),
)


def families(metrics: Metrics) -> dict[str, Metric]:
    return {family.name: family for family in metrics.collect()}


def value(metrics: Metrics, name: str) -> float:
    (sample,) = families(metrics)[name].samples
    return float(sample.value)


def test_kinds_of_errors_hold_no_path_no_id_and_no_number() -> None:
    assert error_label("truncated: 3 of 5 s are there") == "truncated"
    assert error_label("set aside: its worker died") == "set aside"
    for secret in ("`/data/ann.wav` does not exist", "utterance 6fa2644372e7256b: odd", "s3://bucket/x: gone", ""):
        assert error_label(secret) == "other"


@needs_prometheus
def test_a_real_prometheus_reads_the_figures_of_a_step(tmp_path: Path) -> None:
    meter = StepMeter("label", 12, "utterances")
    endpoint = Endpoint(Monitor(port=0), Metrics({"step": meter}))
    meter.count_done(90_000, ["truncated: half of it", "`/data/ann.wav` does not exist"])
    summary = Summary(num_chunks=3, num_open=2, num_items=9, num_retries=1, elapsed_s=3.0, stages=STAGES)
    meter.follow(lambda: summary)
    job = {"job_name": "voxstill", "static_configs": [{"targets": [f"127.0.0.1:{endpoint.port}"]}]}
    config = {"global": {"scrape_interval": "200ms"}, "scrape_configs": [job]}
    with prometheus(tmp_path, config) as server:
        series = server.first('{job="voxstill",__name__=~"voxstill_.*"}')
        rtfx = server.first("voxstill_audio_seconds_total / voxstill_elapsed_seconds")
        process = server.first('process_resident_memory_bytes{job="voxstill"}')
    endpoint.close()
    labels = {"__name__", "job", "instance", "step", "stage", "kind", "state"}
    assert {name for row in series for name in row["metric"]} <= labels
    assert {row["metric"]["step"] for row in series} == {"label"}
    of_step = values(series, "__name__", "stage", "state", "kind")
    assert of_step["voxstill_items_total", "", "", ""] == 9
    assert of_step["voxstill_items_planned", "", "", ""] == 12
    assert of_step["voxstill_time_left_seconds", "", "", ""] == 1
    assert of_step["voxstill_chunks_open", "", "", ""] == 2
    assert of_step["voxstill_busy_ratio", "teach", "", ""] == 0.75
    assert of_step["voxstill_stage_queue_parts", "decode", "", ""] == 1
    assert of_step["voxstill_stage_seconds_total", "decode", "wait_out", ""] == 3
    assert of_step["voxstill_errors_total", "", "", "truncated"] == 1
    assert of_step["voxstill_errors_total", "", "", "other"] == 1
    assert float(rtfx[0]["value"][1]) == 30.0
    assert float(process[0]["value"][1]) > 1e6


def test_what_the_engine_says_is_asked_for_at_the_scrape_and_stays_after_the_end() -> None:
    now = [Summary(num_items=1)]
    with StepMeter("label", 2, "utterances") as meter:
        metrics = Metrics({"step": meter})
        meter.follow(lambda: now[0])
        assert (value(metrics, "voxstill_items"), value(metrics, "voxstill_step_running")) == (1, 1)
        now[0] = Summary(num_items=2)
        assert value(metrics, "voxstill_items") == 2
    now[0] = Summary()
    assert (value(metrics, "voxstill_items"), value(metrics, "voxstill_step_running")) == (2, 0)


def test_the_last_commit_is_the_start_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxstill.core.metrics.steps.time.time", lambda: 100.0)
    with StepMeter("label", 2, "utterances") as meter:
        metrics = Metrics({"step": meter})
        assert value(metrics, "voxstill_last_commit_timestamp_seconds") == 100
        monkeypatch.setattr("voxstill.core.metrics.steps.time.time", lambda: 107.0)
        assert value(metrics, "voxstill_last_commit_timestamp_seconds") == 100
        meter.update(Summary(num_items=1))
        assert value(metrics, "voxstill_last_commit_timestamp_seconds") == 107


def test_engines_of_a_model_add_up_and_one_that_no_longer_answers_is_left_out() -> None:
    now = time.time()

    def model(engine: str, age_s: float, cache: float, running: float) -> ModelFigures:
        return ModelFigures(
            engine=engine, measured_at=now - age_s, kv_cache_ratio=cache, requests_running=running, tokens_per_second=2
        )

    models = (model("a", 1, 0.5, 3), model("b", 2, 0.75, 4), model("gone", 1e4, 1, 9))
    with StepMeter("label", None, "utterances") as meter:
        metrics = Metrics({"step": meter})
        meter.follow(lambda: Summary(stages=[StageFigures(name="teach", models=models)]))
        assert value(metrics, "voxstill_teacher_kv_cache_ratio") == 0.75
        assert value(metrics, "voxstill_teacher_requests_running") == 7
        assert value(metrics, "voxstill_teacher_tokens_per_second") == 4
        assert "voxstill_teacher_requests_waiting" not in families(metrics)
