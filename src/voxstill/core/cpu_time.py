"""How long a thread computed, and how long it could have and waited for a core, as the scheduler of Linux counts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

_OWN = "/proc/thread-self/schedstat"  # which names the thread that opens it
_NS = 1e-9


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds on a core, and seconds in the run queue of one."""

    computing_s: float = 0.0
    core_wait_s: float = 0.0

    def __add__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.computing_s + other.computing_s, self.core_wait_s + other.core_wait_s)

    def __sub__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.computing_s - other.computing_s, self.core_wait_s - other.core_wait_s)


def of_this_thread() -> CpuTime:
    """What this thread has had since it started; zeros where the system does not count it."""
    return _read(_OWN)


def of_process(pid: int) -> CpuTime:
    """The same of the first thread of a process; zeros where it is not there."""
    return _read(f"/proc/{pid}/schedstat")


def _read(path: str) -> CpuTime:
    try:
        with open(path, "rb", buffering=0) as file:
            computing_ns, core_wait_ns = file.read().split()[:2]
    except (OSError, ValueError):
        return CpuTime()
    return CpuTime(int(computing_ns) * _NS, int(core_wait_ns) * _NS)


class CpuClock:
    """Adds up what a thread has had inside the `running` blocks that it enters; one thread at a time."""

    def __init__(self) -> None:
        self.total = CpuTime()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count this block."""
        start = of_this_thread()
        try:
            yield
        finally:
            self.total += of_this_thread() - start


def is_counted() -> bool:
    """Whether the system counts it: Linux with `CONFIG_SCHED_INFO`, as distributions build it."""
    return os.path.exists(_OWN) and of_this_thread() != CpuTime()
