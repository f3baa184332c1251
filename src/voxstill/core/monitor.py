"""Monitoring of a run: progress bars with rate and time left, timers, logging, JSON lines, Prometheus metrics.

Everything goes to standard error, to a file or to a port, never to standard output.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from voxstill.core.atomic import write_atomically
from voxstill.core.errors import ConfigError
from voxstill.core.result import to_json
from voxstill.core.terminal import continued, printable

log = logging.getLogger("voxstill")
_HEAD_COLUMNS = 17
"""Time and level in front of a message."""
MOST_CLIENTS, CLIENT_S = 32, 10.0
"""Of the metrics at once; each is waited for so long."""
QUIET_INTERVAL_S = 10.0
"""Without a terminal, progress is one line this often."""


class Progress:
    """A bar on a terminal, a line now and then elsewhere; both with rate and time left.

    `advance(n, detail)` counts `n` units done; `detail` is shown beside the bar. Use it as a `with` block.
    `done` units were done before it began: rate and time left are those of the rest.
    """

    def __init__(self, title: str, total: float | None, unit: str, *, done: float = 0.0) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._before = self._done = done
        self._detail = ""
        self._start = self._logged = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                "{task.description:<8}",
                BarColumn(),
                "{task.percentage:>3.0f}%",
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
                "left",
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total, completed=self._done, detail="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: float = 1, detail: str = "") -> None:
        """Count `amount` more units as done."""
        self.set_done(self._done + amount, detail)

    def set_done(self, done: float, detail: str = "") -> None:
        """Set the number of units that are done."""
        self._done, self._detail = done, detail or self._detail
        if self._bar is not None:
            self._bar.update(self._task, completed=done, detail=f"{self.rate()} {self._detail}")
        elif time.monotonic() - self._logged >= QUIET_INTERVAL_S:
            self._logged = time.monotonic()
            log.info("%s %s", self._title, self.line())

    def rate(self) -> str:
        """Units a second so far; empty where there is no unit."""
        if not self._unit:
            return ""
        return f"{(self._done - self._before) / max(time.monotonic() - self._start, 1e-9):,.1f} {self._unit}/s"

    def line(self) -> str:
        """Progress in one line of text: share done, rate, detail and time left."""
        if not self._total:
            return _joined(f"{self._done:,.0f} {self._unit}", self.rate(), self._detail)
        elapsed = time.monotonic() - self._start
        left = elapsed * (self._total - self._done) / max(self._done - self._before, 1e-9)
        share = self._done / self._total
        return _joined(f"{share:.0%}", self.rate(), self._detail, f"{clock(left)} left")


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(min(max(seconds, 0.0), 359_999)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of a distributed step so far. `num_open` chunks are in progress; the rest counts what is written.

    `busy` is the utilisation of a stage's workers, from 0 to 1: the bottleneck is near 1.
    """

    num_chunks: int = 0
    num_open: int = 0
    num_items: int = 0
    num_skipped: int = 0
    num_retries: int = 0
    num_restarts: int = 0
    elapsed_s: float = 0.0
    busy: Mapping[str, float] = field(default_factory=dict)


class StepMeter:
    """The figures of one distributed step, on a progress bar and in `METRICS` for Prometheus; a `with` block."""

    def __init__(self, step: str, total: int | None, unit: str) -> None:
        self.step, self.total = step, total
        self.summary = Summary()
        self.audio_ms = 0
        self.errors: Counter[str] = Counter()
        self._bar = Progress(step, total, unit)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        METRICS.add(self)
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, value, trace)

    def count_done(self, audio_ms: int, errors: Iterable[str]) -> None:
        """Count audio that is written and the errors in it; thread-safe."""
        with self._lock:
            self.audio_ms += audio_ms
            self.errors.update(map(error_label, errors))

    def update(self, summary: Summary) -> None:
        """Take over the engine's own figures, after each chunk."""
        self.summary = summary
        self._bar.set_done(summary.num_items, ", ".join(self._details()))

    @property
    def rtfx(self) -> float:
        """Inverse real-time factor: seconds of audio processed per second of the step."""
        return self.audio_ms / 1000 / max(self.summary.elapsed_s, 1e-9)

    def _details(self) -> Iterator[str]:
        with self._lock:
            errors = self.errors.most_common()
        if self.audio_ms:
            yield f"{self.rtfx:,.0f} times real time"
        if errors:
            yield (
                f"{sum(count for _, count in errors):,} failed (" + ", ".join(f"{n:,} {why}" for why, n in errors) + ")"
            )
        if self.summary.num_retries:
            yield f"{self.summary.num_retries:,} tried again"
        if self.summary.num_restarts:
            yield f"{self.summary.num_restarts:,} workers replaced"
        yield from (f"{name} {share:.0%} busy" for name, share in self.summary.busy.items())


def error_label(error: str) -> str:
    """The label of an error for metrics: its words before the colon, `other` where they hold a path or a number."""
    kind = error.partition(":")[0].strip()
    return kind if re.fullmatch(r"[A-Za-z ,\-]{1,60}", kind) else "other"


