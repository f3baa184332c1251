"""What the loop asks of the data of a training: plans, steps and the dev split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from voxstill.core.records import Batch
from voxstill.data.bottleneck import LoaderTimes
from voxstill.data.plan import EpochPlan
from voxstill.training.task import DevBatch

Prepared = TypeVar("Prepared")


class Data(Protocol):
    """Where steps come from."""

    def plan(self, epoch: int, *, ascending: bool) -> EpochPlan:
        """The batches of an epoch."""
        ...

    def steps(
        self, plan: EpochPlan, first: int, make: Callable[[int, list[Batch]], Prepared], workers: int | None = None
    ) -> Iterator[Prepared]:
        """What `make` makes of this rank's batches of each step from `first` on, ahead of time in a thread.

        So many `workers` read them, or as many as `train.loader_workers` said at the start.
        """
        ...

    def replaced(self) -> int:
        """Utterances that could not be read so far, each replaced by a neighbour of weight zero."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether it lies in a bucket."""
        ...

    def spent(self) -> LoaderTimes:
        """Seconds that reading and preparing took so far."""
        ...

    def finish(self) -> None:
        """Remove what was fetched ahead."""
        ...

    def dev_batches(self, beat: Callable[[], None]) -> Iterable[DevBatch]:
        """The batches of the dev split, always the same; none where there is nothing. Calls `beat` before each."""
        ...
