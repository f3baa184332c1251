"""Which process this is among how many, on what machine, and who asks it to stop; the only reader of environment
variables.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|ACCESS_?KEY|API_?KEY|ACCOUNT_?KEY|PRIVATE_?KEY|SAS", re.IGNORECASE)


def environment() -> Mapping[str, str]:
    """The environment variables of this process."""
    return os.environ


def secrets() -> list[str]:
    """The values of environment variables that are credentials by their names, longest first: never to be shown."""
    found = {value for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= 6}
    return sorted(found, key=len, reverse=True)


def num_cores() -> int:
    """Cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pin_threads(num: int) -> None:
    """Let BLAS, OpenMP and ONNX start `num` threads in this process and its children, where nobody chose before.

    Two busy libraries on two cores are up to twenty times slower than one thread each.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(num))


class Signals:
    """A `with` block in which the first SIGINT or SIGTERM is only noted, in `caught`; the second interrupts.

    `on_first` is told its name. Outside the main thread, which alone may do so, nothing is caught.
    """

    def __init__(self, on_first: Callable[[str], None]) -> None:
        self.caught: str | None = None
        self._on_first = on_first
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: Any) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = signal.Signals(number).name
        self._on_first(self.caught)
