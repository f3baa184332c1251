"""`voxstill control EXP`: what it writes, shows and refuses, and what it says of a training that was killed."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from voxstill import cli
from voxstill.core import config, process
from voxstill.pipeline.control_training import control_training
from voxstill.storage import control, lease
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training import experiment
from voxstill.training.control import NAME, TrainingStatus


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """An experiment that has begun."""
    run = RunDir(tmp_path / "exp")
    run.path.mkdir()
    experiment.write_snapshot(run.config, config.load(None, ["train.steps=50", f"work={tmp_path}/work"]))
    return run


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any], str]:
    capsys.readouterr()
    code = cli.main(["control", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def write_status(run: RunDir, **values: Any) -> None:
    status = TrainingStatus(
        **{
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": process.started(os.getpid()),
            "running": True,
            "asked_at": None,
            "refused": None,
            "since": None,
            "train": {"steps": 50},
        }
        | values
    )
    Store(str(run.path)).write_json(f"{control.STATUS}/{NAME}.json", status.to_dict())


def test_requests_are_added_to_one_another_shown_and_taken_back(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(capsys, run.path)[1] == {"asked": {}, "at": None, "jobs": []}
    assert command(capsys, run.path, "--set", "train.log_every=5")[0] == 0
    _, result, _ = command(capsys, run.path, "--set", "train.steps=90", "--stop-after-epoch")
    assert result["asked"] == {"train": {"log_every": 5, "steps": 90}}
    assert result["stop_after_epoch"] is True
    _, result, _ = command(capsys, run.path, "--set", "train.loader_workers=2")
    assert result["stop_after_epoch"] is True
    assert control.requested(Store(str(run.path))).set["train"]["loader_workers"] == 2
    code, _, err = command(capsys, run.path, "--set", "train.lr=1", "--set", "train.steps=60")
    assert (code, "`train.lr_factor`" in err) == (2, True)
    code, _, err = command(capsys, run.path, "--set", "train.steps=null")
    assert (code, "the training has no end" in err) == (2, True)
    assert control.requested(Store(str(run.path))).set["train"]["steps"] == 90  # what is refused is not written
    assert cli.main(["control", str(run.path)]) == 0
    assert "train.steps = 90" in capsys.readouterr().out
    assert command(capsys, run.path, "--clear")[1]["asked"] == {}
    assert cli.main(["control", str(run.path)]) == 0
    assert "nothing is requested: the training runs as it was started" in capsys.readouterr().out


def test_the_status_says_whether_the_training_runs_and_what_it_made_of_the_request(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(run)
    _, result, _ = command(capsys, run.path, "--set", "train.steps=90")
    assert result["jobs"][0]["running"] is True
    assert cli.main(["control", str(run.path)]) == 0
    assert "has not read the request yet" in capsys.readouterr().out
    write_status(run, asked_at=result["at"], since=41)
    assert cli.main(["control", str(run.path)]) == 0
    assert "follows the request, since step 41" in capsys.readouterr().out
    write_status(run, asked_at=result["at"], refused="the training would already be over", started="1")
    _, result, _ = command(capsys, run.path)
    assert result["jobs"][0]["running"] is False  # another process has its number now
    assert cli.main(["control", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "training: ended" in out
    assert "refused the request" in out


@pytest.mark.parametrize("silent_s", [0.0, 2 * lease.STALE_S])
def test_a_training_that_was_killed_on_another_machine_has_ended(
    run: RunDir, capsys: pytest.CaptureFixture[str], silent_s: float
) -> None:
    write_status(run, host="elsewhere", pid=7, started="7")
    of_this = lease.Holder.of_this_process("train")
    beat_s = of_this.beat_s - silent_s
    holder = dataclasses.replace(of_this, machine="elsewhere", process=7, started="7", beat_s=beat_s)
    Store(str(run.path)).create(f"leases/{NAME}/00000001.json", holder.to_json())
    assert command(capsys, run.path)[1]["jobs"][0]["running"] is (silent_s == 0)


def test_a_request_that_was_refused_is_no_part_of_the_next_one(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, run.path, "--set", "train.log_every=5")
    _, result, _ = command(capsys, run.path, "--set", "train.steps=1", "--stop-after-epoch")
    write_status(run, asked_at=result["at"], refused="the training has made more steps")
    _, result, _ = command(capsys, run.path, "--set", "train.keep_every=9")
    assert result["asked"] == {"train": {"log_every": 5, "keep_every": 9}}
    assert result.get("stop_after_epoch") is None
    assert control.requested(Store(str(run.path))).set == result["asked"]


def test_requests_at_the_same_time_all_count(run: RunDir) -> None:
    options = ["train.log_every=7", "train.lr_factor=0.9", "train.checkpoint_every=21", "train.keep_every=42"]
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(lambda option: control_training(run.path, [option], clear=False, stop_after_epoch=False), options)
        )
    assert control.requested(Store(str(run.path))).set == {
        "train": {"log_every": 7, "lr_factor": 0.9, "checkpoint_every": 21, "keep_every": 42}
    }


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"host": 3}', b'{"train": {}}', b"\xff"])
def test_a_status_or_a_request_that_is_none_ends_in_words(
    run: RunDir, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    store = Store(str(run.path))
    store.replace(f"{control.STATUS}/{NAME}.json", content)
    assert command(capsys, run.path)[1]["jobs"] == []
    store.replace(control.REQUEST, content)
    for arguments in ((), ("--set", "train.steps=9"), ("--clear",)):
        code, _, err = command(capsys, run.path, *arguments)
        assert code in (0, 2, 3)
        assert "Traceback" not in err
    assert control.requested(store).set == {}


def test_a_training_that_is_finished_and_what_is_no_training_are_refused(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.summary.write_text("{}")
    code, _, err = command(capsys, run.path, "--set", "train.steps=90")
    assert (code, f"--continue {run.path}" in err) == (2, True)
    assert command(capsys, run.path)[0] == 0
    assert not (run.path / control.REQUEST).exists()
    code, _, err = command(capsys, tmp_path / "nowhere", "--stop-after-epoch")
    assert (code, "is not an experiment" in err) == (2, True)