def _guarded(handler: Any) -> Any:
    """The handler of a server for clients of any kind: few at once, none for long, no traceback of one that left."""
    places = threading.BoundedSemaphore(MOST_CLIENTS)

    class Guarded(handler):  # type: ignore[misc]
        timeout = CLIENT_S

        def handle(self) -> None:
            if places.acquire(blocking=False):
                try:
                    with contextlib.suppress(OSError):
                        super().handle()
                finally:
                    places.release()

    return Guarded


class Metrics:
    """A Prometheus collector over the steps of this process: nothing is computed until it is scraped."""

    def __init__(self) -> None:
        self._steps: dict[str, StepMeter] = {}
        self._served: tuple[str, int] | None = None

    def add(self, meter: StepMeter) -> None:
        """Export the step from now on, in place of an older one of its name."""
        self._steps[meter.step] = meter

    def serve(self, host: str, port: int) -> int:
        """Serve `http://host:port/metrics` from now on; return the port, which the system chooses for 0.

        ConfigError where the address is taken or belongs to another machine.
        """
        from prometheus_client import CollectorRegistry, start_http_server

        if self._served is None or self._served[0] != host or port not in (0, self._served[1]):
            registry = CollectorRegistry(auto_describe=False)
            registry.register(self)
            try:
                server, _ = start_http_server(port, addr=host, registry=registry)
            except OSError as error:
                raise ConfigError(
                    f"metrics cannot be served at {host}:{port}",
                    why=error.strerror or str(error),
                    fix="choose another `monitor.port`",
                ) from None
            server.RequestHandlerClass = _guarded(server.RequestHandlerClass)
            self._served = host, server.server_port
            log.info("metrics: http://%s:%d/metrics", *self._served)
        return self._served[1]

    def collect(self) -> Iterator[Any]:
        """The families of metrics, labelled by step, by stage and by kind of error only: no paths, no ids."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures: list[tuple[Any, str, str, Callable[[StepMeter], float]]] = [
            (CounterMetricFamily, "items", "Items written.", lambda step: step.summary.num_items),
            (CounterMetricFamily, "audio_seconds", "Audio written.", lambda step: step.audio_ms / 1000),
            (CounterMetricFamily, "chunks", "Chunks written.", lambda step: step.summary.num_chunks),
            (CounterMetricFamily, "set_aside", "Items skipped for good.", lambda step: step.summary.num_skipped),
            (CounterMetricFamily, "retries", "Parts of chunks retried.", lambda step: step.summary.num_retries),
            (CounterMetricFamily, "worker_restarts", "Workers replaced.", lambda step: step.summary.num_restarts),
            (GaugeMetricFamily, "chunks_open", "Chunks in progress.", lambda step: step.summary.num_open),
            (GaugeMetricFamily, "elapsed_seconds", "Time of the step so far.", lambda step: step.summary.elapsed_s),
            (GaugeMetricFamily, "rtfx", "Seconds of audio per second of the step.", lambda step: step.rtfx),
        ]
        steps = list(self._steps.values())
        for kind, name, description, value in figures:
            family = kind(f"voxstill_{name}", description, labels=["step"])
            for meter in steps:
                family.add_metric([meter.step], value(meter))
            yield family
        planned = GaugeMetricFamily("voxstill_items_planned", "Items of the step, where known.", labels=["step"])
        busy = GaugeMetricFamily("voxstill_busy_ratio", "Utilisation of workers, 0 to 1.", labels=["step", "stage"])
        errors = CounterMetricFamily("voxstill_errors", "Items with an error.", labels=["step", "kind"])
        for meter in steps:
            if meter.total is not None:
                planned.add_metric([meter.step], meter.total)
            for stage, share in meter.summary.busy.items():
                busy.add_metric([meter.step, stage], share)
            for reason, count in meter.errors.copy().items():
                errors.add_metric([meter.step, reason], count)
        yield from (planned, busy, errors)


METRICS = Metrics()
"""The collector of this process."""


class Timer:
    """Seconds spent inside its `with` blocks, added up."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
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
    """A JSON Lines file to append to; lines are whole or absent, also after a crash.

    Of a file that exists already, the first `rows` lines stay.
    """

    def __init__(self, path: Path, rows: int | None = None) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():  # a line cut short by a crash would swallow the next one
            data = path.read_bytes()
            whole = b"".join([line for line in data.splitlines(keepends=True) if line.endswith(b"\n")][:rows])
            if whole != data:
                write_atomically(path, whole)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one object; a number that is not finite is null."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_json(row), ensure_ascii=False, allow_nan=False) + "\n")


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what is standard error now: while a bar is shown, that puts lines above it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)  # the other would keep the stream of now

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return continued(super().formatMessage(record), _HEAD_COLUMNS)

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def start_logging(level: str = "info") -> None:
    """Log to standard error, one line a message."""
    handler = _StandardError()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S"))
    log.handlers[:] = [handler]
    log.propagate = False
    set_level(level)


def set_level(level: str) -> None:
    """Show messages of this level and above on standard error from now on."""
    for handler in log.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.setLevel(level.upper())
    log.setLevel("DEBUG" if level == "debug" else "INFO")  # a log file, such as train.log, takes more


def level() -> str:
    """The level of `set_level`, in lower case; where logging was not started, that of the program around."""
    number = log.handlers[0].level if log.handlers else log.getEffectiveLevel()
    return logging.getLevelName(number).lower()
