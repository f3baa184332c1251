"""A rank that makes no step is found within a time limit, by itself or by those that wait for it, and all ranks end.

Each rank notes its process, its last step and its figures in a file of the experiment folder. A thread of each looks
whether its own steps continue. Where they do not, it writes the stacks of all ranks of its machine into the log and
ends them: a collective that waits for somebody who never comes has no other way out. A rank that is ended by a fault in
a library leaves its stacks there, too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from voxstill.core.atomic import write_atomically
from voxstill.core.errors import TrainingError
from voxstill.core.monitor import log
from voxstill.core.process import machine, started
from voxstill.storage.rundir import RunDir

_WRITE_S = 1.0
_STACKS_S = 1.0  # what the others have to write theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What a rank says of itself: its process, when that was born, its machine, the step that it has started, and the
    figures of the last one."""

    pid: int
    born: str | None
    host: str
    machine: str = ""
    """Where its process id means something; empty in a file of an earlier version."""
    step: int
    at: float = 0.0
    """When it gave its last sign of life, in seconds since 1970."""
    loss: float | None = None
    """Of the last step, by its unit, over all ranks; it may be infinite or NaN."""
    grad_norm: float | None = None
    lr: float | None = None
    audio_s: float = 0.0
    """Audio that this rank has trained on since it was started."""
    data_wait_s: float = 0.0
    """Time that this rank has waited for data since it was started."""
    own_s: float = 0.0
    """Time that this rank has spent without waiting for another, on data and forward passes, since it was started."""
    skipped: int = 0
    replaced: int = 0
    epoch: int = 0
    progress: float = 0.0

    def is_alive_here(self) -> bool:
        """Whether its process is on this machine; its number may belong to another one by now."""
        is_here = self.machine == machine() if self.machine else self.host == socket.gethostname()
        return is_here and bool(self.born) and self.born == started(self.pid)


class Watchdog:
    """While entered, `limit_s` without a `beat` ends this process, and the other ranks on this machine.

    Their exit code is that of a TrainingError, or -9. What stops a rank need not be known: it may wait for storage,
    for another rank, or be stopped by SIGSTOP.
    """

    def __init__(self, run: RunDir, rank: int, limit_s: float) -> None:
        self._run, self._rank, self._limit_s = run, rank, limit_s
        self._file = run.ranks / f"{rank}.json"
        self._step, self._beat, self._written = 0, time.monotonic(), -math.inf
        pid = os.getpid()
        self._state = RankState(pid=pid, born=started(pid), host=socket.gethostname(), machine=machine(), step=0)
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._run.ranks.mkdir(parents=True, exist_ok=True)
        self._stacks = self._run.log.open("a", encoding="utf-8")
        faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=True)
        self._tells_faults = not faulthandler.is_enabled()  # else they are logged where the user has chosen
        if self._tells_faults:
            faulthandler.enable(self._stacks, all_threads=True)
        self.beat(0)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.set()
        self._thread.join()
        faulthandler.unregister(signal.SIGUSR1)
        if self._tells_faults:
            faulthandler.disable()
        self._stacks.close()
        self._file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are still there
            self._run.ranks.rmdir()

    def beat(self, step: int | None = None) -> None:
        """Work continues; with a `step`, that one has started. What others read is written once a second."""
        self._beat = time.monotonic()
        self._step = self._step if step is None else step
        if self._beat - self._written > _WRITE_S:
            self._write()

    def note(self, **figures: float) -> None:
        """Take over figures of the last step, by their names in `RankState`; the next beat writes them."""
        self._state = replace(self._state, **figures)  # type: ignore[arg-type]

    def _write(self) -> None:
        with self._lock:
            self._written = self._beat
            at = time.time() - (time.monotonic() - self._beat)
            state = replace(self._state, step=self._step, at=at)
            try:  # atomically: a rank that is stopped while it writes must be found, too
                write_atomically(self._file, json.dumps(asdict(state)))
            except OSError as error:  # a full disk, which ends the training where it holds up what is learnt
                log.debug("train: the file of rank %d is not written: %s", self._rank, error)

    def _watch(self) -> None:
        looked, pause_s = time.monotonic(), min(self._limit_s / 4, 5.0)
        while not self._ends.wait(pause_s):
            now = time.monotonic()
            lost_s = now - looked - pause_s
            if lost_s > pause_s + 1:  # this process did not run itself: it was stopped, by Ctrl-Z say
                self._beat += lost_s
            looked = now
            if self._beat > self._written:  # the last steps before one that hangs
                self._write()
            if now - self._beat > self._limit_s:
                self._end(now - self._beat)

    def _end(self, waited_s: float) -> None:
        others = self._others()
        behind = sorted(rank for rank, other in others.items() if other.step < self._step)
        message = (
            f"rank {self._rank} has made no step for {waited_s:.0f} s, at step {self._step}; `train.step_timeout_s` is "
        )
        message += f"{self._limit_s:.0f}. Ranks behind it: {', '.join(map(str, behind)) or 'none'}. All stacks follow"
        log.error("%s", message)
        with contextlib.suppress(OSError):  # a full disk must not keep the ranks waiting
            self._write_stacks(message, others)
        for other in others.values():
            _send(other.pid, signal.SIGKILL)
        os._exit(TrainingError.exit_code)

    def _write_stacks(self, message: str, others: Mapping[int, RankState]) -> None:
        with self._run.log.open("a", encoding="utf-8") as file:
            file.write(f"\n{message}\n\nstacks of rank {self._rank}, process {os.getpid()}:\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
            for rank, other in others.items():
                file.write(f"\nstacks of rank {rank}, process {other.pid}:\n")
                file.flush()
                _send(other.pid, signal.SIGCONT)  # one that was stopped answers nothing else
                _send(other.pid, signal.SIGUSR1)
                time.sleep(_STACKS_S)

    def _others(self) -> dict[int, RankState]:
        """The other ranks on this machine, by number."""
        states = {rank: state for rank, state in read_states(self._run).items() if rank != self._rank}
        return {rank: state for rank, state in states.items() if state.is_alive_here()}


def read_states(run: RunDir) -> dict[int, RankState]:
    """What each rank says of itself in the experiment folder, by number, also one that has died."""
    paths = {int(path.stem): path for path in run.ranks.glob("*.json") if path.stem.isdecimal()}
    states = {rank: _read(path) for rank, path in paths.items()}
    return {rank: state for rank, state in sorted(states.items()) if state is not None}


def _read(path: Path) -> RankState | None:
    try:
        return RankState(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # it ends, or is of another version
        return None


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.kill(pid, number)
