"""The metrics of this process: its version, the disks that it writes to, its GPUs, and the steps that it runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from voxstill.core.metrics.gpus import Gpus
from voxstill.core.metrics.registry import Metric, Metrics, Sample, gauges
from voxstill.core.version import __version__

_INFO = Metric("info", "The version of voxstill.", ("version",))
_DISK = gauges(
    ["folder"],
    {"disk_free_bytes": "Free space on the disk of the folder.", "disk_size_bytes": "Size of that disk."},
)


class _Version:
    def samples(self) -> Iterator[Sample]:
        yield _INFO.sample(1, __version__)


class Disk:
    """The disk on which a local folder lies; `name` is what the folder is to the run."""

    def __init__(self, name: str, folder: str) -> None:
        self._name, self._folder = name, folder

    def samples(self) -> Iterator[Sample]:
        """Its free space and its size; nothing while the folder is not there."""
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError:
            return
        yield _DISK["disk_free_bytes"].sample(usage.free, self._name)
        yield _DISK["disk_size_bytes"].sample(usage.total, self._name)


METRICS = Metrics({"version": _Version(), "gpus": Gpus()})
"""The collector of this process."""
