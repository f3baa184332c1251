from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine_works import (
    TWO_STAGES,
    FunctionWork,
    Rows,
    aside,
    flat,
    plain,
    run,
)
from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.errors import TeacherError, VoxstillError
from voxstill.engine import Chunk, Stage, StageWork, chunks_of
from waiting import until


def test_a_work_that_takes_two_calls_at_once_gets_them_and_is_closed_after_the_last(ray: Any, tmp_path: Path) -> None:
    class Pairs:
        def __init__(self) -> None:
            self.both, self.working = threading.Barrier(2), 0

        def __call__(self, items: Sequence[Any], _: Any) -> list[str]:
            self.working += 1
            self.both.wait(60)  # for ever, were it alone
            self.working -= 1
            return [f"ok {item}" for item in items]

        def close(self) -> None:
            (tmp_path / str(self.working)).touch()

    committed, summary = run(
        chunks_of(range(24), 2, str), (Stage(name="work", work=FunctionWork(Pairs), workers=1, calls=2),), in_flight=1
    )
    assert sorted(flat(committed)) == sorted(f"ok {i}" for i in range(24))
    assert [rows for chunk in chunks_of(range(24), 2, str) for rows in committed[chunk.id]] == [
        f"ok {i}" for i in range(24)
    ]
    assert (summary.num_retries, summary.num_restarts) == (0, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_process_that_an_item_broke_is_replaced_before_it_fails_the_others(ray: Any) -> None:
    def fragile() -> Any:
        broken: list[bool] = []

        def work(items: Sequence[Any], _: Any) -> list[str]:
            if 5 in items:
                broken.append(True)
            if broken:
                raise RuntimeError("device-side assert")
            return [f"ok {item}" for item in items]

        return work

    committed, summary = run(chunks_of(range(24), 4, str), (Stage(name="work", work=FunctionWork(fragile), workers=1),))
    assert [row for row in flat(committed) if not row.startswith("ok")] == ["aside 5: RuntimeError: device-side assert"]
    assert summary.num_restarts >= 1


def test_a_missing_model_is_an_error_at_once(ray: Any) -> None:
    def make() -> Any:
        raise TeacherError("no model", why="the folder is empty", fix="fetch it")

    with pytest.raises(TeacherError, match="no model") as caught:
        run(chunks_of(range(9), 1, str), (Stage(name="teach", work=FunctionWork(make), workers=2),))
    assert caught.value.fix == "fetch it"


@pytest.mark.parametrize("name", ["inline", "ray"])
def test_a_stage_that_cannot_be_built_says_why(ray: Any, name: str) -> None:
    with pytest.raises(VoxstillError, match="the stage `teach` cannot start") as caught:
        run([Chunk("c", (1,))], (Stage(name="teach", work=FunctionWork(lambda: {}["gone"]), workers=1),), name=name)
    assert caught.value.why == "KeyError: 'gone'"


def test_a_worker_that_dies_while_starting_is_given_up(ray: Any) -> None:
    with pytest.raises(VoxstillError, match="cannot start") as caught:
        run([Chunk("c", (1,))], (Stage(name="teach", work=FunctionWork(lambda: os._exit(3)), workers=1),), attempts=2)
    assert "died 2 times" in caught.value.why


def test_a_work_is_closed_in_its_process_at_the_end(ray: Any, tmp_path: Path) -> None:
    class Closing:
        def __call__(self, items: Sequence[Any], _: Any) -> list[Any]:
            return list(items)

        def close(self) -> None:
            (tmp_path / name).touch()

    for name in ("inline", "ray"):
        run([Chunk("c", (1,))], (Stage(name="work", work=FunctionWork(Closing), workers=1),), name=name)
    assert {path.name for path in tmp_path.iterdir()} == {"inline", "ray"}


def test_what_a_worker_has_started_dies_with_it(ray: Any, tmp_path: Path) -> None:
    def make() -> Any:
        child = subprocess.Popen(["sleep", "600"])
        (tmp_path / str(child.pid)).touch()
        return plain

    run([Chunk("c", ("die", 1))], (Stage(name="work", work=FunctionWork(make), workers=1),), attempts=1)
    children = [Path("/proc") / path.name for path in tmp_path.iterdir()]
    assert len(children) == 3
    until(lambda: not any(child.exists() for child in children))


def test_killed_workers_lose_nothing_and_repeat_nothing(ray: Any, tmp_path: Path) -> None:
    def tracked(stage: str, work: StageWork) -> Any:
        (tmp_path / f"{stage}.{os.getpid()}").touch()
        work.open()

        def slow(items: Sequence[Any], payload: Any) -> Any:
            time.sleep(0.1)
            return work(items, payload)

        return slow

    stages = [
        Stage(name=stage.name, work=FunctionWork(partial(tracked, stage.name, stage.work)), workers=stage.workers)
        for stage in TWO_STAGES
    ]
    committed: Rows = {}
    numbers, kills = itertools.count(), {3: "teach", 12: "decode"}

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        assert chunk.id not in committed
        committed[chunk.id] = rows
        if stage := kills.pop(next(numbers), None):
            os.kill(int(min(tmp_path.glob(f"{stage}.*")).suffix[1:]), signal.SIGKILL)

    summary = engine.run(chunks_of(range(160), 4, str), stages, commit, aside, Engine())
    assert not kills
    assert summary.num_restarts == 2
    assert sorted(flat(committed)) == sorted(f"{i}:{2 * i}" for i in range(160))
