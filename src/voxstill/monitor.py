"""What a run says of itself while it works: progress with rate and time left, timers, JSON lines.

Everything goes to standard error or to a file, never to standard output.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

log = logging.getLogger("voxstill")
QUIET_INTERVAL_S = 10.0
"""Without a terminal, progress is one line this often."""


class Progress:
    """A bar on a terminal, a line now and then elsewhere; both with rate and time left.

    `advance(n, detail)` counts `n` units done; `detail` is shown beside the bar. Use it as a `with` block.
    """

    def __init__(self, title: str, total: float | None, unit: str) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done, self._detail = 0.0, ""
        self._start = self._said = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                "{task.description:<8}",
                BarColumn(),
                "{task.percentage:>3.0f}%",
                TextColumn("{task.fields[detail]}"),
            )
            self._bar = Bar(
                *columns,
                TimeElapsedColumn(),
                "left",
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total, detail="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: float = 1, detail: str = "") -> None:
        """Count `amount` more units as done."""
        self.to(self._done + amount, detail)

    def to(self, done: float, detail: str = "") -> None:
        """Say that `done` units are done in all."""
        self._done, self._detail = done, detail or self._detail
        if self._bar is not None:
            self._bar.update(self._task, completed=done, detail=f"{self.rate()} {self._detail}")
        elif time.monotonic() - self._said >= QUIET_INTERVAL_S:
            self._said = time.monotonic()
            log.info("%s %s", self._title, self.line())

    def rate(self) -> str:
        """Units a second so far; empty where there is no unit."""
        if not self._unit:
            return ""
        return f"{self._done / max(time.monotonic() - self._start, 1e-9):,.1f} {self._unit}/s"

    def line(self) -> str:
        """Share done, rate and time left in words."""
        if not self._total:
            return ", ".join(each for each in (f"{self._done:,.0f} {self._unit}", self.rate(), self._detail) if each)
        elapsed = time.monotonic() - self._start
        left = elapsed * (self._total - self._done) / max(self._done, 1e-9)
        share = self._done / self._total
        said = [f"{share:.0%}", self.rate(), self._detail, f"{clock(left)} left"]
        return ", ".join(each for each in said if each)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(min(max(seconds, 0.0), 359_999)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Timer:
    """Seconds spent inside its `with` blocks, added up."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of this block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def take(self) -> float:
        """The seconds so far; counting starts anew."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class JsonLines:
    """A file of one JSON object a line; each line is whole or absent, also after a crash. Only `rows` old ones stay."""

    def __init__(self, path: Path, rows: int | None = None) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():  # a line cut short by a crash would swallow the next one
            data = path.read_bytes()
            whole = b"".join([line for line in data.splitlines(keepends=True) if line.endswith(b"\n")][:rows])
            if whole != data:
                path.write_bytes(whole)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one object."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def start_logging(level: str = "info") -> None:
    """Messages go to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S"))
    handler.setLevel(level.upper())
    log.handlers[:] = [handler]
    log.setLevel("DEBUG" if level == "debug" else "INFO")  # a file of its own, such as train.log, hears more
    log.propagate = False
