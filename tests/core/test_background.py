"""Work that a thread repeats."""

from __future__ import annotations

import threading

import pytest

from voxstill.core import monitor
from voxstill.core.background import repeating
from waiting import until


def test_it_is_called_again_and_again_and_no_more_after_the_block() -> None:
    calls: list[str] = []
    with repeating("counting", 0.01, lambda: calls.append(threading.current_thread().name)):
        until(lambda: len(calls) > 3)
    num = len(calls)
    assert set(calls) == {"counting"}
    assert "counting" not in {thread.name for thread in threading.enumerate()}
    assert len(calls) == num


def test_what_it_raises_is_logged_once_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    monitor.start_logging("info")
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise ValueError("a foreign file")

    with repeating("reading", 0.01, work):
        until(lambda: len(calls) > 3)
    assert capsys.readouterr().err.count("reading: ValueError: a foreign file") == 1
