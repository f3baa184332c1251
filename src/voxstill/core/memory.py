"""The memory that this process may take: that of the machine, or the limit of its control group where that is less."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_LIMIT, _USED = ("memory.max", "memory/memory.limit_in_bytes"), ("memory.current", "memory/memory.usage_in_bytes")
"""Names in control groups of version 2, and of version 1."""


def total_bytes() -> int:
    """All that it may take, swap included: more than this it will never get."""
    machine = _meminfo("MemTotal") + _meminfo("SwapTotal") or _physical()
    return min([machine, *(limit for limit, _ in _limits())])


def available_bytes() -> int:
    """What it may take now, without swapping."""
    machine = _meminfo("MemAvailable") or _physical()
    return max(min([machine, *(limit - used for limit, used in _limits())]), 0)


def _limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group that this process is in, and what is used of it."""
    path = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, group = line.split(":", 2)
            if number == "0" or "memory" in controllers.split(","):
                path = group
    folders = [_GROUPS, *(_GROUPS / parent for parent in _ancestors(path))]
    for folder in dict.fromkeys(folders):
        for limit_name, used_name in zip(_LIMIT, _USED, strict=True):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None:
                yield limit, used


def _ancestors(path: str) -> Iterator[str]:
    names = [name for name in path.split("/") if name and name != ".."]
    yield from ("/".join(names[:num]) for num in range(len(names), 0, -1))


def _number(path: Path) -> int | None:
    """What a file of a control group says; None where it is not there, or sets no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # `max`
        return None


def _meminfo(name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def _physical() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
