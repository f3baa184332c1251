"""The memory that this process may take: that of the machine, or the limit of its control group where that is less."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from voxstill.core import cgroup


def total_bytes() -> int:
    """All that it may take, with swap: more than this it will never get."""
    machine = of_machine()
    limit = cgroup.memory_limit()
    total = machine["MemTotal"] if limit is None else min(machine["MemTotal"], limit)
    return total + machine["SwapTotal"]


def available_bytes() -> int:
    """What it may take now, without swapping."""
    available, group = of_machine()["MemAvailable"], cgroup.memory()
    return available if group is None else max(min(available, group[0] - group[1]), 0)


def of_machine() -> Mapping[str, int]:
    """What Linux says of the machine's memory, in bytes, by its names in /proc/meminfo."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return {name: int(value.split()[0]) << 10 for name, _, value in (line.partition(":") for line in lines)}
