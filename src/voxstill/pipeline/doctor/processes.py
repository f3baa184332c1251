"""Which processes of this machine compute, and whether one is stopped, from /proc."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LOOKS_S = 0.005
_STOPPED = "Tt"
"""States of proc(5): by a signal, or by a debugger."""


@dataclass(frozen=True, slots=True)
class Busy:
    """A process, its name, and how many cores it has kept busy."""

    pid: int
    name: str
    cores: float

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid}, {self.cores:.1f} cores)"


def busiest(during_s: float, without: Collection[int] = (), num: int = 3) -> list[Busy]:
    """The processes that computed most over so many seconds, but for those of these session leaders or groups."""
    before = {pid: (ticks, group) for pid, _, ticks, group in _all()}
    start_s = time.perf_counter()
    time.sleep(during_s)
    elapsed = (time.perf_counter() - start_s) * os.sysconf("SC_CLK_TCK")
    rows = [
        Busy(pid, name, (ticks - before[pid][0]) / elapsed)
        for pid, name, ticks, group in _all()
        if pid in before and pid not in without and group not in without and pid != os.getpid()
    ]
    return sorted((row for row in rows if row.cores >= 0.1), key=lambda row: -row.cores)[:num]


def is_stopped(pid: int, during_s: float = 0.0) -> bool:
    """Whether a process of this machine is stopped, as by SIGSTOP or Ctrl-Z, and stays so."""
    give_up_s = time.monotonic() + during_s
    try:
        while (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in _STOPPED:
            if time.monotonic() >= give_up_s:
                return True
            time.sleep(_LOOKS_S)
    except (OSError, IndexError):
        return False
    return False


def group_of(pid: int) -> int | None:
    """The process group of a process; None if it is not there."""
    with contextlib.suppress(OSError):
        return os.getpgid(pid)
    return None


def _all() -> Iterator[tuple[int, str, int, int]]:
    """Id, name, clock ticks and process group of each process."""
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            fields = rest.split()
            yield int(folder.name), head.partition("(")[2], int(fields[11]) + int(fields[12]), int(fields[2])
