"""Waiting for what another thread or process does; a slow machine has time enough, and a hang is an error."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(holds: Callable[[], object], within_s: float = 120, every_s: float = 0.01) -> None:
    """Return once something holds; AssertionError where it does not within the time."""
    give_up_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up_at, f"nothing of it within {within_s:g} s"
        time.sleep(every_s)
