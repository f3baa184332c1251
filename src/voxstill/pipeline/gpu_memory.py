"""GPU memory that is in use though no process of this machine has it, by NVML (nvidia-ml-py)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from voxstill.core.metrics.gpus import nvml

_FIRST_NAMESPACE = "pid:[4026531836]"
"""The namespace of process ids outside all containers (PROC_PID_INIT_INO of Linux); NVML uses its ids."""
_LEAST_BYTES = 256 << 20
"""Less is what a driver keeps for itself."""


@dataclass(frozen=True, slots=True)
class UnownedMemory:
    """Bytes of a GPU that no process has."""

    gpu: int
    num_bytes: int


def unowned_memory() -> list[UnownedMemory]:
    """Per GPU what no process has; empty without NVML, and in a container, which sees no processes of others."""
    library = nvml()
    with contextlib.suppress(OSError):
        if library is not None and os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE:
            return list(_of_devices(library))
    return []


def unowned_bytes(used: int, processes: Mapping[int, int | None]) -> int:
    """What is in use beyond the processes that run, by their ids; 0 where the driver does not say what one has."""
    running = {pid: num_bytes for pid, num_bytes in processes.items() if Path(f"/proc/{pid}").exists()}
    owned = [num_bytes for num_bytes in running.values() if num_bytes is not None]
    if len(owned) < len(running):
        return 0
    left = used - sum(owned)
    return left if left >= _LEAST_BYTES else 0


def _of_devices(library: ModuleType) -> Iterator[UnownedMemory]:
    for number in range(library.nvmlDeviceGetCount()):
        with contextlib.suppress(library.NVMLError):  # a device that does not say, one in MIG mode for example
            device = library.nvmlDeviceGetHandleByIndex(number)
            memory = library.nvmlDeviceGetMemoryInfo(device, version=library.nvmlMemory_v2)
            rows = [
                *library.nvmlDeviceGetComputeRunningProcesses(device),
                *library.nvmlDeviceGetGraphicsRunningProcesses(device),
            ]
            left = unowned_bytes(memory.used, {row.pid: row.usedGpuMemory for row in rows})
            if left:
                yield UnownedMemory(number, left)
