"""What a run logs: progress bars with rate and time left, timers, logging, JSON lines.

Everything goes to standard error or to a file, never to standard output.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TextIO

from voxstill.core.result import to_json
from voxstill.core.terminal import continued, printable

log = logging.getLogger("voxstill")
_HEAD_COLUMNS = 17
"""Time and level in front of a message."""
QUIET_INTERVAL_S = 10.0
"""Without a terminal, progress is one line this often."""
LogFormat = Literal["text", "json"]
Status = Callable[[], str | None]
_statuses: list[Status] = []


class Progress:
    """A bar on a terminal, a line now and then elsewhere; both with rate and time left.

    `advance(n, detail)` counts `n` units done; `detail` is shown beside the bar. Use it as a `with` block.
    `done` units were done before it started: rate and time left are those of the rest.
    """

    def __init__(self, title: str, total: float | None, unit: str, *, done: float = 0.0) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._before = self._done = done
        self._detail = ""
        self._start = self._logged = self._changed = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        _statuses.append(self._status)
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
        _statuses.remove(self._status)
        if self._bar is not None:
            with contextlib.suppress(OSError):  # the terminal was closed
                self._bar.stop()

    def advance(self, amount: float = 1, detail: str = "") -> None:
        """Count `amount` more units as done."""
        self.set_done(self._done + amount, detail)

    def set_done(self, done: float, detail: str = "") -> None:
        """Set the number of units that are done."""
        self._done, self._detail, self._changed = done, detail or self._detail, time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, detail=f"{self.rate()} {self._detail}")
        elif time.monotonic() - self._logged >= QUIET_INTERVAL_S:
            self._logged = time.monotonic()
            log.info("%s %s", self._title, self.line())

    def rate(self) -> str:
        """Units a second so far; empty if there is no unit."""
        if not self._unit:
            return ""
        return f"{(self._done - self._before) / max(time.monotonic() - self._start, 1e-9):,.1f} {self._unit}/s"

    def line(self) -> str:
        """Progress in one line of text: share done, rate, detail and time left."""
        if not self._total:
            return _joined(f"{self._done:,.0f} {self._unit}", self.rate(), self._detail)
        elapsed, done = time.monotonic() - self._start, self._done - self._before
        left = f"{clock(elapsed * (self._total - self._done) / done)} left" if done > 0 else ""
        share = self._done / self._total
        return _joined(f"{share:.0%}", self.rate(), self._detail, left)

    def _status(self) -> str | None:
        if self._bar is not None:  # it is on the screen
            return None
        return f"{self._title} {self.line()}; nothing new for {clock(time.monotonic() - self._changed)}"


@contextlib.contextmanager
def describing(status: Status) -> Iterator[None]:
    """Within this block `status` says what is running when nothing was logged for long; None needs no line."""
    _statuses.append(status)
    try:
        yield
    finally:
        _statuses.remove(status)


def status() -> str | None:
    """What continues now, by the innermost of those that say so; None if no line is needed, empty if none says."""
    return _statuses[-1]() if _statuses else ""


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(min(max(seconds, 0.0), 359_999)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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
        """The seconds so far; counting starts again."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class JsonLines:
    """A JSON Lines file to append to; lines are whole or absent, also after a crash.

    Of a file that exists already, the first `rows` lines stay.
    """

    def __init__(self, path: Path, rows: int | None = None) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():  # the next line would be appended to one truncated by a crash
            data = path.read_bytes()
            whole = b"".join([line for line in data.splitlines(keepends=True) if line.endswith(b"\n")][:rows])
            if whole != data:
                os.truncate(path, len(whole))  # which a full disk allows

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one object; a number that is not finite is null. OSError where it is not written, nor part of it."""
        line = (json.dumps(to_json(row), ensure_ascii=False, allow_nan=False) + "\n").encode()
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                with contextlib.suppress(OSError):  # no file, but a device or a pipe
                    file.truncate(size)
                raise


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what is standard error now: while a bar is shown, that puts lines above it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)  # the other would keep the stream of now
        self.last_s = time.monotonic()
        """When it wrote last."""

    def emit(self, record: logging.LogRecord) -> None:
        self.last_s = time.monotonic()
        super().emit(record)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _LogFile(logging.FileHandler):
    """A file that may be on a full disk: it is told once, on standard error, and what was held back comes later."""

    _is_told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if isinstance(error := sys.exception(), OSError) and not self._is_told:
            self._is_told = True  # before the message comes here, too
            log.warning("`%s` cannot be written: %s", self.baseFilename, error.strerror or error)
        elif not isinstance(error, OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return continued(super().formatMessage(record), _HEAD_COLUMNS)

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        row = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if code := getattr(record, "code", ""):
            row["code"] = code
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row)


_FORMATTERS: Mapping[LogFormat, logging.Formatter] = {
    "text": _Formatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S"),
    "json": _JsonFormatter(),
}


def start_logging(level: str = "info", form: LogFormat = "text") -> None:
    """Log to standard error, one line a message."""
    log.handlers[:] = [_StandardError()]
    log.propagate = False
    set_format(form)
    set_level(level)


def set_format(form: LogFormat) -> None:
    """Show messages on standard error in this form from now on."""
    for handler in log.handlers:
        if isinstance(handler, _StandardError):
            handler.setFormatter(_FORMATTERS[form])


def show_error(text: str, code: str = "") -> None:
    """Show the error that ends a command, as it is or, where messages are JSON, as one of them with its code."""
    if any(isinstance(handler.formatter, _JsonFormatter) for handler in log.handlers):
        log.error("%s", text, extra={"code": code})
    else:
        with contextlib.suppress(OSError):  # the terminal was closed
            print(printable(text), file=sys.stderr)  # noqa: T201


def logged_s() -> float:
    """When the last message was shown on standard error, on the clock of `time.monotonic`."""
    return max((handler.last_s for handler in log.handlers if isinstance(handler, _StandardError)), default=0.0)


def log_to(path: Path) -> logging.FileHandler:
    """Write messages into a file, too, from now on; the caller ends that with `log.removeHandler` and `close`."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    log.addHandler(handler)
    return handler


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
