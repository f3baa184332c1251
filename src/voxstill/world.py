"""Which process this is among how many, on what machine, and who asks it to stop; the only reader of environment
variables.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from voxstill.errors import ConfigError

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)
_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|ACCESS_?KEY|API_?KEY|ACCOUNT_?KEY|PRIVATE_?KEY|SAS", re.IGNORECASE)


def environment() -> Mapping[str, str]:
    """The environment variables of this process."""
    return os.environ


def secrets() -> list[str]:
    """The values of environment variables that are credentials by their names, longest first: never to be shown."""
    found = {value for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= 6}
    return sorted(found, key=len, reverse=True)


def num_cores() -> int:
    """Cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> None:
    """Let this process keep what it frees for what it asks for next, where its C library is glibc.

    A step on a CPU asks for the same large tensors again and again, and pages fresh from the system cost a fifth of the
    time of a training. What is kept is no more than the most that was in use.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library, which knows no such options
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1), (_TOP_PAD, 64 << 20)):
            mallopt(option, value)


def pin_threads(num: int) -> None:
    """Let BLAS, OpenMP and ONNX start `num` threads in this process and its children, where nobody chose before.

    Two busy libraries on two cores are up to twenty times slower than one thread each.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(num))


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that somebody else has started to train together, this one among them."""

    by: str
    rank: int
    num: int
    num_here: int
    """On this machine; on each of the others as many."""


def ranks() -> Ranks | None:
    """What torchrun, Ray Train or srun says of the processes they have started; None for one that is alone.

    What srun says is said again as torchrun says it: Lightning and torch look there. ConfigError where machines have
    different numbers of processes.
    """
    if "RANK" not in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        os.environ.update(_as_torchrun_says(os.environ))
    try:
        rank, num, num_here = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    except KeyError:
        return None
    if num == 1:
        return None
    by = "srun" if "SLURM_STEP_NUM_TASKS" in os.environ else "Ray Train"
    by = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else by
    if num % num_here:
        raise _uneven(f"{num} in all, {num_here} here")
    return Ranks(by, rank, num, num_here)


def _as_torchrun_says(srun: Mapping[str, str]) -> dict[str, str]:
    """Rank 0 is on the first machine of the step, and listens on a port that no other step of the job has."""
    here = re.fullmatch(r"(\d+)(\(x\d+\))?", told := srun["SLURM_STEP_TASKS_PER_NODE"])  # "2(x3)": three machines
    if here is None:
        raise _uneven(told)
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", srun["SLURM_STEP_NODELIST"]).split(",")[0]
    port = 15_000 + (int(srun["SLURM_JOB_ID"]) * 31 + int(srun["SLURM_STEP_ID"])) % 15_000
    return {
        "RANK": srun["SLURM_PROCID"],
        "WORLD_SIZE": srun["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": srun["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": here[1],
        "MASTER_ADDR": srun.get("MASTER_ADDR", first),
        "MASTER_PORT": srun.get("MASTER_PORT", str(port)),
    }


def _uneven(told: str) -> ConfigError:
    return ConfigError(
        f"the processes of the training are spread unevenly: {told}",
        why="every machine needs as many as the others",
        fix="ask torchrun for --nproc-per-node, srun for --ntasks-per-node",
    )


class Signals:
    """A `with` block in which the first SIGINT or SIGTERM is only noted, in `caught`; the second interrupts.

    `on_first` is told its name. Outside the main thread, which alone may do so, nothing is caught.
    """

    def __init__(self, on_first: Callable[[str], None]) -> None:
        self.caught: str | None = None
        self._on_first = on_first
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: Any) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = signal.Signals(number).name
        self._on_first(self.caught)
