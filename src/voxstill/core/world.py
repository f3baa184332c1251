"""The process and its machine: environment variables, cores, memory, ranks and signals.

Nothing else in voxstill reads environment variables.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from voxstill.core.errors import ConfigError

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)
_MANY_OBJECTS = 50_000
"""Made since the last collection: the import of torch makes several times as many."""
ECHO_S = 2.0
_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|ACCESS_?KEY|API_?KEY|ACCOUNT_?KEY|PRIVATE_?KEY|SAS", re.IGNORECASE)


def environment() -> Mapping[str, str]:
    """The environment variables of this process."""
    return os.environ


def secrets() -> list[str]:
    """The values of environment variables that are credentials by their names, longest first: never to be shown."""
    values = {value for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= 6}
    return sorted(values, key=len, reverse=True)


def num_cores() -> int:
    """Cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reuse_freed_memory() -> None:
    """Let malloc reuse freed memory instead of returning it to the system, where the C library is glibc.

    A step on a CPU allocates the same large tensors again and again, and page faults cost a fifth of the time of a
    training. The memory held is no more than the most that was in use.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library, which knows no such options
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1), (_TOP_PAD, 64 << 20)):
            mallopt(option, value)


def return_freed_memory() -> None:
    """Let malloc return freed memory to the system, where the C library is glibc: a thread leaves a heap of its own."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no cyclic garbage within the block, which imports large libraries: a fifth of the time that it takes.

    What they define stays, and the collector would go through all of it again and again while it grows. After the block
    it counts as old, if it is much: only a full collection looks at it again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        is_much = gc.get_count()[0] > _MANY_OBJECTS  # the next call goes through all that is frozen
        if is_much and not gc.get_freeze_count():  # else `unfreeze` would take back what the program has frozen
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()


def skip_collection_at_exit() -> None:
    """When the process ends, do not search its memory for cyclic garbage: with torch it takes a second, for nothing."""
    atexit.unregister(gc.freeze)  # called again, it is still done once
    atexit.register(gc.freeze)


def pin_threads(num: int) -> None:
    """Let BLAS, OpenMP and ONNX start `num` threads in this process and its children, where the environment is silent.

    Two busy libraries on two cores are up to twenty times slower than one thread each.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(num))


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a training that a launcher has started: this one and how many there are."""

    launcher: str
    rank: int
    num: int
    num_local: int
    """On this machine; every other machine has as many."""


def ranks() -> Ranks | None:
    """The ranks as torchrun, Ray Train or srun set them in the environment; None for a single process.

    The variables of srun are set as those of torchrun too: Lightning and torch look there. ConfigError if machines
    have different numbers of processes.
    """
    if "RANK" not in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        os.environ.update(_torchrun_variables(os.environ))
    try:
        rank, num, num_local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    except KeyError:
        return None
    if num == 1:
        return None
    launcher = "srun" if "SLURM_STEP_NUM_TASKS" in os.environ else "Ray Train"
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else launcher
    if num % num_local:
        raise _uneven(f"{num} in all, {num_local} here")
    return Ranks(launcher, rank, num, num_local)


def is_first() -> bool:
    """Whether this process speaks for all: it is the only one, or the first of those that a launcher has started."""
    others = ranks()
    return others is None or others.rank == 0


def _torchrun_variables(srun: Mapping[str, str]) -> dict[str, str]:
    """The variables of torchrun for a step of srun; rank 0 is on its first machine, on a port of this step alone."""
    tasks_per_node = srun["SLURM_STEP_TASKS_PER_NODE"]  # "2(x3)": two on each of three machines
    match = re.fullmatch(r"(\d+)(\(x\d+\))?", tasks_per_node)
    if match is None:
        raise _uneven(tasks_per_node)
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", srun["SLURM_STEP_NODELIST"]).split(",")[0]
    port = 15_000 + (int(srun["SLURM_JOB_ID"]) * 31 + int(srun["SLURM_STEP_ID"])) % 15_000
    return {
        "RANK": srun["SLURM_PROCID"],
        "WORLD_SIZE": srun["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": srun["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": match[1],
        "MASTER_ADDR": srun.get("MASTER_ADDR", first),
        "MASTER_PORT": srun.get("MASTER_PORT", str(port)),
    }


def _uneven(counts: str) -> ConfigError:
    return ConfigError(
        f"the training processes are spread unevenly over the machines: {counts}",
        code="ranks-mismatch",
        why="every machine needs the same number",
        fix="set --nproc-per-node of torchrun, or --ntasks-per-node of srun",
    )


class Signals:
    """A `with` block in which the first SIGINT or SIGTERM is only noted, in `caught`; the second interrupts.

    A SIGTERM within `ECHO_S` of the first is the same one: `timeout`, systemd and schedulers send it to a process and
    to its group, and a parent passes it on. With `hangup` the SIGHUP of a terminal that closes is noted, too, but not
    where it is ignored, as under `nohup`. `on_first` is called with the name. Outside the main thread, which alone may
    do so, nothing is caught.
    """

    def __init__(self, on_first: Callable[[str], None], *, hangup: bool = False) -> None:
        self.caught: str | None = None
        self._on_first = on_first
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        if hangup and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._numbers.append(signal.SIGHUP)
        self._before: dict[int, Any] = {}
        self._since_s = 0.0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.caught is not None:
            if number == signal.SIGHUP or (number == signal.SIGTERM and now_s - self._since_s < ECHO_S):
                return
            raise KeyboardInterrupt
        self._since_s = now_s
        self.caught = signal.Signals(number).name
        self._on_first(self.caught)
