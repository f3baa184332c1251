"""Decode audio in a child process with time and memory limits: a file that crashes, hangs or fills it is one error.

Decoders are C libraries that are given untrusted files: no exception can be caught from a segmentation fault or from an
endless loop, so they run in a process that may die.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.audio.level import Gain
from voxstill.core.errors import DataError, VoxstillError

ATTEMPTS = 2
"""A crash is retried once in a fresh process: another process may have used up the memory."""
START_LIMIT_S = 60.0
_PR_SET_PDEATHSIG = 1


class Decoder:
    """`codec.decode` in a child process, started when needed and ended by `close` or with the parent.

    `limit_s` is the time that one recording may take, `limit_mb` the memory that the child may allocate.
    """

    def __init__(self, limit_s: float, limit_mb: int) -> None:
        self._limit_s, self._limit_mb = limit_s, limit_mb
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def decode(self, data: bytes, *, channel: int | None = None, gain: Gain = "none") -> codec.Audio:
        """Decode as `codec.decode`; DataError also where the child crashed, timed out or ran out of memory."""
        if (plain := codec.read_plain_wav(data, channel=channel)) is not None:
            return codec.amplified(plain, gain)
        target, in_db = (gain, 0.0) if isinstance(gain, str) else ("", gain)
        request = _REQUEST.pack(-1 if channel is None else channel, target.encode(), in_db, len(data))
        for _ in range(ATTEMPTS):
            connection = self._socket or self._start()
            try:
                _send(connection, request, data)
                result, samples_T = _receive_response(connection)
            except TimeoutError:
                self.close()
                raise DataError(
                    "decoding hung", why=f"no end within {self._limit_s:g} s", fix="remove the file, or repair it"
                ) from None
            except OSError:
                cause = self._end()
                continue
            if isinstance(result, VoxstillError):
                raise result
            return codec.Audio(samples_T=samples_T, **result)
        raise DataError("decoding crashed", why=f"its process was {cause}", fix="remove the file, or repair it")

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.kill()
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> socket.socket:
        parent_socket, child_socket = socket.socketpair()
        arguments = f"{child_socket.fileno()}, {self._limit_mb}, {os.getpid()}"
        code = f"from voxstill.audio import decoder; decoder.serve({arguments})"
        with child_socket:
            self._child = subprocess.Popen(
                [sys.executable, "-c", code], pass_fds=[child_socket.fileno()], stdin=subprocess.DEVNULL
            )
        self._socket = parent_socket
        parent_socket.settimeout(START_LIMIT_S)
        try:
            ready = parent_socket.recv(1)
        except TimeoutError:
            ready = b""
        if not ready:
            self.close()
            raise VoxstillError("a decoder cannot start", why="its process ended", fix="see whether memory is short")
        parent_socket.settimeout(self._limit_s)
        return parent_socket

    def _end(self) -> str:
        """Wait for a child that is ending; returns how it ended."""
        assert self._child is not None
        assert self._socket is not None
        self._socket.close()
        code = self._child.wait()  # its socket is closed, so it does not live on
        self._child = self._socket = None
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def serve(handle: int, limit_mb: int, parent: int) -> None:
    """Main loop of the child process: decode each request until the parent closes the socket."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also in the middle of an endless loop
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import av  # noqa: F401  # before the limit, which is for decoding alone

    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + limit_mb * 2**20,) * 2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # what C libraries write of a bad file; its error says what is wrong
    connection = socket.socket(fileno=handle)
    connection.sendall(b"!")
    while True:
        try:
            channel, target, in_db, num_bytes = _REQUEST.unpack(_receive(connection, _REQUEST.size))
            gain = target.rstrip(b"\0").decode() or in_db
            data = bytes(_receive(connection, num_bytes))
        except ConnectionError:
            return
        result, samples_T = _decoded(data, None if channel < 0 else channel, gain, limit_mb)
        del data
        meta = pickle.dumps(result)
        _send(connection, _RESPONSE.pack(len(meta), samples_T.nbytes) + meta, samples_T.view(np.uint8).data)


def _decoded(data: bytes, channel: int | None, gain: Gain, limit_mb: int) -> tuple[Any, NDArray[np.int16]]:
    try:
        audio = codec.decode(data, channel=channel, gain=gain)
    except VoxstillError as error:
        return error, _NO_SAMPLES
    except MemoryError:
        return DataError("decoding needs too much memory", why=f"more than {limit_mb} MB", fix="split it"), _NO_SAMPLES
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return DataError("cannot be decoded", why=why, fix="remove the file, or repair it"), _NO_SAMPLES
    # a mapping, which is pickled in a fifth of the time that the dataclass takes
    metadata = {
        "codec": audio.codec,
        "rate_hz": audio.rate_hz,
        "num_channels": audio.num_channels,
        "file_level": audio.file_level,
        "gain_db": audio.gain_db,
        "louder_channel": audio.louder_channel,
    }
    return metadata, np.ascontiguousarray(audio.samples_T)


_REQUEST = struct.Struct("<q8sdq")  # channel or -1, normalization or nothing, gain in dB then, bytes of the file
_RESPONSE = struct.Struct("<qq")  # bytes of the pickled metadata or error, bytes of samples
_NO_SAMPLES = np.zeros(0, np.int16)


def _send(connection: socket.socket, *parts: bytes | memoryview) -> None:
    sent = connection.sendmsg(parts)
    for part in parts:  # sendmsg may send a part only
        if sent < len(part):
            connection.sendall(memoryview(part)[sent:])
        sent = max(0, sent - len(part))


def _receive(connection: socket.socket, num_bytes: int) -> bytearray:
    received = bytearray(num_bytes)
    _fill(connection, memoryview(received))
    return received


def _receive_response(connection: socket.socket) -> tuple[Any, NDArray[np.int16]]:
    num_meta, num_bytes = _RESPONSE.unpack(_receive(connection, _RESPONSE.size))
    result = pickle.loads(_receive(connection, num_meta))
    samples_T = np.empty(num_bytes // 2, np.int16)
    _fill(connection, samples_T.data.cast("B"))
    return result, samples_T


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    num_received = 0
    while num_received < len(buffer):
        num_new = connection.recv_into(buffer[num_received:])
        if not num_new:
            raise ConnectionError
        num_received += num_new
