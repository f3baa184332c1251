"""Monitoring: whole lines, correct times, and nothing on standard output."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pty
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.core import monitor
from voxstill.core.monitor import JsonLines, Progress, Timer, clock


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_cut_short_by_a_crash_is_gone_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    JsonLines(path).write({"step": 1, "word": "ü"})
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    JsonLines(path).write({"step": 3})
    assert rows_of(path) == [{"step": 1, "word": "ü"}, {"step": 3}]


def test_a_file_that_holds_only_a_cut_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"st')
    JsonLines(path).write({"step": 1})
    assert rows_of(path) == [{"step": 1}]


@given(st.floats(allow_nan=False, allow_infinity=True))
def test_any_number_of_seconds_is_a_clock(seconds: float) -> None:
    parts = [int(part) for part in clock(seconds).split(":")]
    assert 2 <= len(parts) <= 3
    assert all(0 <= part < 60 for part in parts[1:])


def test_a_clock_reads_as_people_write_it() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3600, 3725.2)] == ["0:00", "1:00", "1:01", "1:00:00", "1:02:05"]


def test_a_timer_counts_only_what_runs_inside_it_also_when_it_fails() -> None:
    timer, begun_s = Timer(), time.perf_counter()

    def fails() -> None:
        with timer.running():
            time.sleep(0.02)
            raise ZeroDivisionError

    with timer.running():
        time.sleep(0.02)
    time.sleep(0.1)
    with pytest.raises(ZeroDivisionError):
        fails()
    assert 0.04 <= timer.seconds <= time.perf_counter() - begun_s - 0.1
    assert timer.take() > 0
    assert timer.seconds == 0


def test_progress_says_share_rate_and_time_left_on_standard_error_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "QUIET_INTERVAL_S", 0.0)
    monitor.start_logging()
    with Progress("label", 10, "utterances") as bar:
        bar.advance(4, "chunk 1")
        bar.advance()
        assert bar.line().startswith("50%, ")
        assert bar.line().endswith(" left")
        assert "utterances/s" in bar.line()
    out, err = capsys.readouterr()
    assert out == ""
    assert "label 40%" in err
    assert "chunk 1" in err


def test_a_log_line_stands_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, which is a pseudo-terminal here; what the cursor does between lines is of no interest."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    ours, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        monitor.start_logging()
        with Progress("label", 10, "utterances") as bar:
            bar.advance(4)
            monitor.log.warning("beside the bar")
    chunks = []
    with contextlib.suppress(OSError):  # EIO: the other end is closed, and all was read
        while chunk := os.read(ours, 1 << 16):  # one read may return a part
            chunks.append(chunk)
    os.close(ours)
    written = b"".join(chunks).decode()
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r", "\n").split("\n")
    assert [bool(re.fullmatch(r"\d\d:\d\d:\d\d WARNING beside the bar", line)) for line in lines].count(True) == 1
    assert sum("beside the bar" in line for line in lines) == 1


def test_progress_without_a_total_or_a_unit_has_a_line() -> None:
    with Progress("scan", None, "files") as bar:
        bar.advance(3)
        assert bar.line().startswith("3 files, ")
    with Progress("train", 1.0, "") as bar:
        bar.set_done(0.25, "step 3")
        assert bar.line().startswith("25%, step 3, ")
    with Progress("nothing", 0, "files") as bar:
        assert bar.line()


def test_time_left_of_a_resumed_run_is_that_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("voxstill.core.monitor.time.monotonic", lambda: now[0])
    with Progress("train", 1000, "steps", done=750) as bar:
        now[0] += 10
        bar.set_done(800)
        assert bar.line() == "80%, 5.0 steps/s, 0:40 left"


def test_logging_started_twice_says_everything_once(capsys: pytest.CaptureFixture[str]) -> None:
    monitor.start_logging("warning")
    monitor.start_logging("warning")
    monitor.log.info("quiet")
    monitor.log.warning("loud")
    assert capsys.readouterr().err.count("loud") == 1
    assert [handler.level for handler in monitor.log.handlers] == [logging.WARNING]
    assert monitor.log.level == logging.INFO  # a log file takes more


def test_messages_as_json_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    monitor.start_logging("info", "json")
    monitor.log.warning("two\nlines of %s", "\x1b[31mred")
    try:
        raise ZeroDivisionError("none")
    except ZeroDivisionError:
        monitor.log.exception("failed")
    monitor.show_error("wrong: because", "disk-full")
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [row["level"] for row in rows] == ["warning", "error", "error"]
    assert rows[0]["message"] == "two\nlines of \x1b[31mred"
    assert "ZeroDivisionError: none" in rows[1]["traceback"]
    assert (rows[2]["message"], rows[2]["code"]) == ("wrong: because", "disk-full")


def test_the_innermost_says_what_goes_on() -> None:
    assert monitor.status() == ""
    with Progress("label", 10, "utterances") as bar:
        bar.set_done(5)
        assert re.match(r"label 50%, .*; nothing new for 0:00", monitor.status() or "")
        with monitor.describing(lambda: None):
            assert monitor.status() is None
    assert monitor.status() == ""


def test_progress_that_has_not_begun_knows_no_time_left() -> None:
    with Progress("label", 10, "utterances") as bar:
        assert bar.line() == "0%, 0.0 utterances/s"
