"""A line in the log while nothing else is logged, so that a run that hangs is not silent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from voxstill.core import monitor
from voxstill.core.background import repeating
from voxstill.core.monitor import clock, log

SILENCE_S = 25.0
"""Silence for so long is ended by a line."""
_LOOK_S = 1.0


@contextlib.contextmanager
def running(name: str) -> Iterator[None]:
    """Within this block a thread ends any silence of the log with a line of what is running in command `name`."""
    with repeating("heartbeat", min(_LOOK_S, SILENCE_S / 4), _Silence(name).end):
        yield


class _Silence:
    """How long the log has been silent while a command runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start_s = self._since_s = time.monotonic()

    def end(self) -> None:
        """Log what is running if nothing was logged for too long."""
        self._since_s = max(self._since_s, monitor.logged_s())
        now_s = time.monotonic()
        if now_s - self._since_s < SILENCE_S:
            return
        status = monitor.status()
        if status == "":
            at_work, silent = clock(now_s - self._start_s), clock(now_s - self._since_s)
            status = f"{self._name}: running for {at_work}; nothing new for {silent}"
        if status is not None:
            log.info("%s", status)
        self._since_s = now_s
