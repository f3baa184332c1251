"""What the machine offers: cores, memory, shared memory, open files, clock. None of these checks needs root."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import time
from pathlib import Path

from voxstill.core import cgroup, world
from voxstill.core import memory as core_memory
from voxstill.pipeline.doctor.checks import Check
from voxstill.pipeline.doctor.processes import busiest

GIB = 1 << 30
_BUSY_PERCENT = {"cpu": 25.0, "io": 25.0, "memory": 10.0}
"""Share of the last ten seconds in which something waited for it, above which this is not a good time to measure."""
_LOOK_S = 0.5
_LITTLE_MEMORY, _LEAST_MEMORY = 2 * GIB, GIB
_LITTLE_SHM, _LEAST_SHM = GIB, GIB // 4
_LITTLE_FILES, _LEAST_FILES = 1024, 256
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_FIRST_YEAR_S = 1_735_689_600.0  # 2025: a clock before it has never been set


def cores() -> list[Check]:
    """Cores that the process may use, and a quota that takes some of them away."""
    num, quota = world.num_cores(), cgroup.cpu_quota()
    text = f"{num} of {os.cpu_count()} cores"
    if quota is None or quota >= num:
        return [Check(name="cores", state="ok", found=text)]
    return [
        Check(
            name="cores",
            state="warn",
            found=f"{text}, of which the control group may use {quota:g}",
            fix=f"raise the quota (`docker run --cpus`, `resources.limits.cpu`), or set `engine.workers` to "
            f"{max(1, int(quota))} and no more than that of `train.devices` and `train.loader_workers` together",
        )
    ]


def pressure() -> list[Check]:
    """What processes waited for in the last ten seconds, as the kernel counts it, and who computes most."""
    shares = {name: _pressure(name) for name in _BUSY_PERCENT}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return [Check(name="pressure", state="ok", found="this kernel does not measure resource pressure (PSI)")]
    waited = ", ".join(f"for {name} {share:.0f} %" for name, share in known.items())
    text = f"in the last ten seconds processes waited {waited}"
    over = [name for name, share in known.items() if share > _BUSY_PERCENT[name]]
    if not over:
        return [Check(name="pressure", state="ok", found=text)]
    users = busiest(_LOOK_S)
    busy = f"; busiest: {', '.join(map(str, users))}" if users else ""
    return [
        Check(
            name="pressure",
            state="warn",
            found=text + busy,
            fix="end other programs here, or let them use fewer processes" if users else "check what else runs here",
        )
    ]


def memory() -> list[Check]:
    """Memory of the machine and of the control group: the lesser counts."""
    facts = core_memory.of_machine()
    available, total = facts["MemAvailable"], facts["MemTotal"]
    text = f"{available / GIB:.1f} of {total / GIB:.1f} GiB are free"
    group, fix = cgroup.memory(), "end other programs, or lower `plan.budget_ms` and `engine.workers`"
    if group is not None and group[0] - group[1] < available:
        limit, usage = group
        available = limit - usage
        text += f", and the control group may use {available / GIB:.1f} of its {limit / GIB:.1f} GiB more"
        fix = "raise its limit (`docker run --memory`, `resources.limits.memory`), or lower `plan.budget_ms`"
    if available >= _LITTLE_MEMORY:
        return [Check(name="memory", state="ok", found=text)]
    return [Check(name="memory", state="fail" if available < _LEAST_MEMORY else "warn", found=text, fix=fix)]


def shared_memory(folder: str = "/dev/shm") -> list[Check]:
    """Room for batches on their way from the loader's processes, and for Ray's object store."""
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    text = f"{folder} has {free / GIB:.1f} GiB free"
    if free >= _LITTLE_SHM:
        return [Check(name="shared memory", state="ok", found=text)]
    fix = "`docker run --shm-size=8g`, or an `emptyDir` of medium `Memory`; else set `train.loader_workers` to 0"
    return [Check(name="shared memory", state="fail" if free < _LEAST_SHM else "warn", found=text, fix=fix)]


def open_files() -> list[Check]:
    """Files that a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"a process may have {soft:,} files open, at most {hard:,}"
    if soft >= _LITTLE_FILES:
        return [Check(name="open files", state="ok", found=text)]
    return [
        Check(
            name="open files", state="fail" if soft < _LEAST_FILES else "warn", found=text, fix="run: ulimit -n 65536"
        )
    ]


def clock(*, is_remote: bool) -> list[Check]:
    """Whether the clock is set: buckets refuse requests that are signed minutes off, and certificates have dates."""
    if time.time() < _FIRST_YEAR_S:
        text = f"the clock says {time.strftime('%Y-%m-%d', time.gmtime())}"
        return [Check(name="clock", state="fail", found=text, fix="set it: start chrony or systemd-timesyncd")]
    if not _is_unsynchronised():
        return [Check(name="clock", state="ok", found="it is synchronised")]
    text = "it is not synchronised: buckets refuse requests if the clock is minutes off, and leases depend on it"
    if not is_remote:
        return [Check(name="clock", state="ok", found=text)]
    return [Check(name="clock", state="warn", found=text, fix="start chrony or systemd-timesyncd on the host")]


def _is_unsynchronised() -> bool:
    buffer = ctypes.create_string_buffer(512)
    struct.pack_into("I", buffer, 0, 0)  # modes: none, so that it only reads
    try:
        return int(ctypes.CDLL(None).adjtimex(buffer)) == _UNSYNCHRONISED
    except AttributeError:  # another system
        return False


def _pressure(name: str) -> float | None:
    """Percent of the last ten seconds in which something waited; None if the kernel does not count it."""
    first = _read(f"/proc/pressure/{name}").partition("\n")[0]
    fields = dict(field.split("=") for field in first.split()[1:])
    return float(fields["avg10"]) if "avg10" in fields else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
