"""Segments of shared memory, the files in /dev/shm: which a process has, and which no process has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from voxstill.core import process

_FOLDER = Path("/dev/shm")
_NAME = re.compile(r"torch_\d+_\S+|psm_\w+|nccl-\w+|cuda\.shm\.\S+|plasma\S+|sem\.\S+")
"""What torch, Python's `multiprocessing`, NCCL, CUDA and Ray make for a while; other files are people's own."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of this user: its size, and when it was last written, in seconds since 1970."""

    path: str
    num_bytes: int
    written_s: float


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
