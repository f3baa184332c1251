"""GPU memory that is in use though no process of this machine has it, as NVML tells (nvidia-ml-py)."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIRST_NAMESPACE = "pid:[4026531836]"
"""The namespace of process ids outside all containers (PROC_PID_INIT_INO of Linux); NVML speaks of its ids."""
_LEAST_BYTES = 256 << 20
"""Less is what a driver keeps for itself."""


@dataclass(frozen=True, slots=True)
class UnownedMemory:
    """Bytes of a GPU that no process has."""

    gpu: str
    num_bytes: int


def unowned_memory() -> list[UnownedMemory]:
    """Per GPU what no process has; empty without NVML, and in a container, which sees no processes of others."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        if os.readlink("/proc/self/ns/pid") != _FIRST_NAMESPACE:
            return []
        nvml.nvmlInit()
    except (ImportError, OSError):
        return []
    except Exception:  # NVML's own errors: there is no driver
        return []
    try:
        return list(_of_devices(nvml))
    finally:
        nvml.nvmlShutdown()


def unowned_bytes(used: int, processes: Mapping[int, int | None]) -> int:
    """What is in use beyond the processes that run, by their ids; 0 where the driver does not say what one has."""
    running = {pid: num_bytes for pid, num_bytes in processes.items() if Path(f"/proc/{pid}").exists()}
    owned = [num_bytes for num_bytes in running.values() if num_bytes is not None]
    if len(owned) < len(running):
        return 0
    left = used - sum(owned)
    return left if left >= _LEAST_BYTES else 0


def _of_devices(nvml: Any) -> Iterator[UnownedMemory]:
    for number in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):  # a device that does not say, one in MIG mode for example
            device = nvml.nvmlDeviceGetHandleByIndex(number)
            memory = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
            rows = [
                *nvml.nvmlDeviceGetComputeRunningProcesses(device),
                *nvml.nvmlDeviceGetGraphicsRunningProcesses(device),
            ]
            left = unowned_bytes(memory.used, {row.pid: row.usedGpuMemory for row in rows})
            if left:
                yield UnownedMemory(f"GPU {number}", left)
