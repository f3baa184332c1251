"""Unpack compressed files of the source again whose unpacked copies are broken or missing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from voxstill.audio import read_utterances
from voxstill.core.config import Config
from voxstill.core.errors import VoxstillError
from voxstill.core.monitor import log
from voxstill.indexing.scan import scan
from voxstill.pipeline.check_files import UNPACKED
from voxstill.storage import lease, set_aside
from voxstill.storage.store import Store


def unpack_again(cfg: Config, faults: Iterable[str]) -> list[str]:
    """Unpack again what of these keys is an unpacked copy, and return those that were; the others stay as they are.

    A copy is named after the version of its file and, of one on this machine, after its content: where neither is what
    it was, none of that name comes out.
    """
    work = Store(cfg.work)
    broken = [key for key in faults if key.startswith(UNPACKED)]
    if not broken:
        return []
    table = UNPACKED.rstrip("/")
    with lease.hold(work, table, "verify --repair"):
        lease.check_free(work, *lease.below(work, table))
        set_aside.keep(work, broken)
        for key in broken:
            work.delete(key)
        before = _copies(work)
        try:
            deque(scan(cfg.source, work, read_utterances.reading(cfg).cache), maxlen=0)  # it unpacks what is not there
        except VoxstillError as error:
            log.error("verify: the source cannot be read, so not all of it is unpacked again: %s", error.what)
        finally:
            _rename(work, broken, _copies(work) - before)
            unpacked = [key for key in broken if work.exists(key)]
            for key in set_aside.settle(work, table):
                log.error("verify: `%s` cannot be unpacked again: its file is another now, or is not there", key)
    return unpacked


def _copies(work: Store) -> set[str]:
    return {entry.key for entry in work.list(UNPACKED)}


def _rename(work: Store, wanted: Iterable[str], new: Iterable[str]) -> None:
    """Give copies of equal content the names that are wanted: the recordings say these, and a file may be touched."""
    by_content = {content: key for key in new if (content := _content(key))}
    for key in wanted:
        if not work.exists(key) and (copy := by_content.get(_content(key))) is not None:
            work.copy(copy, key)
            work.delete(copy)


def _content(key: str) -> str:
    return key.removesuffix(".tar").partition("-")[2]
