"""A cache on disk of fetched objects: least recently used go first, checksums are verified, its size has a limit.

One file for each address: a line with version, size and checksum, then the bytes. Files appear by renaming, so a reader
sees all of one or none of it; one that was open when it was evicted is read to its end all the same. Addresses are
stored as hashes only, since they may hold credentials.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from voxstill.core.errors import ConfigError, StorageError, system_code

_SPARE = 0.1
"""Share of the limit that an eviction leaves free, so that not every new object causes one."""
_DRAFT_PREFIX = "torn-"
_LOCK = "lock"


def writable_folder(folder: str) -> Path:
    """The path of `cache.folder`, which is made; ConfigError where nothing can be written there.

    A full disk is no error: what does not fit is not cached.
    """
    path = Path(folder).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            is_file = isinstance(error, FileExistsError | NotADirectoryError)
            raise ConfigError(
                f"`cache.folder` cannot be `{folder}`",
                code="option-value",
                why="it is a file, or a part of the path is" if is_file else error.strerror or str(error),
                fix="name a folder that you may write to, or leave it out to cache nothing",
            ) from None
    return path


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The cached bytes of an address, and version and size of the object that they were read from."""

    etag: str
    """The version: what the server calls so, or what else changes with the object; empty where nothing is known."""
    num_bytes: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cache:
    """At most `max_bytes` of objects in `folder`, shared by any number of processes on this machine; pickles.

    A process that is killed leaves nothing half written under a name that is read. While objects are being written the
    folder may be larger by one object for each writing process.
    """

    folder: Path
    max_bytes: int

    @classmethod
    def open(cls, folder: str, max_gb: float) -> Self:
        """The cache in `cache.folder`, which is made; ConfigError where nothing can be written there."""
        return cls(writable_folder(folder), int(max_gb * 1e9))

    def read(self, uri: str, etag: str | None = None) -> CacheEntry | None:
        """The cached version of `uri`, or just the version `etag`; None if it is not cached or damaged."""
        path = self._path(uri)
        try:
            with path.open("rb") as file:
                head = json.loads(file.readline())
                data = file.read()
                if zlib.crc32(data) != head["crc32"] or etag not in (None, head["etag"]):
                    return None
                os.utime(file.fileno())  # the time of last use, which decides what is evicted
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return CacheEntry(head["etag"], head["num_bytes"], data)

    def put(self, uri: str, kept: CacheEntry) -> None:
        """Store `kept` under `uri`, in place of an older version, and evict what was least recently used.

        An object larger than the cache is not stored, nor is anything where the disk is full. StorageError if the
        folder cannot be written.
        """
        head = {"etag": kept.etag, "num_bytes": kept.num_bytes, "crc32": zlib.crc32(kept.data)}
        line = json.dumps(head).encode() + b"\n"
        size = len(line) + len(kept.data)
        if size > self.max_bytes:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # not `atomic_file`: eviction recognises drafts by their prefix, in one listing
            descriptor, draft = tempfile.mkstemp(prefix=_DRAFT_PREFIX, dir=self.folder)
        except OSError as error:
            raise self._unwritable(error) from None
        with contextlib.suppress(OSError), os.fdopen(descriptor, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when this process ends, however it ends: then the file is stale
            file.write(line)
            file.write(kept.data)
            file.flush()
            with self._total() as total:
                total.add(size)  # before the file is there: a total too large is recounted, one too small never is
                Path(draft).rename(self._path(uri))
            return
        with contextlib.suppress(OSError):
            Path(draft).unlink()

    @contextlib.contextmanager
    def alone(self, uri: str) -> Iterator[None]:
        """One thread of all processes at a time fetches `uri`; a process that is killed does not block the others.

        StorageError if the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / f"{_LOCK}-{self._path(uri).name[:2]}").open("wb")
        except OSError as error:
            raise self._unwritable(error) from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _unwritable(self, error: OSError) -> StorageError:
        why, fix = error.strerror or str(error), "check `cache.folder` and its permissions"
        return StorageError(f"cannot write into the cache `{self.folder}`", code=system_code(error), why=why, fix=fix)

    def _path(self, uri: str) -> Path:
        return self.folder / hashlib.sha256(uri.encode()).hexdigest()[:32]

    @contextlib.contextmanager
    def _total(self) -> Iterator[_Total]:
        with os.fdopen(os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield _Total(self, file.fileno())


@dataclass(frozen=True, slots=True)
class _Total:
    """The size of the folder in bytes, never too small, stored in the lock file; its users hold the lock."""

    cache: Cache
    descriptor: int

    def add(self, num_bytes: int) -> None:
        """Add a file that is about to be written, after evicting others where the limit asks for it."""
        digits = os.pread(self.descriptor, 32, 0)
        total = int(digits) if digits.strip().isdigit() else self.cache.max_bytes  # not known: count
        if total + num_bytes > self.cache.max_bytes:
            total = self._evict(int(self.cache.max_bytes * (1 - _SPARE)) - num_bytes)
        os.pwrite(self.descriptor, f"{total + num_bytes:<31}\n".encode(), 0)

    def _evict(self, target_bytes: int) -> int:
        """Remove stale drafts, then the least recently used files down to `target_bytes`; return what is left."""
        files = []
        for entry in os.scandir(self.cache.folder):
            if entry.name.startswith(_DRAFT_PREFIX):
                _remove_stale(Path(entry.path))
            elif not entry.name.startswith(_LOCK) and entry.is_file():  # a folder is not of this cache
                stat = entry.stat()
                files.append((stat.st_mtime_ns, stat.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= max(target_bytes, 0):
                break
            Path(path).unlink(missing_ok=True)
            total -= size
        return total


def _remove_stale(path: Path) -> None:
    """Remove the draft of a process that died; a living one holds a lock on it."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
