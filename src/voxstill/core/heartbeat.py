"""A line in the log while nothing else is logged, so that a run that hangs is not silent."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from voxstill.core import monitor
from voxstill.core.monitor import clock, log

SILENCE_S = 25.0
"""Silence for so long is ended by a line."""
_LOOK_S = 1.0


@contextlib.contextmanager
def running(name: str) -> Iterator[None]:
    """Within this block a thread ends any silence of the log with a line of what goes on; `name` is the command's."""
    ends = threading.Event()
    thread = threading.Thread(target=_watch, args=(name, ends), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def _watch(name: str, ends: threading.Event) -> None:
    start_s = since_s = time.monotonic()
    while not ends.wait(min(_LOOK_S, SILENCE_S / 4)):
        since_s = max(since_s, monitor.logged_s())
        now_s = time.monotonic()
        if now_s - since_s < SILENCE_S:
            continue
        status = monitor.status()
        if status == "":
            status = f"{name}: at work for {clock(now_s - start_s)}; nothing new for {clock(now_s - since_s)}"
        if status is not None:
            log.info("%s", status)
        since_s = now_s
