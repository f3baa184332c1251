"""The bytes of a file, in memory or read where they are sliced."""

from __future__ import annotations

import io
from typing import Protocol, cast

_BUFFER_BYTES = 1 << 18


class ByteSource(Protocol):
    """What is read of a file: its length and any slice of it, as `bytes` has them."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


def as_file(source: ByteSource, head: bytes = b"") -> io.BufferedIOBase:
    """The source as an open file, whose first bytes are replaced by `head`."""
    if isinstance(source, bytes):
        return io.BytesIO(head + source[len(head) :] if head else source)
    return io.BufferedReader(cast(io.RawIOBase, _SourceFile(source, head)), _BUFFER_BYTES)


class _SourceFile(io.RawIOBase):
    def __init__(self, source: ByteSource, head: bytes) -> None:
        self._source, self._head, self._position = source, head, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._source)}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        data = self._source[self._position : self._position + len(buffer)]
        if self._position < len(self._head):
            data = self._head[self._position : self._position + len(data)] + data[len(self._head) - self._position :]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
