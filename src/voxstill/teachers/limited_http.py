"""Connections on which an answer ends in time and in size, whatever the server sends: 1xx, headers and body together.

The timeout of a socket is that of one read, so a server that sends a byte a second is never late. Here it is the time
for all of an answer.
"""

from __future__ import annotations

import io
import socket
import time
from http.client import HTTPResponse
from typing import TYPE_CHECKING

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_BYTES = 16 << 20
"""Of an answer with everything before it: that of a clip with all its words and tokens has some 100 kB."""


class AnswerTooLargeError(Exception):
    """An answer is larger than `MAX_BYTES`; not an error of HTTP, so that it is not retried."""


class _LimitedBytes(io.RawIOBase):
    """What a socket receives until its timeout is over, and `MAX_BYTES` of it at most."""

    def __init__(self, connection: socket.socket, raw: io.RawIOBase) -> None:
        self._connection, self._raw, self._left = connection, raw, MAX_BYTES
        timeout_s = connection.gettimeout()
        self._end_s = None if timeout_s is None else time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        if self._end_s is not None:
            left_s = self._end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._connection.settimeout(left_s)
        num = self._raw.readinto(buffer)
        self._left -= num or 0
        if self._left < 0:
            raise AnswerTooLargeError
        return num

    def close(self) -> None:
        self._raw.close()
        super().close()


class _LimitedReader(io.BufferedReader):
    """Makes no room for what a header only announces."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_BYTES:
            raise AnswerTooLargeError
        return super().read(size)


class _LimitedResponse(HTTPResponse):
    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.fp = _LimitedReader(_LimitedBytes(sock, self.fp.detach()))


class _LimitedHTTP(HTTPConnection):
    response_class = _LimitedResponse


class _LimitedHTTPS(HTTPSConnection):
    response_class = _LimitedResponse


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _LimitedHTTP


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _LimitedHTTPS


def limited(manager: PoolManager) -> PoolManager:
    """A manager, or one of a proxy, all of whose answers are limited."""
    manager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}
    return manager
