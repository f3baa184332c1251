"""CPU time of a training with all its processes: what it costs, also where others use the machine."""

from __future__ import annotations

import os
from pathlib import Path


def seconds() -> float:
    """CPU seconds of this process, of those it started and of those that have ended; Linux."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    children = [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
    return sum(map(_of, [os.getpid(), *children]))


def _of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended: from now on it is counted with those that have
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
