"""A real Prometheus with the alert rules watches a real labelling, whose teacher stands still, and a real training."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forked import command, finish, forked
from monitoring_files import MONITORING, dashboard, rules, series_of
from prometheus import Prometheus, needs_prometheus, prometheus
from waiting import until

pytestmark = [pytest.mark.slow, needs_prometheus]
SCALED = {"> 900": "> 4", "for: 1m": "for: 1s"}
"""Times of the rules, for a test that has seconds."""
WITHOUT_GPU = {"voxstill_gpu_temperature_celsius", "voxstill_gpu_slowed_down"}
WITHOUT_ENGINE = {"voxstill_teacher_kv_cache_ratio", "voxstill_teacher_requests_waiting"}


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[Prometheus]:
    text = (MONITORING / "rules.yml").read_text()
    for slow, fast in SCALED.items():
        assert slow in text
        text = text.replace(slow, fast)
    (folder / "rules.yml").write_text(text.replace("interval: 15s", "interval: 500ms"))
    job = {"job_name": "voxstill", "file_sd_configs": [{"files": [f"{folder}/targets/*.json"]}]}
    times = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config = {"global": times, "rule_files": [str(folder / "rules.yml")], "scrape_configs": [job]}
    (folder / "targets").mkdir()
    with prometheus(folder / "prometheus", config) as server:
        yield server


def workers(mark: str) -> list[int]:
    """The processes of Ray's actors that have a mark in their environment."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            title = (path / "cmdline").read_bytes()
            if title.startswith(b"ray::WorkerActor") and mark.encode() in (path / "environ").read_bytes():
                pids.append(int(path.name))
    return pids


def assert_runs_that_have_ended_raise_no_alert(server: Prometheus) -> None:
    assert server.alerts() - {"VoxstillDiskNearlyFull"} == set()  # which this machine may be
    for name in ("voxstill_step_running", "voxstill_train_running"):
        assert [row["value"][1] for row in server.query(f"last_over_time({name}[10m])")] == ["0"]


def query_of(panel: Any) -> str:
    query: str = panel.expression.replace("$run", ".*").replace("$__rate_interval", "5s")
    return query


def assert_every_panel_shows_something(server: Prometheus, start: float, end: float) -> None:
    empty = set()
    for panels in dashboard().ROWS.values():
        for panel in panels:
            rows = server.range(query_of(panel), start, end, 0.5)
            if not any(value != "NaN" for row in rows for _, value in row["values"]):
                empty.add((panel.title, panel.needs))
    assert {title for title, needs in empty if needs == ""} == set()


def assert_every_series_of_the_rules_is_there(server: Prometheus) -> None:
    names = set().union(*(series_of(rule["expr"]) for rule in rules()))
    missing = {name for name in names if not server.query(f"last_over_time({name}[10m])")}
    assert missing <= WITHOUT_GPU | WITHOUT_ENGINE


def assert_both_ranks_and_both_stages_are_told_apart(server: Prometheus) -> None:
    ranks = server.query("last_over_time(voxstill_train_steps_total[10m])")
    assert {row["metric"]["rank"] for row in ranks} == {"0", "1"}
    stages = server.query('last_over_time(voxstill_stage_seconds_total{state="work"}[10m])')
    assert {row["metric"]["stage"] for row in stages} == {"decode", "teach"}
    (waits,) = server.query('last_over_time(voxstill_stage_seconds_total{stage="decode",state="wait_out"}[10m])')
    assert float(waits["value"][1]) > 3  # while the teacher stood still
    assert {row["metric"]["run"] for row in ranks} == {"work"}
    disks = server.query("last_over_time(voxstill_disk_free_bytes[10m])")
    assert {row["metric"]["folder"] for row in disks} == {"work", "experiment"}


def test_a_teacher_that_stands_still_raises_the_alert_and_all_is_shown_of_runs_that_have_ended(
    digits: Path, configure: Callable[..., Path], voxstill: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    config = configure(
        tmp_path,
        digits / "manifest.jsonl",
        engine={"name": "ray", "chunk": 2, "workers": 1, "teachers": 1},
        teacher={"name": "echo", "delay_ms": 300, "fail_on": ["m1-0"]},
        train={"steps": 30, "optimizer": "adamw", "loader_workers": 0, "root": str(tmp_path / "exp"), "devices": 2},
        plan={"budget_ms": 8000, "batches_per_step": 2},
        filter={"keep_share": 1.0},
    )
    log, start = tmp_path / "log", time.time()
    monitored = ["--config", config, "--set", "monitor.port=0", "--set", f"monitor.discovery={tmp_path / 'targets'}"]
    voxstill("index", "--work", tmp_path / "work", "--config", config, "--set", "engine=inline")
    mark = f"VOXSTILL_TEST_MARK={tmp_path}"
    environment = os.environ | {"VOXSTILL_TEST_MARK": str(tmp_path)}
    with watching(tmp_path) as server:
        with forked(command, ["label", tmp_path / "work", *monitored], log=log, environment=environment) as labelling:
            until(lambda: server.query("voxstill_items_total > 2") or not labelling.is_alive())
            assert labelling.is_alive(), log.read_text()
            stopped = workers(mark)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            assert stopped
            until(lambda: "VoxstillStepStalled" in server.alerts(), within_s=60)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            finish(labelling, log=log)
        for step in ("filter", "shard"):
            voxstill(step, tmp_path / "work", "--config", config, "--set", "engine=inline")
        with forked(command, ["train", config, *monitored[2:]], log=log) as training:
            finish(training, log=log)
        until(lambda: not server.query("up"))
        time.sleep(5)  # any alert that its end raised would be there: their times are scaled to a second
        assert_runs_that_have_ended_raise_no_alert(server)
        assert_every_panel_shows_something(server, start, time.time())
        assert_every_series_of_the_rules_is_there(server)
        assert_both_ranks_and_both_stages_are_told_apart(server)
