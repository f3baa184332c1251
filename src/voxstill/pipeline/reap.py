"""reap: what runs of voxstill that have ended left behind: processes, shared memory and temporary folders."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from voxstill.core import process, run_mark, scratch, shared_memory
from voxstill.core.errors import ConfigError, VoxstillError
from voxstill.core.monitor import clock
from voxstill.core.process import Process, ProcessInfo
from voxstill.core.result import Result
from voxstill.core.run_mark import RunMark
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.engine.ray_cluster import session_parent
from voxstill.pipeline.gpu_memory import unowned_memory
from voxstill.storage.uri import is_same_root, normalize_root

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL: a rank writes a checkpoint."""
_PASSES = 5
"""What has been started meanwhile, and what is left over only now that its own parent is ended, comes in the next."""
_BEGINS_S = 10.0
"""The age at which a process has loaded its configuration."""
_SETTLE_S = 1.0
"""A cluster of others may start another worker until it sees that the driver is gone, also where none is left yet."""

Kind = Literal["process", "segment", "folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover(Result):
    """Something that a run left behind: what it is, since when, and which run."""

    kind: Kind
    what: str
    """The command line of a process, the path of anything else."""
    pid: int | None = None
    age_s: float
    bytes: int
    """Memory of a process or a segment; on disk, of a folder."""
    command: str
    """That of the run: `label`; empty for a program that uses Python's functions."""
    folders: Sequence[str]
    """The work folder and the experiment of the run."""
    owner: int
    """The process of the run, which has ended, or whose launcher has."""

    def to_text(self) -> str:
        """One line."""
        run = " ".join(["voxstill", self.command, *self.folders]) if self.command else "a program that uses voxstill"
        name = f"process {self.pid}" if self.kind == "process" else self.kind
        return (
            f"{name:<15}  {clock(self.age_s):>8}  {self.bytes / 1e6:>9,.1f} MB  {one_line(self.what, MOST_NAME)}  "
            f"of `{one_line(run)}`, process {self.owner}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unowned(Result):
    """Memory that nothing uses and that does not say whose it was."""

    what: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapResult(Result):
    """What was left over, what of it was ended or removed, and what remains because its owner is unknown.

    `not_judged` counts processes of runs that started on another machine, before a reboot or in another container.
    """

    found: Sequence[Leftover]
    ended: Sequence[Leftover]
    unowned: Sequence[Unowned]
    not_judged: int
    end: bool
    """Whether it was to be ended."""

    @property
    def exit_code(self) -> int:
        """1 where something was to be ended and is not."""
        return VoxstillError.exit_code if self.end and len(self.ended) < len(self.found) else 0

    def to_text(self) -> str:
        """A line for each, and the counts."""
        lines = [row.to_text() for row in self.found]
        if not self.found:
            lines.append("there are no left-over processes or files")
        elif self.end:
            lines.append(f"{len(self.ended)} of {len(self.found)} ended or removed")
        else:
            lines.append(f"{len(self.found)} left over; --yes ends and removes them")
        lines += [f"{row.what}: {row.bytes / 1e6:,.0f} MB in use by no process; it stays" for row in self.unowned]
        if self.not_judged:
            lines.append(
                f"{self.not_judged} processes are of runs of another machine, boot or container, and are left alone"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _LeftProcess:
    info: ProcessInfo
    mark: RunMark

    @property
    def cleans_up(self) -> bool:
        """Whether it removes the semaphores and shared memory of the others, once these are gone, and ends."""
        return "multiprocessing.resource_tracker" in self.info.command_line

    @property
    def row(self) -> Leftover:
        info = self.info
        pid, what = info.process.pid, info.command_line
        return _row("process", what, info.age_s, info.memory_bytes, self.mark, pid=pid)


@dataclass(frozen=True, slots=True)
class _LeftFile:
    """A segment or a folder."""

    row: Leftover
    owner: Process

    @property
    def is_gone(self) -> bool:
        return not os.path.lexists(self.row.what)


def reap(folder: str | None = None, *, end: bool = False) -> ReapResult:
    """Find what runs that have ended left behind, of one work folder or experiment or of all; with `end`, end it.

    A process is left over where it bears the mark of a run (`core/run_mark.py`), is of this user, and the process that
    owns the run is gone, or the torchrun that had started that. ConfigError if the system does not say so.
    """
    if not process.can_judge():
        raise ConfigError(
            "left-over processes cannot be detected here",
            code="needs-linux",
            why="only Linux shows the environment of other processes",
            fix="end them manually",
        )
    root = None if folder is None else normalize_root(folder)
    _wait_for_ranks_that_begin()
    left, num_not_judged = _left_processes(root)
    segments, folders = [*_left_segments(left), *_left_semaphores(root)], _left_folders(root)
    processes = {left_process.info.process: left_process for left_process in left}
    if end:
        _end_all(processes, root)
        _remove_segments(segments)
        _remove_folders(folders, root)
    ended = [left_process.row for target, left_process in processes.items() if target.has_ended]
    return ReapResult(
        found=[*(left_process.row for left_process in processes.values()), *(file.row for file in segments + folders)],
        ended=[*ended, *(file.row for file in segments + folders if file.is_gone)] if end else [],
        unowned=_unowned() if root is None else [],
        not_judged=num_not_judged,
        end=end,
    )


def _left_processes(root: str | None) -> tuple[list[_LeftProcess], int]:
    """The left-over processes of one folder or of all, and how many bear a mark that cannot be judged here."""
    own, left, num_not_judged = process.lineage(), [], 0
    for info in process.processes():
        pid = info.process.pid
        if pid in own or (mark := run_mark.of_process(pid)) is None or not _is_of(root, mark):
            continue
        if not mark.is_of_this_machine:
            num_not_judged += 1
        elif mark.has_ended and not info.process.has_ended:
            left.append(_LeftProcess(info, mark))
    return left, num_not_judged


def _wait_for_ranks_that_begin() -> None:
    """Wait for ranks whose torchrun is gone and that do not bear a mark with their folder yet: for some moments none
    does. One that was stopped before is left alone."""
    while any(info.age_s < _BEGINS_S and _begins(info) for info in process.processes()):
        time.sleep(0.1)


def _begins(info: ProcessInfo) -> bool:
    pid = info.process.pid
    with contextlib.suppress(OSError):
        if not run_mark.is_rank(pid) or "torch" in process.command_line(info.parent):
            return False
    mark = run_mark.of_process(pid)
    return mark is None or (mark.owner.pid == pid and not mark.folders)


def _is_of(root: str | None, mark: RunMark) -> bool:
    return root is None or any(is_same_root(root, folder) for folder in mark.folders)


def _end_all(processes: dict[Process, _LeftProcess], root: str | None) -> None:
    """End them, and add what is found left over meanwhile.

    Those that no other one has started come first: they end their own children, and a rank whose loaders are ended
    before it would fail instead of writing a checkpoint.
    """

    def may_end(target: Process) -> bool:
        mark = run_mark.of_process(target.pid)
        return mark is not None and mark.is_of_this_machine and mark.has_ended and _is_of(root, mark)

    targets = list(processes.values())
    pids = {target.info.process.pid for target in targets}
    first = [target for target in targets if target.info.parent not in pids and not target.cleans_up]
    targets = first or targets
    for _ in range(_PASSES):
        if targets:
            process.end([target.info.process for target in targets], may_end, GRACE_S)
            targets, _ = _left_processes(root)
        if all(target.cleans_up for target in targets):
            time.sleep(_SETTLE_S)
            targets, _ = _left_processes(root)
        if not targets:
            return
        processes.update((target.info.process, target) for target in targets)


def _left_segments(left: Sequence[_LeftProcess]) -> list[_LeftFile]:
    """The segments that left-over processes alone have, and that are no older than their run."""
    if not left:
        return []
    since = {target.info.process.pid: target for target in left}
    others = {info.process.pid for info in process.processes()} - since.keys()
    held_elsewhere = shared_memory.held_by(others)
    segments = {segment.path: segment for segment in shared_memory.segments() if segment.path not in held_elsewhere}
    rows: dict[str, _LeftFile] = {}
    for pid, target in since.items() if segments else ():
        for path in shared_memory.held_by([pid]) & segments.keys():
            segment, mark = segments[path], target.mark
            if segment.written_s >= _time(mark.since):
                row = _row("segment", path, time.time() - segment.written_s, segment.num_bytes, mark)
                rows[path] = _LeftFile(row, mark.owner)
    return list(rows.values())


def _left_semaphores(root: str | None) -> list[_LeftFile]:
    """The semaphores of commands that are gone, whichever folder these were of, that no process has."""
    named = [(segment, owner) for segment in shared_memory.segments() if (owner := segment.owner) is not None]
    left = [(segment, owner) for segment, owner in named if root is None and owner.has_ended]
    held = shared_memory.held_by(info.process.pid for info in process.processes()) if left else set()
    return [
        _LeftFile(
            Leftover(
                kind="segment",
                what=segment.path,
                age_s=time.time() - segment.written_s,
                bytes=segment.num_bytes,
                command="",
                folders=(),
                owner=owner.pid,
            ),
            owner,
        )
        for segment, owner in left
        if segment.path not in held
    ]


def _left_folders(root: str | None) -> list[_LeftFile]:
    """The temporary folders of processes that are gone."""
    return [
        _LeftFile(
            _row("folder", str(folder.path), time.time() - _time(mark.since), _size(folder.path), mark), mark.owner
        )
        for folder in scratch.scratch_folders([session_parent()])
        if (mark := folder.mark).is_of_this_machine and mark.has_ended and _is_of(root, mark)
    ]


def _remove_segments(segments: Sequence[_LeftFile]) -> None:
    held = shared_memory.held_by(info.process.pid for info in process.processes()) if segments else set()
    for segment in segments:
        if segment.row.what not in held:
            with contextlib.suppress(OSError):
                os.unlink(segment.row.what)


def _remove_folders(folders: Sequence[_LeftFile], root: str | None) -> None:
    """Remove them, but those of runs of which a process could not be ended."""
    still_used = {owner for target in _left_processes(root)[0] for owner in (target.info.process, target.mark.owner)}
    for folder in folders:
        if folder.owner not in still_used:
            scratch.remove(Path(folder.row.what))


def _unowned() -> list[Unowned]:
    """What no process has: segments of this user, and memory of GPUs."""
    segments = list(shared_memory.segments())
    held = shared_memory.held_by(info.process.pid for info in process.processes()) if segments else set()
    return [
        *(
            Unowned(what=segment.path, bytes=segment.num_bytes)
            for segment in segments
            if segment.path not in held and segment.owner is None
        ),
        *(Unowned(what=f"GPU {memory.gpu}", bytes=memory.num_bytes) for memory in unowned_memory()),
    ]


def _row(kind: Kind, what: str, age_s: float, num_bytes: int, mark: RunMark, pid: int | None = None) -> Leftover:
    return Leftover(
        kind=kind,
        what=what,
        pid=pid,
        age_s=age_s,
        bytes=num_bytes,
        command=mark.command,
        folders=mark.folders,
        owner=mark.owner.pid,
    )


def _time(text: str) -> float:
    """Seconds since 1970 of a time in ISO 8601; none of a text that is no time."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time()


def _size(folder: Path) -> int:
    """Bytes of the files of a folder."""
    num_bytes = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                num_bytes += os.lstat(os.path.join(path, name)).st_size
    return num_bytes
