"""Which process of which machine: names that no other process has, and whether one of this machine still runs."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def machine() -> str:
    """Host name, and on Linux the boot and the namespace in which process ids mean something: that of a container."""
    facts = [platform.node()]
    with contextlib.suppress(OSError):
        facts += [_BOOT_ID.read_text(encoding="ascii").strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(facts)


def started(process: int) -> str:
    """When a process of this machine began; empty where there is none, or where it has ended and is not reaped yet."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return "" if not _is_running(process) else "unknown"
    fields = stat.rpartition(")")[2].split()  # from field 3 of proc(5) on, the state; field 22 is the start
    return "" if fields[0] in "ZX" else fields[19]


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # of a number that no process can have
        return False
    except OSError:
        return True
    return True
