"""A training, live or ended: what its files say is told, the fault first."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from forked import forked
from tones import write_shards
from training.train_once import train_in_own_group, train_once
from voxstill.core import config
from voxstill.core.process import machine, started
from voxstill.data.bottleneck import LoaderTimes, Resources, Waits
from voxstill.pipeline.doctor import look
from voxstill.pipeline.doctor.checks import Check
from voxstill.pipeline.doctor.processes import is_stopped
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training.waits import SHARES, RankWaits, read_waits
from voxstill.training.watchdog import RankState, read_states
from waiting import until

QUICK = Waits(steps=100, seconds=100.0, computing_s=95.0, own_s=30.0, loader=LoaderTimes(waited_s=1.0, decode_s=10.0))


def a_run(
    folder: Path, lines: Sequence[Mapping[str, Any]], waits: Sequence[Waits] = (QUICK,), cores: int = 8
) -> RunDir:
    """The files of an ended experiment."""
    run = RunDir(folder / "exp")
    run.waits.mkdir(parents=True)
    run.config.write_text("train: {log_every: 1}\n")
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.summary.write_text("{}")
    for rank, row in enumerate(waits):
        state = RankWaits(
            rank=rank,
            ranks=len(waits),
            machine=machine(),
            written=time.time(),
            resources=Resources(cores=8, ranks=len(waits)),
            recent=row,
            total=row,
        )
        (run.waits / f"{rank}.json").write_text(json.dumps(asdict(state)))
    return run


def falling(num: int = 60, **more: Any) -> list[dict[str, Any]]:
    return [a_line(step, 10 * 0.97**step, **more) for step in range(1, num + 1)]


def a_line(step: int, loss: float | None, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "loss": loss,
        "lr": 1e-3,
        "grad_norm": 1.0,
        "padding": 0.05,
        "skipped": 0,
        "replaced": 0,
    } | more


def dev(step: int, wer: float) -> dict[str, Any]:
    return {"step": step, "split": "dev", "wer": wer, "words": 100, "errors": round(100 * wer)}


def checks(run: RunDir) -> list[Check]:
    return list(look.doctor(str(run.path), config.load(None, [])).checks)


def alarms(run: RunDir) -> list[str]:
    return [check.name for check in checks(run) if check.state != "ok"]


def test_a_sound_training_has_no_alarm(tmp_path: Path) -> None:
    lines = falling()
    for number, wer in enumerate((0.9, 0.5, 0.3, 0.25)):
        lines.insert(15 * (number + 1) + number, dev(15 * (number + 1), wer))
    assert alarms(a_run(tmp_path, lines)) == []


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("loss", [*falling(), *(a_line(step, 60.0) for step in range(61, 160))]),
        ("loss", [a_line(step, 7.0 + 0.01 * (step % 5)) for step in range(1, 60)]),
        ("skipped steps", [*falling(30), *(a_line(step, None, skipped=step - 30) for step in range(31, 41))]),
        ("gradients", falling(clipped=0.9)),
        ("gradients", falling(grad_norm=40.0)),
        ("padding", falling(padding=0.4)),
        ("replaced", falling(replaced=9)),
    ],
)
def test_what_is_wrong_with_the_learning_is_named_first(name: str, lines: list[dict[str, Any]], tmp_path: Path) -> None:
    run = a_run(tmp_path, [*lines, *(dev(60, 0.3) for _ in range(2))])
    first = checks(run)[0]
    assert first.name == name
    assert first.state != "ok"
    assert first.fix


def test_overfitting_is_named(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    for number, wer in enumerate((0.6, 0.3, 0.2, 0.3, 0.4, 0.5)):
        lines += [*falling()[10 * number : 10 * (number + 1)], dev(10 * (number + 1), wer)]
    assert alarms(a_run(tmp_path, lines)) == ["overfitting"]


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("machine", [replace(QUICK, core_wait_s=50.0)]),
        ("storage", [replace(QUICK, loader=LoaderTimes(waited_s=60, read_s=90, decode_s=8))]),
        ("decoding", [replace(QUICK, loader=LoaderTimes(waited_s=60, read_s=8, decode_s=90))]),
        ("augmentation", [replace(QUICK, loader=LoaderTimes(waited_s=60, prepare_s=90))]),
        ("straggler", [QUICK, replace(QUICK, own_s=80.0)]),
        ("machine", [QUICK, replace(QUICK, own_s=80.0, core_wait_s=60.0)]),
    ],
)
def test_what_holds_up_a_training_is_named_first(name: str, waits: list[Waits], tmp_path: Path) -> None:
    run = a_run(tmp_path, [*falling(), dev(60, 0.1)], waits)
    assert (checks(run)[0].name, checks(run)[0].state) == (name, "warn")


def test_a_training_that_stopped_before_its_first_validation_is_no_alarm(tmp_path: Path) -> None:
    run = a_run(tmp_path, falling(60))
    run.config.write_text("train: {log_every: 1, validate_every: 500}\n")
    assert "dev split" not in alarms(run)
    run.config.write_text("train: {log_every: 1, validate_every: 50}\n")
    assert "dev split" in alarms(run)


def test_ranks_of_an_earlier_process_are_not_waited_for(tmp_path: Path) -> None:
    run = a_run(tmp_path, falling(60))  # by one rank
    run.summary.unlink()
    run.ranks.mkdir()
    pid = os.getpid()
    own = RankState(pid=pid, born=started(pid), host=socket.gethostname(), machine=machine(), step=9, at=time.time())
    for rank, state in enumerate((own, replace(own, pid=1 << 30), replace(own, host="elsewhere", machine="other"))):
        path = run.ranks / f"{rank}.json"
        path.write_text(json.dumps(asdict(state)))
        os.utime(path, (time.time(), time.time() - (3600 if rank else 0)))
    [process] = [check for check in checks(run) if check.name == "process"]
    assert (process.state, process.found) == ("ok", "1 processes train")


def test_files_that_are_torn_or_missing_are_no_crash(tmp_path: Path) -> None:
    run = a_run(tmp_path, falling())
    (run.waits / "0.json").write_text('{"rank": 0, "ra')
    with run.metrics.open("a") as file:
        file.write('{"step": 61, "lo')
    assert "fail" not in {check.state for check in checks(run)}
    run.metrics.unlink()
    assert "fail" not in {check.state for check in checks(run)}


def test_a_training_measures_its_waits_and_a_stopped_one_is_told(tmp_path: Path) -> None:
    write_shards(Store(str(tmp_path / "work")), "shards/r", {"train": 24, "dev": 4})
    run = RunDir(tmp_path / "run")
    endless = ("train.steps=100000", "train.checkpoint_every=100000", "train.validate_every=100000")
    run.path.mkdir()
    run.config.write_text("train: {log_every: 1}\n")
    arguments = (str(tmp_path / "work"), str(run.path), *endless, "train.loader_workers=1")
    with forked(train_in_own_group, *arguments, log=tmp_path / "log") as process:
        until(lambda: not process.is_alive() or (read_waits(run) and read_waits(run)[0].total.steps >= 10))
        row = read_waits(run)[0]
        assert 0 < row.total.computing_s + row.total.core_wait_s < 1.2 * row.total.seconds
        assert 0 < row.total.own_s < row.total.seconds
        assert row.total.loader.decode_s > 0
        until(lambda: read_states(run)[0].own_s > 0)
        assert {check.name: check.state for check in checks(run)}["process"] == "ok"
        (pid,) = (json.loads(path.read_text())["pid"] for path in run.ranks.glob("*.json"))
        os.kill(pid, signal.SIGSTOP)
        until(lambda: is_stopped(pid))
        first = checks(run)[0]
        assert (first.name, first.state, first.fix) == ("process", "fail", f"run: kill -CONT {pid}")
        subprocess.run(first.fix.removeprefix("run: ").split(), check=True)
        until(lambda: not is_stopped(pid))
        assert checks(run)[0].state != "fail"
        os.killpg(pid, signal.SIGKILL)
    line = json.loads(run.metrics.read_text().splitlines()[-1])
    assert {*SHARES, "clipped"} <= line.keys()
    (check,) = (check for check in checks(run) if check.name == "process")
    assert (check.state, "resumes where it stopped" in check.fix) == ("warn", True)


def test_a_training_is_looked_at_without_torch(tmp_path: Path) -> None:
    run = a_run(tmp_path, falling())
    code = "import sys; from voxstill import cli; cli.main(['doctor', sys.argv[1]]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=True, capture_output=True)


def test_a_training_says_at_its_end_what_held_it_up(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    train_once(str(work), str(run.path), "train.steps=4")
    assert " is the bottleneck" in run.log.read_text()
    assert read_waits(run)[0].total.steps == 4


@pytest.fixture
def work(tmp_path: Path) -> Path:
    write_shards(Store(str(tmp_path / "work")), "shards/r", {"train": 24, "dev": 4})
    return tmp_path / "work"
