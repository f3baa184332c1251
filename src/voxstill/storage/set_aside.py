"""What a repair makes again, kept below `set_aside/` until the new is there: nothing on disk is lost by trying.

Steps create keys and never write over one, so the old ones have to go first. They are copied before, and come back
where the step fails. After a kill the next `settle` decides by what it sees:

    copies, and `_SUCCESS.json` of the table     nothing was removed yet, or a step ended since: the copies go
    copies of a few parts, table not finished    parts that are there were made again; the others come back
    copies of a whole table (`_whole`), the same  the new parts are of another plan: all go, and the old ones come back

`_whole` is written when all copies are there, and removed before the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from voxstill.storage import tables
from voxstill.storage.store import Store

PREFIX = "set_aside"
_PARTS = (".parquet", ".tar")


def keep(work: Store, keys: Sequence[str], whole: str | None = None) -> list[str]:
    """Copy those of the keys that are there; `whole` is the table where they are all of it.

    Returns the keys in the order in which they are to be removed: `_SUCCESS.json` of the table first, and commits
    before what they commit. StorageError, before anything is copied, where one of them lies behind a link.
    """
    for key in keys:
        work.check_unlinked(key)
        work.check_unlinked(f"{PREFIX}/{key}")
    for key in keys:
        if work.exists(key):
            work.copy(key, f"{PREFIX}/{key}")
    if whole is not None:
        work.replace(_mark(whole), b"")
    return sorted(keys, key=_order, reverse=True)


def tables_kept(work: Store) -> list[str]:
    """The tables of which something is set aside."""
    keys = (entry.key.removeprefix(f"{PREFIX}/") for entry in work.list(PREFIX))
    return sorted({_table_of(key) for key in keys})


def settle(work: Store, table: str) -> list[str]:
    """Put back what was set aside of a table and not made again since, and remove the copies; returns what came back.

    The caller holds the lease of the table.
    """
    is_whole, lost = work.exists(_mark(table)), list[str]()
    kept = _kept(work, table)
    if not work.exists(f"{table}/{tables.SUCCESS}"):
        if is_whole:
            new = {entry.key for entry in work.list(table) if entry.key.endswith(_PARTS)}
            for key in sorted(new.difference(kept)):
                work.delete(key)
        lost = [key for key in kept if is_whole or not work.exists(_commit_of(key))]
        for key in lost:
            work.delete(key)
            work.copy(f"{PREFIX}/{key}", key)
    drop(work, table)
    return lost


def drop(work: Store, table: str) -> None:
    """Remove the copies of a table: what takes their place is there."""
    work.delete(_mark(table))
    for key in _kept(work, table):
        work.delete(f"{PREFIX}/{key}")


def _mark(table: str) -> str:
    return f"{PREFIX}/{table}/_whole"


def _kept(work: Store, table: str) -> list[str]:
    """The keys of which there is a copy, in the order in which they may come back."""
    keys = (entry.key.removeprefix(f"{PREFIX}/") for entry in work.list(PREFIX) if entry.key != _mark(table))
    return sorted((key for key in keys if _table_of(key) == table), key=_order)


def _table_of(key: str) -> str:
    """The table that a file is of; recordings are of their utterances."""
    folder = key.rpartition("/")[0]
    return f"utterances/{folder.removeprefix('recordings/')}" if folder.startswith("recordings/") else folder


def _commit_of(key: str) -> str:
    """The key that is written last of those that belong together."""
    if key.startswith("recordings/"):
        return f"utterances/{key.removeprefix('recordings/')}"
    return f"{key.removesuffix('.tar')}.parquet" if key.startswith("shards/") and key.endswith(".tar") else key


def _order(key: str) -> tuple[bool, bool, str]:
    """Commits after what they commit, and `_SUCCESS.json` last."""
    return key.endswith(f"/{tables.SUCCESS}"), _commit_of(key) == key, key
