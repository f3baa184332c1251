"""The mark of a run: what a process starts says by it which run it is of, and so whether that run has ended.

A program that is started inherits it in its environment. A process that is only forked shows the environment of its
parent's start, so it inherits an open file in memory instead, which no program does. The file is the newer of the two:
a command that another run has started is a run of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from voxstill.core import result, shared_memory, world
from voxstill.core.errors import DataError
from voxstill.core.process import Process, machine, open_files

VARIABLE = "VOXSTILL_RUN"
"""The environment variable of the mark, a JSON object."""
_KEEP_TITLES_APART = "SPT_NOENV"
"""Unless it is set, setproctitle, which vLLM uses, writes titles over the environment that /proc shows."""
_MEMORY_FILE = "voxstill-run"
_MOST_BYTES = 1 << 17  # the most that Linux takes for one variable


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """A run: the process that owns it and the launcher of that one, where torchrun started it as a rank."""

    machine: str
    """Where process ids mean what they mean here: host, boot and namespace."""
    owner: Process
    launcher: Process | None = None
    command: str
    """Its name in the shell: `label`."""
    folders: tuple[str, ...]
    """The work folder and the experiment, absolute."""
    since: str
    """UTC, ISO 8601."""

    @property
    def is_of_this_machine(self) -> bool:
        """Whether its processes can be looked up here."""
        return self.machine == machine()

    @property
    def has_ended(self) -> bool:
        """Whether its owner has ended, or the launcher of that: no process waits for what it has started."""
        return self.owner.has_ended or (self.launcher is not None and self.launcher.has_ended)

    def to_json(self) -> str:
        """The text that is inherited."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self | None:
        """The mark in a text; None if there is none."""
        try:
            facts = json.loads(text)
            return result.read(cls, facts) if isinstance(facts, dict) else None
        except (ValueError, DataError, RecursionError):
            return None


@contextlib.contextmanager
def marked(command: str, *folders: str, is_whole_process: bool = False) -> Iterator[None]:
    """What this process starts while the block runs bears the mark of its run; within another block, of both.

    Where the block is all that the process is there for, it bears the mark of all blocks within to its end: it may
    hang while it exits.
    """
    shared_memory.name_semaphores()
    layer = _Layer(command, folders, is_whole_process)
    _RUN.enter(layer)
    try:
        yield
    finally:
        _RUN.leave(layer)


def current() -> RunMark | None:
    """The mark that a process started now would bear."""
    return RunMark.from_json(world.environment().get(VARIABLE, ""))


def of_owner_here() -> RunMark:
    """The mark of something that this process owns by itself, such as a temporary folder."""
    run = current()
    return RunMark(
        machine=machine(),
        owner=Process.of(os.getpid()),
        command="" if run is None else run.command,
        folders=() if run is None else run.folders,
        since=_now(),
    )


def of_process(pid: int) -> RunMark | None:
    """The mark that a process of this user bears; None if it bears none, or has ended."""
    for path, target in open_files(pid).items():
        if target.startswith(f"/memfd:{_MEMORY_FILE} "):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                return RunMark.from_json(file.read(_MOST_BYTES))
    prefix = f"{VARIABLE}=".encode()
    try:
        texts = [line.removeprefix(prefix) for line in _environment_of(pid) if line.startswith(prefix)]
    except OSError:
        return None
    return RunMark.from_json(texts[0]) if texts else None


def is_rank(pid: int) -> bool:
    """Whether torchrun has started this process as a rank.

    The variables of a rank are inherited by all that it starts, but torchrun makes ranks alone leaders of a session.
    """
    try:
        names = {line.partition(b"=")[0].decode(errors="replace") for line in _environment_of(pid)}
        return names >= _OF_RANKS and os.getsid(pid) == pid
    except OSError:
        return False


def _environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One `marked` block."""

    command: str
    folders: tuple[str, ...]
    is_whole_process: bool


class _Run:
    """The blocks that run in this process, of all its threads, and the mark that they make together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)
        self._layers: list[_Layer] = []
        self._memory_file: int | None = None
        self._launcher: Process | None = None
        self._before: str | None = None
        self._since = ""

    def enter(self, layer: _Layer) -> None:
        with self._lock:
            if not self._layers:
                self._before, self._since = world.environment().get(VARIABLE), _now()
                self._launcher = self._launcher or _launcher()
            self._layers.append(layer)
            self._show()

    def leave(self, layer: _Layer) -> None:
        with self._lock:
            if layer not in self._layers:  # it was entered before the fork that made this process
                return
            if layer.is_whole_process:
                self._layers.clear()
            elif not any(other.is_whole_process for other in self._layers):
                self._layers.remove(layer)
            self._show(keeps_memory_file=layer.is_whole_process)

    def _show(self, *, keeps_memory_file: bool = False) -> None:
        """Put the mark of the blocks where children inherit it."""
        if not self._layers:
            os.environ.pop(VARIABLE, None)
            if self._before is not None:
                os.environ[VARIABLE] = self._before
            if not keeps_memory_file:
                self._hold(None)
            return
        folders = dict.fromkeys(folder for layer in self._layers for folder in layer.folders)
        mark = RunMark(
            machine=machine(),
            owner=Process.of(os.getpid()),
            launcher=self._launcher,
            command=self._layers[0].command,
            folders=tuple(folders),
            since=self._since,
        )
        os.environ[VARIABLE] = mark.to_json()
        os.environ.setdefault(_KEEP_TITLES_APART, "1")
        self._hold(mark)

    def _hold(self, mark: RunMark | None) -> None:
        """Keep a file in memory with the mark open, instead of the one before, which forked children still have."""
        if mark is None:
            if self._memory_file is not None:
                os.close(self._memory_file)
            self._memory_file = None
        elif hasattr(os, "memfd_create"):
            with contextlib.suppress(OSError):  # no descriptor is free: forked children bear no mark then
                self._memory_file = _memory_file(mark.to_json().encode(), self._memory_file)

    def _forget(self) -> None:
        """In a forked child: it bears the mark of its parent, whose blocks are none of its own."""
        self._lock = threading.Lock()
        self._layers, self._launcher = [], None


_OF_RANKS = frozenset({"TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK"})


def _launcher() -> Process | None:
    """The torchrun that has started this process as a rank. Asked once: an orphan's parent is another process."""
    if not is_rank(os.getpid()):
        return None
    parent = os.getppid()
    with contextlib.suppress(OSError):
        if b"torch" in Path(f"/proc/{parent}/cmdline").read_bytes():
            return Process.of(parent)
    return Process(0, "") if parent == 1 else None


def _memory_file(content: bytes, descriptor: int | None) -> int:
    """The descriptor of a new file in memory: `descriptor` at once, for another process reads it at any time.

    A new descriptor is none of the standard streams, which may be closed.
    """
    new = os.memfd_create(_MEMORY_FILE)
    try:
        os.write(new, content)
        return fcntl.fcntl(new, fcntl.F_DUPFD_CLOEXEC, 3) if descriptor is None else os.dup2(new, descriptor, False)
    finally:
        os.close(new)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


_RUN = _Run()
