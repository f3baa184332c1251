"""Prefetching of remote tars to a local disk, in the order of the plan; each is deleted after its last use."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from voxstill.core.errors import StorageError
from voxstill.core.monitor import log
from voxstill.data.plan import EpochPlan
from voxstill.data.shard_index import ShardIndex
from voxstill.storage import shard_format
from voxstill.storage.fetch import stream
from voxstill.storage.redaction import redact_uri
from voxstill.storage.uri import is_local

_PART_BYTES = 256 << 20  # in one request
_AT_A_TIME = 4  # tars
_CLOSING_S = 5.0
_PART = ".part-"


@dataclass(frozen=True, slots=True)
class CacheDir:
    """A local cache folder for the tars of one rank, and its limit in bytes."""

    folder: Path
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ShardUse:
    """When a rank needs a tar: the bytes of it that are needed, and the steps of its first and last utterance."""

    shard: int
    num_bytes: int
    first: int
    last: int


def shard_uses(corpus: ShardIndex, plan: EpochPlan, *, rank: int, ranks: int, first: int) -> list[ShardUse]:
    """The remote tars that a rank needs from step `first` on, in the order of their first use."""
    per_rank = plan.batches_per_step // ranks
    start_S = plan.bounds[:-1].reshape(-1, plan.batches_per_step)[first:, rank * per_rank]
    num_S = plan.bounds[1:].reshape(-1, plan.batches_per_step)[first:, (rank + 1) * per_rank - 1] - start_S
    step_N = np.repeat(np.arange(first, first + len(num_S)), num_S)
    row_N = plan.order[np.repeat(start_S - (np.cumsum(num_S) - num_S), num_S) + np.arange(num_S.sum())]
    shard_N = corpus.shard[row_N]
    shard_K, first_K, inverse_N = np.unique(shard_N, return_index=True, return_inverse=True)
    last_K = np.zeros(len(shard_K), np.int64)
    np.maximum.at(last_K, inverse_N, step_N)
    num_bytes_K = np.zeros(len(shard_K), np.int64)
    np.maximum.at(num_bytes_K, inverse_N, corpus.offset[row_N] + corpus.num_bytes[row_N])
    columns = (column_K.tolist() for column_K in (shard_K, num_bytes_K, step_N[first_K], last_K))
    needed = (
        ShardUse(shard=shard, num_bytes=num_bytes, first=first_step, last=last_step)
        for shard, num_bytes, first_step, last_step in zip(*columns, strict=True)
        if not is_local(corpus.tar(shard))
    )
    return sorted(needed, key=lambda use: use.first)


class Prefetch:
    """While entered, fetches tars into the cache in the order of their first use; deletes each after its last.

    A tar is there whole or not at all, and the cache stays below its limit: a tar that does not fit, or cannot be
    fetched or stored, is read utterance by utterance. Tars that an earlier run left in the cache are used.
    """

    def __init__(self, corpus: ShardIndex, cache_dir: CacheDir, needed: Iterable[ShardUse]) -> None:
        self._corpus, self._cache_dir = corpus, cache_dir
        self._needed = [use for use in needed if use.num_bytes <= cache_dir.max_bytes]
        self._held: dict[int, ShardUse] = {}
        self._step = -1
        self._ends = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._fetch_all, name=f"prefetch-{i}", daemon=True) for i in range(_AT_A_TIME)
        ]

    def __enter__(self) -> Prefetch:
        try:
            self._reuse()
        except OSError as error:  # a full disk, for one
            why = error.strerror or error
            log.warning("prefetch: `%s` cannot be used: %s; utterances are read one by one", error.filename, why)
            self._needed, self._held = [], {}
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_CLOSING_S)

    def _reuse(self) -> None:
        """Hold the tars of an earlier run that are needed again, and remove all others."""
        folder = self._cache_dir.folder
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {path_in(folder, use.shard).name: use for use in self._needed}
        for path in folder.iterdir():
            use = wanted.get(path.name)
            if use is not None and path.stat().st_size >= use.num_bytes:
                self._held[use.shard] = use
            else:
                path.unlink()
        self._needed = [use for use in self._needed if use.shard not in self._held]

    def step_done(self, step: int) -> None:
        """Note that `step` has been read, and delete the tars whose last use it was."""
        with self._changed:
            self._step = step
            for use in [held for held in self._held.values() if held.last <= step]:
                del self._held[use.shard]
                path_in(self._cache_dir.folder, use.shard).unlink(missing_ok=True)
            self._changed.notify_all()

    def _fetch_all(self) -> None:
        while (use := self._next()) is not None:
            try:
                self._fetch(use)
            except (StorageError, OSError) as error:
                message = error.what if isinstance(error, StorageError) else str(error)
                log.warning("prefetch: %s; its utterances are read one by one", message)
                with self._changed:
                    self._held.pop(use.shard, None)
                    self._changed.notify_all()

    def _next(self) -> ShardUse | None:
        """Wait until there is room for the next tar, and return it; None if none is left."""
        with self._changed:
            while not self._ends:
                while self._needed and self._needed[0].last <= self._step:  # training was faster
                    self._needed.pop(0)
                if not self._needed:
                    return None
                held = sum(use.num_bytes for use in self._held.values())
                if held + self._needed[0].num_bytes <= self._cache_dir.max_bytes:
                    use = self._needed.pop(0)
                    self._held[use.shard] = use
                    return use
                self._changed.wait()
            return None

    def _fetch(self, use: ShardUse) -> None:
        path = path_in(self._cache_dir.folder, use.shard)
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
                        raise StorageError(
                            f"`{redact_uri(uri)}` is shorter than its sidecar says", code="audio-unreadable"
                        )
            with self._changed:
                # not by `atomic_file`, which always renames: its last step may have passed meanwhile
                if use.shard in self._held:
                    part.rename(path)
        finally:
            part.unlink(missing_ok=True)


def path_in(folder: Path, shard: int) -> Path:
    """Path of a fetched tar."""
    return folder / shard_format.tar_name(shard)
