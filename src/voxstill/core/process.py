"""Which process of which machine: names that no other process has, what runs on this machine, and ending it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PARENT, _BIRTH, _PAGES = 1, 19, 21
"""Places in /proc/PID/stat behind the name, from field 3 of proc(5) on: the parent, the start, pages in memory."""
_KILL_S = 5.0
"""A process that SIGKILL does not end within so long hangs in the kernel."""


@functools.cache
def machine() -> str:
    """Host name, and on Linux the boot and the namespace in which process ids mean something: that of a container."""
    facts = [platform.node()]
    with contextlib.suppress(OSError):
        facts += [_BOOT_ID.read_text(encoding="ascii").strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(facts)


@functools.cache
def machine_id() -> str:
    """`machine` in eight letters, for names of files."""
    return hashlib.sha256(machine().encode()).hexdigest()[:8]


def started(process: int) -> str:
    """When a process of this machine started; empty if there is none, or where it has ended and is not reaped yet."""
    try:
        fields = _stat(process)
    except OSError:
        return "" if not _is_running(process) else "unknown"
    return "" if fields[0] in "ZX" else fields[_BIRTH]


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine by its id and birth: an id alone is given to another process later."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has this id now."""
        return cls(pid, started(pid))

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, or only waits for its parent to take notice."""
        return not self.started or started(self.pid) != self.started


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A running process: its parent, its age, its resident memory and its command line."""

    process: Process
    parent: int
    age_s: float
    memory_bytes: int
    command_line: str


def can_judge() -> bool:
    """Whether the system says what is asked here of a process: Linux does."""
    return hasattr(os, "pidfd_open") and Path("/proc/self/stat").exists()


def processes() -> Iterator[ProcessInfo]:
    """The running processes of this user."""
    uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    ticks_per_s, page_bytes = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile
            pid = int(entry.name)
            if entry.stat().st_uid != os.getuid():
                continue
            fields = _stat(pid)
            if fields[0] not in "ZX":
                yield ProcessInfo(
                    process=Process(pid, fields[_BIRTH]),
                    parent=int(fields[_PARENT]),
                    age_s=max(0.0, uptime_s - int(fields[_BIRTH]) / ticks_per_s),
                    memory_bytes=int(fields[_PAGES]) * page_bytes,
                    command_line=command_line(pid),
                )


def lineage() -> set[int]:
    """This process, its parent, and so on up to the first."""
    pids, pid = set[int](), os.getpid()
    while pid and pid not in pids:
        pids.add(pid)
        try:
            pid = int(_stat(pid)[_PARENT])
        except OSError:
            break
    return pids


def open_files(pid: int) -> dict[str, str]:
    """What the descriptors of a process are open on, by their paths below /proc; none where that may not be read."""
    paths: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                paths[entry.path] = os.readlink(entry.path)
    return paths


def mapped_files(pid: int) -> set[str]:
    """The paths of the files that a process has mapped into its memory; none where that may not be read."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return set()
    return {fields[5] for line in text.splitlines() if len(fields := line.split(maxsplit=5)) == 6}


def end(targets: Sequence[Process], may_end: Callable[[Process], bool], grace_s: float) -> list[Process]:
    """End processes by SIGTERM, and by SIGKILL those that still run after `grace_s`; return which of them have ended.

    `may_end` is asked once more when the process can no longer be taken for a later one of the same id.
    """
    descriptors = dict(_opened(targets, may_end))
    try:
        _signal(descriptors.values(), signal.SIGTERM)
        _signal(descriptors.values(), signal.SIGCONT)  # one that is stopped would take no notice
        _wait(descriptors.values(), grace_s)
        _signal(descriptors.values(), signal.SIGKILL)
        ended = _wait(descriptors.values(), _KILL_S)
        return [target for target, descriptor in descriptors.items() if descriptor in ended]
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _opened(targets: Sequence[Process], may_end: Callable[[Process], bool]) -> Iterator[tuple[Process, int]]:
    """The descriptor of each process (pidfd_open(2)); what is read of an id after that is of this process or none."""
    for target in targets:
        try:
            descriptor = os.pidfd_open(target.pid)
        except OSError:  # it has ended
            continue
        if target.has_ended or not may_end(target):
            os.close(descriptor)
        else:
            yield target, descriptor


def _signal(descriptors: Collection[int], number: signal.Signals) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # it has ended, or has become another user's
            signal.pidfd_send_signal(descriptor, number)


def _wait(descriptors: Collection[int], limit_s: float) -> set[int]:
    """Wait until the processes have ended, for `limit_s` at most; return the descriptors of those that have."""
    ended, give_up_at = set[int](), time.monotonic() + limit_s
    while left := [descriptor for descriptor in descriptors if descriptor not in ended]:
        poll = select.poll()  # not `select`, which takes no descriptor above 1,023
        for descriptor in left:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(max(0.0, give_up_at - time.monotonic()) * 1000)
        ended.update(descriptor for descriptor, _ in ready)
        if not ready:
            break
    return ended


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may have blanks."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def command_line(pid: int) -> str:
    """The words of its command line, separated by spaces; OSError if it has ended or is hidden."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return " ".join(words.split())


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # of a number that no process can have
        return False
    except OSError:
        return True
    return True
