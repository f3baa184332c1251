"""Work that a thread repeats beside a block of code."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from voxstill.core.errors import first_line
from voxstill.core.monitor import log


@contextlib.contextmanager
def repeating(name: str, every_s: float, work: Callable[[], None]) -> Iterator[None]:
    """Within this block a thread of this name calls `work` periodically; it has ended after the block.

    What `work` raises is logged, and it is called again nevertheless.
    """
    ends = threading.Event()

    def repeat() -> None:
        last = ""
        while not ends.wait(every_s):
            try:
                work()
            except Exception as error:
                text = f"{type(error).__name__}: {first_line(error)}"
                log.log(logging.DEBUG if text == last else logging.WARNING, "%s: %s", name, text)
                last = text

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
