"""One training for each experiment folder: its rank 0 holds the lease of the folder while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from voxstill.storage import lease
from voxstill.storage.lease import Lease
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training import parallel
from voxstill.training.control import NAME

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def check_free(run: RunDir, command: str) -> None:
    """StorageError if another process trains in the folder: reported before ranks are started."""
    _acquire(run, command).release()


@contextmanager
def owned(fabric: Fabric, run: RunDir, command: str) -> Iterator[Callable[[], None]]:
    """Own the folder while the block runs; StorageError on every rank where another process trains in it.

    Gives a function that raises StorageError if another process has taken the folder over, as this one showed no
    sign of life for long. A process of this machine that is gone has lost it at once.
    """
    held: list[Lease] = []
    parallel.broadcast_from_rank0(fabric, lambda: held.append(_acquire(run, command)))
    try:
        yield held[0].check if held else _nothing
    finally:
        for own in held:
            own.release()


def _acquire(run: RunDir, command: str) -> Lease:
    return lease.acquire(Store(str(run.path.absolute())), NAME, command, waits=True)


def _nothing() -> None:
    """Another rank holds the lease."""
