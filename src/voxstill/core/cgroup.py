"""What the control groups of this process leave it of the machine: cores and memory, version 1 and 2, nested or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from voxstill.core import world

_UNLIMITED_BYTES = 1 << 60
"""Version 1 writes a number near 2**63 where there is no limit."""


def cpu_quota(proc: Path = Path("/proc/self")) -> float | None:
    """The cores that the tightest group may use at a time; None if none has a quota."""
    quotas = []
    for group in _groups(proc, "cpu"):
        unified = _read(group / "cpu.max").split()
        quota, period = (
            unified if len(unified) == 2 else (_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))
        )
        if quota.isdecimal() and period.isdecimal() and int(period):  # not "max", nor "-1"
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory(proc: Path = Path("/proc/self")) -> tuple[int, int] | None:
    """Limit and use in bytes of the group that has the least left; None if none has a limit.

    Files in the page cache that were not used lately are not counted: they give way.
    """
    rows = []
    for group, limit in _memory_limits(proc):
        usage = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        rows.append((limit, max(0, (int(usage) if usage.isdecimal() else 0) - _cached(group))))
    return min(rows, key=lambda row: row[0] - row[1], default=None)


def memory_limit(proc: Path = Path("/proc/self")) -> int | None:
    """The bytes that the tightest group may use; None if none has a limit."""
    return min((limit for _, limit in _memory_limits(proc)), default=None)


def cores() -> float:
    """The cores that this process may use: those that it may run on, or fewer by a quota."""
    quota = cpu_quota()
    return float(world.num_cores()) if quota is None else min(float(world.num_cores()), quota)


def _groups(proc: Path, controller: str) -> Iterator[Path]:
    """The folder of the group of this process that has the controller, and of those above it."""
    paths = {}
    for line in _read(proc / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        paths["" if not controllers else controller if controller in controllers.split(",") else controllers] = path
    for line in _read(proc / "mountinfo").splitlines():
        mounted, _, filesystem = line.partition(" - ")
        fields, (kind, _, options) = mounted.split(), filesystem.split()[:3]
        name = {"cgroup2": "", "cgroup": controller}.get(kind)
        if name is None or name not in paths or (kind == "cgroup" and controller not in options.split(",")):
            continue
        root, top = fields[3], Path(fields[4])
        # in a container the path may be that of the machine, of which only the group's own folder is mounted
        inner = paths[name].removeprefix(root.rstrip("/")).lstrip("/")
        group = top / inner if (top / inner).is_dir() else top
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _memory_limits(proc: Path) -> Iterator[tuple[Path, int]]:
    for group in _groups(proc, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        if limit.isdecimal() and int(limit) < _UNLIMITED_BYTES:
            yield group, int(limit)


def _cached(group: Path) -> int:
    """Bytes of files that were not used lately, of a group and those within it."""
    facts = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    return int(facts.get("total_inactive_file", facts.get("inactive_file", 0)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
