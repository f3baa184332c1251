"""Which tars of a source were rewritten since they were indexed: members that moved would be recordings a second time.

A member is known by its address, which is that of its tar and a range of bytes. So the members of a rewritten tar look
new, and so does everything in a compressed tar or a Parquet file with audio inside that was unpacked again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from voxstill.indexing.formats.entry import SourceEntry
from voxstill.storage.uri import split_range


@dataclass(slots=True)
class _Tar:
    """What the tables hold of one tar."""

    origin: str | None
    """What it was unpacked from; its own address where it was not, None if an earlier version did not note it."""
    num_members: int = 0
    etags: set[str | None] = field(default_factory=set)


class Archives:
    """The tars of which the tables of an index hold sound recordings; `unpacked` is where unpacked ones lie."""

    def __init__(self, unpacked: str) -> None:
        self._unpacked = unpacked
        self._tars: dict[str, _Tar] = {}

    def add(self, uri: str, etag: str | None, origin: str | None) -> None:
        """Note a sound recording of the tables, which may be no member of a tar."""
        address, byte_range = split_range(uri)
        if byte_range is None:
            return
        if address not in self._tars:
            is_unknown = origin is None and address.startswith(self._unpacked)
            self._tars[address] = _Tar(None if is_unknown else origin or address)
        self._tars[address].num_members += 1
        self._tars[address].etags.add(etag)

    def rewritten(self, new: SourceEntry, num_kept: Counter[str]) -> bool:
        """Whether a new member is of a tar in another version, which lacks members of the version that was indexed.

        `num_kept` are the members of each tar that the source still has. A tar that only grew lacks none.
        """
        address, _ = split_range(new.uri)
        known = self._tars.get(address)
        if known is not None and new.etag in known.etags:
            return False
        origins = (address,) if new.origin is None else (new.origin, None)
        return any(tar.origin in origins and num_kept[at] < tar.num_members for at, tar in self._tars.items())


class ArchiveCheck:
    """Finds the rewritten tars of a source."""

    def __init__(self, archives: Archives) -> None:
        self._archives = archives
        self._num_kept: Counter[str] = Counter()
        self._new: dict[tuple[str, str | None], SourceEntry] = {}
        """The first new member of each version of a tar."""

    def add(self, entry: SourceEntry, is_kept: bool) -> None:
        """Note a file of the source that is in the tables, or that was never indexed."""
        address, byte_range = split_range(entry.uri)
        if byte_range is None or entry.failure is not None:
            return
        if is_kept:
            self._num_kept[address] += 1
        else:
            self._new.setdefault((address, entry.etag), entry)

    def rewritten(self) -> list[SourceEntry]:
        """The tars that were rewritten, or what they were unpacked from."""
        new = (entry for entry in self._new.values() if self._archives.rewritten(entry, self._num_kept))
        return [replace(entry, uri=entry.origin or split_range(entry.uri)[0]) for entry in new]
