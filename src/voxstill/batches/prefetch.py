"""Whole tars on this machine, each before the plan needs it and gone after: a bucket is asked a few times a tar."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from voxstill import shards
from voxstill.batches.corpus import Corpus
from voxstill.batches.plan import EpochPlan
from voxstill.errors import StorageError
from voxstill.fetch import stream
from voxstill.monitor import log
from voxstill.redaction import shown
from voxstill.uri import is_local

_PART_BYTES = 256 << 20  # in one request
_AT_A_TIME = 4  # tars
_CLOSING_S = 5.0
_PART = ".part-"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder on this machine for the tars of one rank, and how much they may take there."""

    folder: Path
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Use:
    """A tar, how much of it, and the steps of its first and last utterance."""

    shard: int
    num_bytes: int
    first: int
    last: int


def uses(corpus: Corpus, plan: EpochPlan, *, rank: int, ranks: int, first: int) -> list[Use]:
    """The tars far away that a rank needs from step `first` on, in the order in which it needs them."""
    each = plan.slots // ranks
    start_S = plan.bounds[:-1].reshape(-1, plan.slots)[first:, rank * each]
    num_S = plan.bounds[1:].reshape(-1, plan.slots)[first:, (rank + 1) * each - 1] - start_S
    step_N = np.repeat(np.arange(first, first + len(num_S)), num_S)
    row_N = plan.order[np.repeat(start_S - (np.cumsum(num_S) - num_S), num_S) + np.arange(num_S.sum())]
    shard_N = corpus.shard[row_N]
    shard_K, first_K, inverse_N = np.unique(shard_N, return_index=True, return_inverse=True)
    last_K = np.zeros(len(shard_K), np.int64)
    np.maximum.at(last_K, inverse_N, step_N)
    num_bytes_K = np.zeros(len(shard_K), np.int64)
    np.maximum.at(num_bytes_K, inverse_N, corpus.offset[row_N] + corpus.num_bytes[row_N])
    columns = (each_K.tolist() for each_K in (shard_K, num_bytes_K, step_N[first_K], last_K))
    needed = (Use(*row) for row in zip(*columns, strict=True) if not is_local(corpus.tar(row[0])))
    return sorted(needed, key=lambda use: use.first)


class Prefetch:
    """While entered, tars come into the place in the order of their first step, and go when their last has `passed`.

    A tar is there whole or not at all, and never more than the place may hold: what has no room, or cannot be fetched,
    is read utterance by utterance. What a run before left in the place is used.
    """

    def __init__(self, corpus: Corpus, place: Place, needed: Iterable[Use]) -> None:
        self._corpus, self._place = corpus, place
        self._needed = [use for use in needed if use.num_bytes <= place.max_bytes]
        self._held: dict[int, Use] = {}
        self._step = -1
        self._ends = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._fetch_all, name=f"prefetch-{i}", daemon=True) for i in range(_AT_A_TIME)
        ]

    def __enter__(self) -> Prefetch:
        folder = self._place.folder
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {path_in(folder, use.shard).name: use for use in self._needed}
        for path in folder.iterdir():
            use = wanted.get(path.name)
            if use is not None and path.stat().st_size >= use.num_bytes:
                self._held[use.shard] = use
            else:
                path.unlink()
        self._needed = [use for use in self._needed if use.shard not in self._held]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_CLOSING_S)

    def passed(self, step: int) -> None:
        """Nothing before `step`, nor itself, is needed any more."""
        with self._changed:
            self._step = step
            for use in [each for each in self._held.values() if each.last <= step]:
                del self._held[use.shard]
                path_in(self._place.folder, use.shard).unlink(missing_ok=True)
            self._changed.notify_all()

    def _fetch_all(self) -> None:
        while (use := self._next()) is not None:
            try:
                self._fetch(use)
            except (StorageError, OSError) as error:
                what = error.what if isinstance(error, StorageError) else str(error)
                log.warning("prefetch: %s; its utterances are read one by one", what)
                with self._changed:
                    self._held.pop(use.shard, None)
                    self._changed.notify_all()

    def _next(self) -> Use | None:
        """The next tar to fetch, as soon as there is room for it; None where there is no more."""
        with self._changed:
            while not self._ends:
                while self._needed and self._needed[0].last <= self._step:  # training was faster
                    self._needed.pop(0)
                if not self._needed:
                    return None
                held = sum(use.num_bytes for use in self._held.values())
                if held + self._needed[0].num_bytes <= self._place.max_bytes:
                    use = self._needed.pop(0)
                    self._held[use.shard] = use
                    return use
                self._changed.wait()
            return None

    def _fetch(self, use: Use) -> None:
        path = path_in(self._place.folder, use.shard)
        part = path.with_name(_PART + path.name)
        uri = self._corpus.tar(use.shard)
        try:
            with part.open("wb") as file:
                while file.tell() < use.num_bytes:
                    start, length = file.tell(), min(_PART_BYTES, use.num_bytes - file.tell())
                    for piece in stream(f"{uri}#{start}+{length}"):
                        if self._ends:
                            return
                        file.write(piece)
                    if file.tell() == start:
                        raise StorageError(f"`{shown(uri)}` is shorter than its sidecar says")
            with self._changed:
                if use.shard in self._held:  # else its last step has passed meanwhile
                    part.rename(path)
        finally:
            part.unlink(missing_ok=True)


def path_in(folder: Path, shard: int) -> Path:
    """Where a fetched tar lies."""
    return folder / shards.tar_name(shard)
