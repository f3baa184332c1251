"""The metrics of a training, from the files of its ranks."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from voxstill.core import process
from voxstill.core.config import Monitor
from voxstill.core.metrics import endpoint
from voxstill.core.metrics.registry import Metrics
from voxstill.storage.rundir import RunDir
from voxstill.training import metrics, watchdog
from voxstill.training.metrics import TrainingMetrics
from voxstill.training.watchdog import RankState, Watchdog, read_states
from waiting import until

Values = dict[tuple[str, str], float]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(metrics, "READ_S", 0.02)
    run = RunDir(tmp_path / "2026_student")
    run.ranks.mkdir(parents=True)
    return run


def write(run: RunDir, rank: int, **figures: float | str) -> None:
    state = RankState(**{"pid": 1, "born": "1", "host": "here", "step": 3, **figures})  # type: ignore[arg-type]
    (run.ranks / f"{rank}.json").write_text(json.dumps(asdict(state)))


def values(source: TrainingMetrics) -> Values:
    return {
        (sample.name, sample.labels.get("rank", "")): sample.value
        for family in Metrics({"training": source}).collect()
        for sample in family.samples
    }


def value_of(source: TrainingMetrics, name: str, rank: str = "") -> float | None:
    return values(source).get((f"voxstill_train_{name}", rank))


def test_each_rank_has_its_own_figures_and_the_run_those_of_the_first(run: RunDir) -> None:
    with TrainingMetrics(run) as source:
        write(run, 0, loss=0.5, lr=1e-3, at=100.0, audio_s=60.0, progress=0.25, data_wait_s=2.0, own_s=30.0)
        write(run, 10, loss=0.5, step=2, at=90.0)
        until(lambda: value_of(source, "steps_total", "10") == 2)
        assert value_of(source, "running") == 1
        assert value_of(source, "steps_total", "0") == 3
        assert value_of(source, "last_step_timestamp_seconds", "10") == 90
        assert value_of(source, "loss") == 0.5
        assert value_of(source, "audio_seconds_total", "0") == 60
        assert value_of(source, "data_wait_seconds_total", "0") == 2
        assert value_of(source, "own_seconds_total", "0") == 30
        assert value_of(source, "progress_ratio") == 0.25
        assert value_of(source, "time_left_seconds") is None
        write(run, 0, loss=0.4, at=110.0, progress=0.5)
        until(lambda: value_of(source, "time_left_seconds") == 20)
        write(run, 0, loss=math.nan)
        until(lambda: math.isnan(value_of(source, "loss") or 0))


def test_ranks_of_an_earlier_process_are_not_shown_until_they_write_anew(run: RunDir) -> None:
    pid = os.getpid()
    write(run, 0, loss=0.9, at=10.0, progress=0.5)
    write(run, 1, loss=math.nan, at=10.0, progress=0.5)
    write(run, 2, pid=pid, born=process.started(pid), host=socket.gethostname(), machine=process.machine(), step=7)
    with TrainingMetrics(run) as source:
        until(lambda: value_of(source, "steps_total", "2") == 7)  # it began before this one, and lives
        assert value_of(source, "steps_total", "0") is None
        write(run, 0, loss=0.5, at=1000.0, progress=0.6)
        until(lambda: value_of(source, "loss") == 0.5)
        write(run, 0, loss=0.5, at=1010.0, progress=0.7)
        until(lambda: value_of(source, "time_left_seconds") == pytest.approx(30))
        assert value_of(source, "steps_total", "1") is None


def test_the_time_left_is_right_again_after_a_clock_was_set(run: RunDir) -> None:
    with TrainingMetrics(run) as source:
        for at in (100_000.0, 100.0, 200_000.0):  # a day back, and two ahead
            write(run, 0, loss=0.5, at=at, progress=0.2)
            until(lambda at=at: value_of(source, "last_step_timestamp_seconds", "0") == at)  # type: ignore[misc]
            write(run, 0, loss=0.5, at=at + 10.0, progress=0.3)
            until(lambda: value_of(source, "time_left_seconds") == pytest.approx(70))


def test_long_steps_are_no_clock_that_was_set(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "READ_S", 0.05)
    monkeypatch.setattr(metrics, "_CLOCK_STEP_S", 0.5)
    with TrainingMetrics(run) as source:
        for progress in (0.2, 0.3):
            write(run, 0, loss=0.5, at=(at := time.time()), progress=progress)
            until(lambda at=at: value_of(source, "last_step_timestamp_seconds", "0") == at)  # type: ignore[misc]
            time.sleep(0.8)
        assert value_of(source, "time_left_seconds") == pytest.approx(0.7 / 0.1 * 0.8, rel=0.3)


def test_the_last_figures_stay_after_the_end(run: RunDir) -> None:
    with TrainingMetrics(run) as source:
        write(run, 0, loss=0.5, progress=0.9)
        until(lambda: value_of(source, "loss"))
        (run.ranks / "0.json").unlink()
        time.sleep(0.1)
    assert (value_of(source, "running"), value_of(source, "loss"), value_of(source, "progress_ratio")) == (0, 0.5, 0.9)
    run.summary.write_text("{}")
    assert value_of(source, "progress_ratio") == 1
    assert value_of(source, "time_left_seconds") == 0


def test_of_other_machines_nothing_is_shown_where_one_host_is_asked_for(run: RunDir) -> None:
    with TrainingMetrics(run, "there") as source:
        write(run, 0, host="here")
        write(run, 1, host="there")
        until(lambda: value_of(source, "steps_total", "1"))
        assert value_of(source, "steps_total", "0") is None


def test_a_file_of_another_version_or_half_a_file_is_passed_over(run: RunDir) -> None:
    write(run, 0)
    (run.ranks / "1.json").write_text('{"pid": 1, "later": 2}')
    (run.ranks / "2.json").write_text('{"pid": ')
    for name in ("._0.json", "notes.json", "-1.json"):
        (run.ranks / name).write_text("{}")
    assert list(read_states(run)) == [0]


def test_one_says_where_the_ranks_stand_only_when_they_are_silent(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SILENCE_S", 60.0)
    with TrainingMetrics(run) as source:
        assert source.status() is None
        write(run, 0, at=time.time() - 90, step=1234)
        until(source.status)
        assert (source.status() or "").startswith("train: the last step is 1,234; nothing new for 1:3")


def test_the_steps_just_before_a_hang_are_in_the_file(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_WRITE_S", 1e9)
    with Watchdog(run, 3, limit_s=2.0) as dog:
        dog.note(loss=0.25)
        dog.beat(7)
        until(lambda: read_states(run)[3].step == 7)
        assert read_states(run)[3].loss == 0.25
        assert abs(read_states(run)[3].at - time.time()) < 5


def test_of_64_ranks_a_stopped_one_is_told_by_its_step(run: RunDir) -> None:
    with TrainingMetrics(run) as source:
        for rank in range(64):
            write(run, rank, step=5 if rank == 17 else 6, at=1.0)
        until(lambda: value_of(source, "steps_total", "63"))
        assert [rank for rank in range(64) if value_of(source, "steps_total", str(rank)) == 5] == [17]


def test_of_ranks_that_others_have_started_the_first_of_each_machine_serves(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    served = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        server = endpoint.serve(Monitor(port=0), "run")
        with metrics.serving(run) as source:
            assert (server is None) == (source is None)
            if source is not None:
                served.append(rank)
                for other in range(4):
                    host = socket.gethostname() if other > 1 else "another"
                    write(run, other, host=host, at=1.0 + rank)
                until(lambda source=source: value_of(source, "steps_total", "2"))
                assert value_of(source, "steps_total", "0") is None
    endpoint.end()
    assert served == [0, 2]
