"""The types of a run: chunks of items, the stages that they pass through, the work of a stage, changes of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from voxstill.core.config import Engine
from voxstill.core.errors import VoxstillError
from voxstill.core.metrics.figures import ModelFigures, Summary
from voxstill.core.records import fingerprint

_SET_ASIDE = "set aside"


class StageWork(Protocol):
    """The work of a stage: pickled unopened, then opened, called and closed in the process of a worker.

    Two works that are equal do the same: a work that a change replaces by an equal one is not opened again. A dataclass
    leaves what `open` makes out of its comparison. A subclass needs no `open` or `close` where there is nothing to do.
    """

    def open(self) -> None:
        """Load what the work needs, such as a model; called once, before the first call, and again after `close`."""
        return

    def __call__(self, items: Sequence[Any], payload: Any) -> object:
        """Turn items and the payload of the stage before (None for the first stage) into this stage's payload.

        The payload of the last stage is one row for each item, in order. Arrays in a payload arrive read-only.
        """
        ...

    def figures(self) -> ModelFigures | None:
        """What its model reports of itself, asked for after each call; None if there is nothing to report."""
        return None

    def close(self) -> None:
        """Give back what `open` took."""
        return


@dataclass(frozen=True, slots=True)
class Chunk:
    """Items that are worked on, retried and committed together; the id depends on what is in it, not on the order."""

    id: str
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the work on a chunk, done by `workers` processes, each with a copy of `work` of its own."""

    name: str
    work: StageWork
    workers: int | None = None
    """None takes as many as fit: by GPUs where each needs some, else one for each core of the cluster."""
    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    """What each worker reserves of other resources, by their names in the Ray cluster."""
    calls: int = 1
    """Calls that one worker takes at once, in threads of their own; the inline engine makes one after the other."""

    @property
    def reserved(self) -> dict[str, float]:
        """What each worker reserves besides CPUs, which are shared where there are too few."""
        return {name: amount for name, amount in {"GPU": self.num_gpus, **self.resources}.items() if amount}

    def max_chunks(self, in_flight: int) -> int:
        """The most chunks that one worker holds: those it works on, and those that wait with their payload."""
        return in_flight + self.calls - 1


@dataclass(frozen=True, slots=True)
class Change:
    """Stages and limits that a run is to continue with. The stages have the names and the order of those before."""

    stages: Sequence[Stage]
    cfg: Engine


class Meter(Protocol):
    """Where the figures of a run are shown."""

    def follow(self, summary: Callable[[], Summary]) -> None:
        """Ask `summary` for the figures at any time from now on, from any thread."""
        ...

    def update(self, summary: Summary) -> None:
        """A chunk is committed."""
        ...


class Changes(Protocol):
    """Where a run asks for changes and reports what came of them; always called from the thread of the run."""

    def poll(self) -> Change | None:
        """Return each change once, and None if there is no new one; must not block."""
        ...

    def applied(self, stages: Sequence[Stage]) -> None:
        """The run continues with these stages."""
        ...

    def rejected(self, error: VoxstillError) -> None:
        """The change was not made, because of `error`; the run continues as before."""
        ...


def set_aside_error(reason: str) -> str:
    """The error in the row of an item that the engine has set aside: no worker could do it."""
    return f"{_SET_ASIDE}: {reason}"


def is_set_aside(error: str) -> bool:
    """Whether this is an error of `set_aside_error`."""
    return error.startswith(_SET_ASIDE)


def chunk_id(ids: Iterable[str]) -> str:
    """Hash the ids of a chunk's items; their order does not matter."""
    return fingerprint(sorted(ids))


def chunks_of(
    items: Iterable[Any],
    size: int,
    key: Callable[[Any], str],
    cost: Callable[[Any], float] = lambda _: 0.0,
    budget: float = 0.0,
) -> Iterator[Chunk]:
    """Cut items, in their order, into chunks of up to `size` that cost up to `budget`; `items` is consumed lazily.

    An item that alone costs more is a chunk.
    """
    members: list[Any] = []
    spent = 0.0
    for item in items:
        if members and spent + cost(item) > budget:
            yield Chunk(chunk_id(map(key, members)), tuple(members))
            members, spent = [], 0.0
        members.append(item)
        spent += cost(item)
        if len(members) == size:
            yield Chunk(chunk_id(map(key, members)), tuple(members))
            members, spent = [], 0.0
    if members:
        yield Chunk(chunk_id(map(key, members)), tuple(members))
