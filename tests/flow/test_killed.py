"""Killed at any moment and started again, the line ends with the bytes of one that nobody disturbed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from forked import command, finish, start
from seeds import seeded_random

pytestmark = pytest.mark.slow
ECHO = {"name": "echo", "substitute": 0.1, "delay_ms": 40}
TRAIN = {
    **{"steps": 30, "optimizer": "adamw", "seed_mode": "debug", "loader_workers": 1},
    **{"checkpoint_every": 4, "validate_every": 10},
}


class Torture:
    """Runs of one command in process groups of their own.

    What they start is findable: what is forked by its session, what is executed by a mark in its environment too.
    """

    def __init__(self, folder: Path) -> None:
        self._mark = f"VOXSTILL_TORTURE={folder}"
        self._sessions: set[bytes] = set()
        self._log = folder / "log"
        self._chance = seeded_random()

    def start(self, *arguments: object) -> ForkServerProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        name, _, value = self._mark.partition("=")
        process = start(command, arguments, log=self._log, environment=environment | {name: value})
        self._sessions.add(str(process.pid).encode())
        return process

    def finish(self, *arguments: object) -> None:
        finish(self.start(*arguments), log=self._log)

    def kill_when(self, there: Callable[[], bool], *arguments: object, number: int = signal.SIGKILL) -> int | None:
        """Start the command and send its whole group a signal a moment after something is there; its exit code."""
        process = self.start(*arguments)
        deadline = time.monotonic() + 120
        while not there() and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(self._chance.uniform(0, 0.15))
        assert process.pid is not None
        os.killpg(process.pid, number)
        process.join(60)
        return process.exitcode

    def left(self, within_s: float = 90) -> list[str]:
        """Processes of any of the runs that are still there after a while; Ray's agents take up to a minute."""
        deadline = time.monotonic() + within_s
        while (processes := self._processes()) and time.monotonic() < deadline:
            time.sleep(1)
        return processes

    def _processes(self) -> list[str]:
        return [path.name for path in Path("/proc").glob("[0-9]*") if self._is_of_a_run(path)]

    def _is_of_a_run(self, path: Path) -> bool:
        fields = read(path / "stat").rpartition(b")")[2].split()  # state, parent, group, session: see proc(5)
        is_forked = len(fields) > 3 and fields[0] != b"Z" and fields[3] in self._sessions
        return is_forked or self._mark.encode() in read(path / "environ")


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def kept(work: Path) -> dict[str, bytes]:
    """Every part of every table and shard."""
    return {
        str(path.relative_to(work)): path.read_bytes()
        for path in sorted(work.rglob("*"))
        if path.suffix in {".parquet", ".tar"}
    }


def num(folder: Path, pattern: str) -> int:
    return len(list(folder.glob(pattern)))


def test_a_pipeline_killed_in_every_step_ends_with_the_same_bytes(
    digits: Path, configure: Callable[..., Path], tmp_path: Path
) -> None:
    calm, struck = tmp_path / "calm", tmp_path / "struck"
    configs = {}
    for folder in (calm, struck):
        folder.mkdir()
        configs[folder] = configure(
            folder, digits / "manifest.jsonl", teacher=ECHO, train=TRAIN | {"root": str(folder / "exp")}
        )
    torture = Torture(tmp_path)
    torture.finish("run", configs[calm])
    moments: list[Callable[[], bool]] = [
        lambda: num(struck, "work/recordings/*/*.parquet") > 0,
        lambda: num(struck, "work/labels/*/*.parquet") > 1,
        lambda: num(struck, "work/shards/*/*.parquet") > 1,
        lambda: num(struck, "exp/*/checkpoints/last") > 0,
    ]
    for moment in moments:
        torture.kill_when(moment, "run", configs[struck])
    assert num(struck, "exp/*/summary.json") == 0, "the last kill came after the end"
    torture.finish("run", configs[struck])
    assert kept(struck / "work") == kept(calm / "work")
    (calm_run,), (struck_run,) = (
        [path.parent for path in folder.glob("exp/*/summary.json")] for folder in (calm, struck)
    )
    assert "resuming at step" in (struck_run / "train.log").read_text()
    weights = Path("model", "model.safetensors")
    assert (struck_run / weights).read_bytes() == (calm_run / weights).read_bytes()
    assert torture.left() == []


def test_a_terminal_that_interrupts_labelling_under_ray_loses_and_repeats_nothing(
    digits: Path, configure: Callable[..., Path], voxstill: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    torture, work = Torture(tmp_path), tmp_path / "work"
    engine = {"name": "ray", "chunk": 2}
    config = configure(tmp_path, digits / "manifest.jsonl", teacher=ECHO | {"delay_ms": 500}, engine=engine)
    label = ("label", work, "--config", config)
    voxstill("index", digits / "manifest.jsonl", "--work", work, "--config", config, "--set", "engine=inline")
    code = torture.kill_when(lambda: num(work, "labels/*/*.parquet") >= 2, *label, number=signal.SIGINT)
    assert code == 130
    before = {path.name: path.stat().st_mtime_ns for path in work.glob("labels/*/*.parquet")}
    assert 2 <= len(before) < 12
    torture.finish(*label, "--set", "engine.name=inline")
    after = {path.name: path.stat().st_mtime_ns for path in work.glob("labels/*/*.parquet")}
    assert before.items() <= after.items()
    assert len(after) == 12
    assert torture.left() == []
