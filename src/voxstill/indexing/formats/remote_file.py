"""Manifests as open files, on this machine or far away."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

from voxstill.core.errors import DataError, StorageError
from voxstill.storage.cache import Cache
from voxstill.storage.fetch import fetch
from voxstill.storage.files import open_file
from voxstill.storage.redaction import redact_uri
from voxstill.storage.uri import is_local, local_path

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_LINE_BYTES = 16 << 20
"""No line of a manifest is longer."""
_BUFFER_BYTES = 1 << 20
"""Fetched at a time of a manifest far away: of a tar, small files in one go and large ones without their middle."""


@contextmanager
def open_manifest(uri: str, cache: Cache | None = None) -> Iterator[BinaryIO]:
    """Open a manifest or tar for reading, a remote one through the cache; DataError if it cannot be read."""
    try:
        if is_local(uri):
            with io.BufferedReader(open_file(local_path(uri).expanduser())) as file:
                yield cast(BinaryIO, file)
        else:
            with io.BufferedReader(RemoteFile(uri, cache), _BUFFER_BYTES) as remote:
                yield cast(BinaryIO, remote)
    except StorageError as error:
        raise DataError(
            f"cannot read the manifest `{redact_uri(uri)}`", code=error.code, why=error.why, fix="check `source.uri`"
        ) from None
    except OSError as error:
        why = "it does not exist" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise DataError(
            f"cannot read the manifest `{redact_uri(uri)}`", code="no-source", why=why, fix="check `source.uri`"
        ) from None


def read_lines(file: BinaryIO, name: str, start: int = 1) -> Iterator[tuple[int, bytes]]:
    """Each line with its number, which begins at `start`; DataError for one that is too long to be of a manifest."""
    number = start
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise DataError(
                f"{name}:{number} is not a line of a manifest",
                code="bad-line",
                why=f"it is longer than {MAX_LINE_BYTES >> 20} MiB",
                fix="check that the file is a manifest",
            )
        yield number, line
        number += 1


class RemoteFile(io.RawIOBase):
    """A seekable file over an object far away: each read is one range request, or one of all where no server can."""

    def __init__(self, uri: str, cache: Cache | None = None) -> None:
        self._data: bytes | None = None
        try:
            first = fetch(f"{uri}#0+1", cache)
        except StorageError as error:
            if "range request" not in error.why.lower():
                raise
            first = fetch(uri, cache)
            self._data = first.data
        self.etag = first.etag
        self._uri, self._cache, self._num_bytes, self._position = uri, cache, first.num_bytes, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, as in any file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._num_bytes}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read from the position on, as in any file."""
        view = memoryview(buffer).cast("B")
        start, length = self._position, max(0, min(len(view), self._num_bytes - self._position))
        if length:
            if self._data is None:
                data = fetch(f"{self._uri}#{start}+{length}", self._cache).data
            else:
                data = self._data[start : start + length]
            length = len(data)
            view[:length] = data
            self._position += length
        return length
