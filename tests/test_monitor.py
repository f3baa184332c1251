"""What a run says: whole lines, honest times, and never a word on standard output."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill import monitor
from voxstill.monitor import JsonLines, Progress, Timer, clock


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
    parts = [int(each) for each in clock(seconds).split(":")]
    assert 2 <= len(parts) <= 3
    assert all(0 <= each < 60 for each in parts[1:])


def test_a_clock_reads_as_people_write_it() -> None:
    assert [clock(each) for each in (0, 59.6, 61, 3600, 3725.2)] == ["0:00", "1:00", "1:01", "1:00:00", "1:02:05"]


def test_a_timer_counts_only_what_runs_inside_it_also_when_it_fails() -> None:
    timer = Timer()

    def fails() -> None:
        with timer.running():
            time.sleep(0.02)
            raise ZeroDivisionError

    with timer.running():
        time.sleep(0.02)
    time.sleep(0.5)
    with pytest.raises(ZeroDivisionError):
        fails()
    assert 0.04 <= timer.seconds < 0.5
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


def test_progress_without_a_total_or_a_unit_still_speaks() -> None:
    with Progress("scan", None, "files") as bar:
        bar.advance(3)
        assert bar.line().startswith("3 files, ")
    with Progress("train", 1.0, "") as bar:
        bar.to(0.25, "step 3")
        assert bar.line().startswith("25%, step 3, ")
    with Progress("nothing", 0, "files") as bar:
        assert bar.line()


def test_logging_started_twice_says_everything_once(capsys: pytest.CaptureFixture[str]) -> None:
    monitor.start_logging("warning")
    monitor.start_logging("warning")
    monitor.log.info("quiet")
    monitor.log.warning("loud")
    assert capsys.readouterr().err.count("loud") == 1
    assert [handler.level for handler in monitor.log.handlers] == [logging.WARNING]
    assert monitor.log.level == logging.INFO  # a file of its own hears more
