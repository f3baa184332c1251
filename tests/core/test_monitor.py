"""Monitoring: whole lines, correct times, and nothing on standard output."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.core import monitor
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import JsonLines, Progress, StepMeter, Summary, Timer, clock


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


# ------------------------------------------------------------------------------------------------ Prometheus


def test_kinds_of_errors_hold_no_path_no_id_and_no_number() -> None:
    assert monitor.error_label("truncated: 3 of 5 s are there") == "truncated"
    assert monitor.error_label("set aside: its worker died") == "set aside"
    for secret in ("`/data/ann.wav` does not exist", "utterance 6fa2644372e7256b: odd", "s3://bucket/x: gone", ""):
        assert monitor.error_label(secret) == "other"


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_a_real_prometheus_reads_the_figures_of_a_step(tmp_path: Path) -> None:
    metrics = monitor.Metrics()
    port = metrics.serve("127.0.0.1", 0)
    assert metrics.serve("127.0.0.1", 0) == port
    meter = StepMeter("label", 12, "utterances")
    metrics.add(meter)
    meter.count_done(90_000, ["truncated: half of it", "`/data/ann.wav` does not exist"])
    busy = {"decode": 0.25, "teach": 0.75}
    meter.update(Summary(num_chunks=3, num_open=2, num_items=9, num_retries=1, elapsed_s=3.0, busy=busy))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    job = {"job_name": "voxstill", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "200ms"}, "scrape_configs": [job]}))
    options = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={listen}"]
    server = subprocess.Popen(["prometheus", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        series = _ask(listen, '{job="voxstill",__name__=~"voxstill_.*"}')
        rtfx = _ask(listen, "voxstill_audio_seconds_total / voxstill_elapsed_seconds")
    finally:
        server.terminate()
        server.wait(20)
    values = {
        (row["metric"]["__name__"], row["metric"].get("stage") or row["metric"].get("kind")): float(row["value"][1])
        for row in series
    }
    assert {name for row in series for name in row["metric"]} <= {
        "__name__",
        "job",
        "instance",
        "step",
        "stage",
        "kind",
    }
    assert {row["metric"]["step"] for row in series} == {"label"}
    assert values["voxstill_items_total", None] == 9
    assert values["voxstill_items_planned", None] == 12
    assert values["voxstill_chunks_open", None] == 2
    assert values["voxstill_busy_ratio", "teach"] == 0.75
    assert values["voxstill_errors_total", "truncated"] == values["voxstill_errors_total", "other"] == 1
    assert float(rtfx[0]["value"][1]) == 30.0


def _ask(address: str, query: str) -> list[dict[str, Any]]:
    """The result of a query to Prometheus, once there is one."""
    url = f"http://{address}/api/v1/query?query={urllib.parse.quote(query)}"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if series := json.load(answer)["data"]["result"]:
                    return list(series)
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"Prometheus never answered {query}")


def test_a_port_that_is_taken_is_a_config_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(ConfigError, match="cannot be served"):
            monitor.Metrics().serve("127.0.0.1", listener.getsockname()[1])
