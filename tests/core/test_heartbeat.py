"""A log is never silent for long, whatever hangs."""

from __future__ import annotations

import re
import time

import pytest

from voxstill.core import heartbeat, monitor
from voxstill.core.monitor import Progress
from waiting import until


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SILENCE_S", 0.2)
    monitor.start_logging()


class Lines:
    """What was written to standard error so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.text = capsys, ""

    def num(self, pattern: str) -> int:
        self.text += self._capsys.readouterr().err
        return len(re.findall(pattern, self.text))


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    return Lines(capsys)


def test_a_command_that_hangs_says_so_again_and_again(lines: Lines) -> None:
    with heartbeat.running("label"):
        until(lambda: lines.num(r"label: running for 0:0\d; nothing new for 0:0\d") > 1)


def test_a_step_that_hangs_says_how_far_it_is(lines: Lines) -> None:
    with heartbeat.running("run"), Progress("label", 10, "utterances") as bar:
        bar.set_done(4)
        until(lambda: lines.num(r"label 40%, .* left; nothing new for 0:0\d") > 1)


def test_while_others_log_nothing_is_added(lines: Lines) -> None:
    with heartbeat.running("label"):
        give_up_at = time.monotonic() + 1
        while time.monotonic() < give_up_at:
            monitor.log.info("a message")
            time.sleep(0.01)
    assert lines.num("running for") == 0


def test_one_who_waits_for_others_says_nothing(lines: Lines) -> None:
    with heartbeat.running("serve"), monitor.describing(lambda: None):
        time.sleep(1)
    assert lines.num("serve") == 0
