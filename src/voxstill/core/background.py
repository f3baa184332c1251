"""Work that a thread repeats beside a block of code."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeating(name: str, every_s: float, work: Callable[[], None]) -> Iterator[None]:
    """Within this block a thread of this name calls `work` every so many seconds; it has ended after the block."""
    ends = threading.Event()

    def repeat() -> None:
        while not ends.wait(every_s):
            work()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
