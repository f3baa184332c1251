from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine_works import (
    FunctionWork,
    Rows,
    Twice,
    aside,
    flat,
    names,
    plain,
    run,
)
from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.errors import Interrupted
from voxstill.engine import Chunk, Stage, chunks_of
from waiting import until


@pytest.mark.parametrize("name", ["inline", "ray"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_chunks_in_progress_and_returns_the_rest(ray: Any, name: Any, number: int) -> None:
    committed: Rows = {}
    before, one_at_a_time = signal.getsignal(number), threading.Lock()

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        with one_at_a_time:  # threads commit side by side
            committed[chunk.id] = rows
            if len(committed) == 3:
                os.kill(os.getpid(), number)

    stages = (Stage(name="decode", work=Twice(), workers=1), Stage(name="teach", work=FunctionWork(names), workers=1))
    with pytest.raises(Interrupted, match=signal.Signals(number).name) as caught:
        engine.run(chunks_of(range(100), 2, str), stages, commit, aside, Engine(name=name))
    assert caught.value.exit_code == 130
    assert 3 <= len(committed) <= 3 + 2 * 2  # at most what two workers had in hand
    assert f"{len(committed)} chunks are safe" in caught.value.why
    assert all(len(rows) == 2 for rows in committed.values())
    assert signal.getsignal(number) is before
    rest, _ = run((chunk for chunk in chunks_of(range(100), 2, str) if chunk.id not in committed), stages, name=name)
    assert sorted(flat(committed) + flat(rest)) == sorted(f"{i}:{2 * i}" for i in range(100))


def test_a_second_signal_stops_at_once(ray: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun = tmp_path / "begun"

    def make() -> Callable[..., list[str]]:
        def work(items: Sequence[Any], payload: Any) -> list[str]:
            begun.touch()
            time.sleep(60)
            return plain(items, payload)

        return work

    def impatient() -> None:
        until(begun.exists)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: any("SIGINT" in line for line in caplog.messages))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=impatient)
    thread.start()
    with caplog.at_level(logging.INFO, "voxstill"), pytest.raises(KeyboardInterrupt):
        run(chunks_of(range(4), 2, str), (Stage(name="work", work=FunctionWork(make), workers=1),), name="ray")
    assert time.time() - begun.stat().st_mtime < 30  # and not the minute that the work takes
    thread.join()
