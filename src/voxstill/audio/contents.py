"""Hashes of what the index read: they distinguish a file that was copied or touched from one that has changed."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from voxstill.core.errors import VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import Recording
from voxstill.storage import tables
from voxstill.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indexed(Recording):
    """The columns of a recording that are read here."""

    content_hash: str | None = None


@dataclass
class ContentHashes:
    """The content hashes of the recordings in a work folder, by id.

    Nothing is read until the first question, which few workers have; then they take 16 bytes for a recording.
    """

    work: str
    _sorted: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __getstate__(self) -> str:
        return self.work

    def __setstate__(self, work: str) -> None:
        self.work, self._sorted = work, None

    def is_same(self, recording_id: str, content: str) -> bool:
        """Return whether the recording was indexed with this content; False if its table has no hashes."""
        return bool((self._of(recording_id) == int(content, 16)).any())

    def is_other(self, recording_id: str, content: str) -> bool:
        """Return whether the recording was indexed with other content; False if its table has no hashes."""
        content_N = self._of(recording_id)
        return len(content_N) > 0 and not bool((content_N == int(content, 16)).any())

    def _of(self, recording_id: str) -> NDArray[np.uint64]:
        if self._sorted is None:
            self._sorted = self._read()
        id_N, content_N = self._sorted
        value = np.uint64(int(recording_id, 16))
        start, end = (int(id_N.searchsorted(value, side)) for side in ("left", "right"))
        return content_N[start:end]

    def _read(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        ids, contents = array("Q"), array("Q")
        try:
            work = Store(self.work)
            for part in tables.columns(work, tables.parts(work, "recordings"), _Indexed, ("id", "content_hash")):
                for id_, content in zip(part["id"].to_pylist(), part["content_hash"].to_pylist(), strict=True):
                    if content is not None:
                        ids.append(int(id_, 16))
                        contents.append(int(content, 16))
        except VoxstillError as error:
            log.warning("the recordings of `%s` cannot be read: %s", self.work, error.what)
            ids, contents = array("Q"), array("Q")
        id_N, content_N = np.frombuffer(ids, np.uint64), np.frombuffer(contents, np.uint64)
        order_N = np.argsort(id_N)
        return id_N[order_N], content_N[order_N]
