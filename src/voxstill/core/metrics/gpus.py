"""The GPUs of this machine by NVML: use, memory, power, heat. Nothing if there is none, or no `nvidia-ml-py`."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType

from voxstill.core.metrics.registry import Sample, gauges

_SLOW = {
    "HwThermalSlowdown": "heat",
    "SwThermalSlowdown": "heat",
    "HwPowerBrakeSlowdown": "its power supply",
    "HwSlowdown": "its hardware",
}
"""Reasons for which a GPU runs slower than it should, by their names in NVML. Its power limit is none: at full work
large GPUs always reach it."""
_GPU = gauges(
    ["gpu"],
    {
        "gpu_utilization_ratio": "Share of the time in which a kernel runs.",
        "gpu_memory_used_bytes": "Memory in use, by all processes.",
        "gpu_memory_size_bytes": "Memory of the GPU.",
        "gpu_power_watts": "Power drawn.",
        "gpu_temperature_celsius": "Temperature of the chip.",
        "gpu_slowed_down": "1 while heat or a power limit slows it down.",
    },
)


@functools.cache
def nvml() -> ModuleType | None:
    """NVML, ready to be asked; None if there is no driver or no `nvidia-ml-py` (the extra `gpu`)."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    return library


class Gpus:
    """The GPUs of this machine, by their numbers there."""

    def samples(self) -> Iterator[Sample]:
        """What each reports now; not every GPU reports everything."""
        library = nvml()
        if library is None:
            return
        figures: dict[str, Callable[[object], float]] = {
            "gpu_utilization_ratio": lambda gpu: library.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            "gpu_memory_used_bytes": lambda gpu: library.nvmlDeviceGetMemoryInfo(gpu).used,
            "gpu_memory_size_bytes": lambda gpu: library.nvmlDeviceGetMemoryInfo(gpu).total,
            "gpu_power_watts": lambda gpu: library.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "gpu_temperature_celsius": lambda gpu: library.nvmlDeviceGetTemperature(gpu, 0),
            "gpu_slowed_down": lambda gpu: slowed_by(library, gpu) is not None,
        }
        with contextlib.suppress(library.NVMLError):  # a GPU that has fallen off the bus takes the others along
            gpus = [library.nvmlDeviceGetHandleByIndex(number) for number in range(library.nvmlDeviceGetCount())]
            for number, gpu in enumerate(gpus):
                for name, value in figures.items():
                    with contextlib.suppress(library.NVMLError):
                        yield _GPU[name].sample(value(gpu), str(number))


def slowed_by(library: ModuleType, gpu: object) -> str | None:
    """What slows a GPU down, in words; None if nothing does. NVMLError if it does not say."""
    reasons = library.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    for name, cause in _SLOW.items():
        if any(reasons & getattr(library, f"nvmlClocks{kind}{name}", 0) for kind in ("EventReason", "ThrottleReason")):
            return cause
    return None
