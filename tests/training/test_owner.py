"""One training for each experiment folder: a second one is told who has it, and one that was killed has lost it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tones import write_shards
from voxstill.core.config import Config, Train
from voxstill.core.errors import StorageError
from voxstill.storage import lease
from voxstill.storage.figures import ShardFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.storage.workdir import finished
from voxstill.training import experiment, owner, parallel
from voxstill.training.experiment import open_run
from voxstill.training.launch import train_rank
from waiting import until

HOLDER = """
import sys, time
from voxstill.storage import lease
from voxstill.storage.store import Store
lease.acquire(Store(sys.argv[1]), "training", "train")
print("has it", flush=True)
time.sleep(600)
"""


class Built(Exception):  # noqa: N818
    """The training has come to where it is built."""


def trained(run: RunDir) -> None:
    """Train as one rank; Built where it may, and it holds the folder meanwhile."""

    def build(*_: object) -> NoReturn:
        with pytest.raises(StorageError, match="another process"):
            owner.check_free(run, "train")
        raise Built

    train_rank(parallel.fabric(Train()), Config(), run, "shards/r", build, "train")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that trains in the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "has it\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_training_is_told_who_has_the_folder_and_changes_nothing(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):
        with pytest.raises(StorageError, match="another process") as raised:
            trained(RunDir(tmp_path))
        assert re.search(rf"process {holder.pid} on .* runs `voxstill train` there since 20\d\d-", raised.value.why)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_training_that_was_killed_has_lost_the_folder_at_once(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 600.0)  # longer than a test may take, were one waited for
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with pytest.raises(Built):
        trained(RunDir(tmp_path))


def test_a_training_that_has_ended_gives_the_folder_back(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(Built):
            trained(RunDir(tmp_path))


def test_what_has_lost_the_folder_writes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.05)

    def is_lost() -> bool:
        try:
            check()
        except StorageError:
            return True
        return False

    with owner.owned(parallel.fabric(Train()), RunDir(tmp_path), "train") as check:
        check()
        store = Store(str(tmp_path))
        store.create("leases/training/00000002.json", lease.Holder.of_this_process("train").to_json())
        until(is_lost)
        with pytest.raises(StorageError, match="taken over"):
            check()


def test_equal_commands_that_begin_at_once_make_one_folder(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write_shards(Store(str(work)), "shards/r", {"train": 8})
    cfg = Config.model_validate({"work": str(work), "train": {"root": str(tmp_path / "exp")}})
    shards = finished(Store(str(work)), ShardFigures, "r")
    together, outcomes = threading.Barrier(4), list[Any]()

    def open_one() -> None:
        together.wait()
        try:
            outcomes.append(open_run(cfg, shards, {"seed": 1}).path)
        except StorageError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = {outcome for outcome in outcomes if isinstance(outcome, Path)}
    assert len(outcomes) == 4
    assert list((tmp_path / "exp").iterdir()) == list(paths)
    assert all("voxstill train" in outcome.why for outcome in outcomes if isinstance(outcome, StorageError))
    assert open_run(cfg, shards, {"seed": 1}).path in paths


def test_an_experiment_folder_that_was_not_made_to_its_end_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    write_shards(Store(str(work)), "shards/r", {"train": 8})
    cfg = Config.model_validate({"work": str(work), "train": {"root": str(tmp_path / "exp")}})
    shards = finished(Store(str(work)), ShardFigures, "r")
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "note", interrupt)  # the last of what is written
        with pytest.raises(KeyboardInterrupt):
            open_run(cfg, shards, {"seed": 1})
    assert not list((tmp_path / "exp").iterdir())
    run = open_run(cfg, shards, {"seed": 1})
    killed = tmp_path / "exp" / f".{experiment.noted(run)['recipe']}"
    (killed / "experiment").mkdir(parents=True)
    assert open_run(cfg, shards, {"seed": 1}).path == run.path
    assert list((tmp_path / "exp").iterdir()) == [run.path]


def interrupt(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt
