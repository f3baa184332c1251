"""A run of the demo in a terminal of its own, watched by a Prometheus, and what was recorded of it."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import json
import math
import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loose_files import load
from metrics_svg import Chart, Series
from prometheus import Prometheus, prometheus
from terminal_svg import COLUMNS, ROWS, Output

COMMAND = "voxstill demo"
SCRAPE_S, RATE_S, NUM_POINTS = 0.5, 10, 150
PANELS: Mapping[str, tuple[str, str, tuple[tuple[str, str], ...]]] = {
    "metrics_label": (
        'voxstill_step_running{step="label"}',
        'step="label"',
        (
            ("Steps", "Progress"),
            ("Steps", "Times real time"),
            ("Stages: which one starves which", "Workers at work"),
            ("Stages: which one starves which", "Waiting for the stages after"),
            ("Stages: which one starves which", "Queue"),
            ("Steps", "Time left"),
        ),
    ),
    "metrics_train": (
        "voxstill_train_running",
        'run=~".*"',
        (
            ("Training", "Loss"),
            ("Training", "Gradient norm"),
            ("Training", "Learning rate"),
            ("Training", "Audio seconds a second"),
            ("Ranks", "Steps a second"),
            ("Ranks", "Waiting for data"),
        ),
    ),
}
"""Of each picture: the series that is 1 while it runs, whose series are shown, and row and title of its panels."""


@dataclass(frozen=True, slots=True)
class DemoRun:
    """A folder in which the demo has run, or will."""

    folder: Path

    @property
    def work(self) -> Path:
        """The work folder of the corpus."""
        return self.folder / "work/demo"

    @property
    def experiment(self) -> Path:
        """The folder of the student."""
        [experiment] = (self.folder / "exp").iterdir()
        return experiment

    @property
    def recording(self) -> Path:
        """The file with what was recorded; it is there once the run is complete."""
        return self.folder / "recording.json"

    def outputs(self) -> list[Output]:
        """What the demo wrote into its terminal."""
        return [Output(**row) for row in json.loads(self.recording.read_text(encoding="utf-8"))["outputs"]]

    def charts(self) -> dict[str, list[Chart]]:
        """The panels of each picture."""
        pictures = json.loads(self.recording.read_text(encoding="utf-8"))["charts"]
        return {name: [_chart(row) for row in rows] for name, rows in pictures.items()}

    def make(self, environment: Mapping[str, str]) -> None:
        """Run the demo in this environment and record it; subprocess.CalledProcessError where it fails."""
        targets = self.folder / "targets"
        targets.mkdir(parents=True)
        job = {"job_name": "voxstill", "file_sd_configs": [{"files": [f"{targets}/*.json"], "refresh_interval": "1s"}]}
        config = {"global": {"scrape_interval": f"{round(1000 * SCRAPE_S)}ms"}, "scrape_configs": [job]}
        monitored = {"VOXSTILL__MONITOR__PORT": "0", "VOXSTILL__MONITOR__DISCOVERY": str(targets)}
        with prometheus(self.folder / "prometheus", config) as server:
            start = time.time()
            outputs = list(_outputs(self.folder, {**environment, **monitored}))
            charts = {name: _charts(server, name, start, time.time()) for name in PANELS}
        rows = {name: [dataclasses.asdict(chart) for chart in panels] for name, panels in charts.items()}
        recording = {"outputs": [dataclasses.asdict(output) for output in outputs], "charts": rows}
        self.recording.write_text(json.dumps(recording), encoding="utf-8")


def _outputs(folder: Path, environment: Mapping[str, str]) -> Iterator[Output]:
    """Run the demo in a terminal and yield what it writes."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    command = [sys.executable, "-m", *COMMAND.split()]
    variables = {**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    start, decoder = time.monotonic(), codecs.getincrementaldecoder("utf-8")()
    process = subprocess.Popen(command, cwd=folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    last = ""
    with contextlib.suppress(OSError):  # how a terminal says that nobody writes into it any more
        while data := os.read(ours, 1 << 16):
            text = decoder.decode(data)
            last = (last + text)[-3000:]
            yield Output(round(time.monotonic() - start, 2), text)
    os.close(ours)
    if process.wait():
        error = subprocess.CalledProcessError(process.returncode, command)
        error.add_note(last)
        raise error


def _charts(server: Prometheus, picture: str, start: float, end: float) -> list[Chart]:
    running, selected, places = PANELS[picture]
    [row] = server.range(f"{running} == 1", start, end, SCRAPE_S)
    times = [float(at) for at, _ in row["values"]]
    step_s = max(SCRAPE_S, (times[-1] - times[0]) / NUM_POINTS)
    rows = load("monitoring/dashboard.py").ROWS
    charts = []
    for name, title in places:
        [panel] = [panel for panel in rows[name] if panel.title == title]
        query = panel.expression.replace('run=~"$run"', selected).replace("$__rate_interval", f"{RATE_S}s")
        answers = server.range(query, times[0], times[-1], step_s)
        series = tuple(_series(panel.legend, answer["metric"], answer["values"]) for answer in answers)
        charts.append(Chart(title, panel.unit, tuple(curve for curve in series if len(curve.points) > 1)))
    return [chart for chart in charts if chart.series]


def _series(legend: str, labels: Mapping[str, str], values: Sequence[tuple[float, str]]) -> Series:
    for name, value in labels.items():
        legend = legend.replace("{{" + name + "}}", value)
    points = ((round(float(at), 2), float(value)) for at, value in values)
    return Series(legend, tuple((at, value) for at, value in points if math.isfinite(value)))


def _chart(row: Mapping[str, object]) -> Chart:
    series = row["series"]
    assert isinstance(series, list)
    curves = (Series(curve["legend"], tuple((at, value) for at, value in curve["points"])) for curve in series)
    return Chart(str(row["title"]), str(row["unit"]), tuple(curves))
