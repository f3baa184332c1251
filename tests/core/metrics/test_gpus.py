"""GPUs in the metrics: what NVML reports, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from voxstill.core.metrics import gpus
from voxstill.core.metrics.gpus import Gpus


class Nvml:
    """The real library, of which the functions answer for two GPUs; the second cannot say what power it draws."""

    def __init__(self, library: Any, reasons: int) -> None:
        self._library, self._reasons = library, reasons

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._library, name)  # AttributeError of a name that NVML does not have
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda number: number,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=80),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=30, total=80),
            "nvmlDeviceGetPowerUsage": self._power,
            "nvmlDeviceGetTemperature": lambda *_: 65,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self._reasons,
        }
        return answers.get(name, real)

    def _power(self, number: int) -> int:
        if number == 1:
            raise self._library.NVMLError(self._library.NVML_ERROR_NOT_SUPPORTED)
        return 350_000


def values(monkeypatch: pytest.MonkeyPatch, reasons: int) -> dict[tuple[str, ...], float]:
    library = pytest.importorskip("pynvml")
    monkeypatch.setattr(gpus, "nvml", lambda: Nvml(library, reasons))
    return {(sample.metric.name, *sample.labels): sample.value for sample in Gpus().samples()}


def test_what_each_gpu_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = values(monkeypatch, 0)
    assert shown["gpu_utilization_ratio", "0"] == 0.8
    assert (shown["gpu_memory_used_bytes", "1"], shown["gpu_memory_size_bytes", "1"]) == (30, 80)
    assert shown["gpu_power_watts", "0"] == 350
    assert ("gpu_power_watts", "1") not in shown
    assert (shown["gpu_temperature_celsius", "1"], shown["gpu_slowed_down", "1"]) == (65, 0)


def test_heat_slows_a_gpu_down_and_its_power_limit_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("pynvml")
    assert values(monkeypatch, library.nvmlClocksThrottleReasonSwPowerCap)["gpu_slowed_down", "0"] == 0
    for reason in ("HwThermalSlowdown", "HwPowerBrakeSlowdown"):
        assert values(monkeypatch, getattr(library, f"nvmlClocksThrottleReason{reason}"))["gpu_slowed_down", "0"] == 1
    software = library.nvmlClocksThrottleReasonSwThermalSlowdown
    assert values(monkeypatch, software)["gpu_slowed_down", "0"] == 1


def test_without_a_driver_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "nvml", lambda: None)
    assert list(Gpus().samples()) == []
