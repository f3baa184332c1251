"""Segments of shared memory, the files in /dev/shm: which a process has, and which no process has.

Semaphores of `multiprocessing` are such files. Those of a command have its process in their names.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from voxstill.core import process
from voxstill.core.process import Process

_FOLDER = Path("/dev/shm")
_NAME = re.compile(r"torch_\d+_\S+|psm_\w+|nccl-\w+|cuda\.shm\.\S+|plasma\S+|sem\.\S+")
_SEMAPHORE = re.compile(r"sem\.voxstill-([0-9a-f]{8})-(\d+)-(\d+)-\S+")
"""What torch, Python's `multiprocessing`, NCCL, CUDA and Ray make for a while; other files are people's own."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of this user: its size, and when it was last written, in seconds since 1970."""

    path: str
    num_bytes: int
    written_s: float

    @property
    def owner(self) -> Process | None:
        """The process of the command that made it; None if the name does not say so, or not of this machine."""
        match = _SEMAPHORE.fullmatch(Path(self.path).name)
        return Process(int(match[2]), match[3]) if match is not None and match[1] == process.machine_id() else None


def name_semaphores() -> None:
    """Put this process into the names of the semaphores that it and the processes that it spawns make from now on."""
    own = Process.of(os.getpid())
    # there is no public way; the attribute is as old as spawned processes (Python 3.4), and they inherit it
    settings: dict[str, object] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    settings["semprefix"] = f"/voxstill-{process.machine_id()}-{own.pid}-{own.started}"


def segments() -> Iterator[Segment]:
    """The segments of this user that libraries have made."""
    try:
        entries = list(os.scandir(_FOLDER))
    except OSError:
        return
    for entry in entries:
        if _NAME.fullmatch(entry.name) is None:
            continue
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:  # it is gone
            continue
        if facts.st_uid == os.getuid() and entry.is_file(follow_symlinks=False):
            yield Segment(entry.path, facts.st_size, facts.st_mtime)


def held_by(pids: Iterable[int]) -> set[str]:
    """The paths of the segments that processes have open or mapped."""
    folder = f"{_FOLDER}/"
    return {
        path
        for pid in pids
        for path in (*process.open_files(pid).values(), *process.mapped_files(pid))
        if path.startswith(folder)
    }
