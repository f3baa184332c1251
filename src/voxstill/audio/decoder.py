"""A file that crashes its decoder, hangs it or eats the memory costs that file alone, and is told so.

Decoders are C libraries fed with whatever was found: no exception can be caught from a segmentation fault or from a
loop that never ends. So they run in a child process, which has limits and may die.
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
from voxstill.errors import DataError, VoxstillError

ATTEMPTS = 2
"""A crash is tried once more in a fresh process: memory may have been short for another's sake."""
START_LIMIT_S = 60.0
_PR_SET_PDEATHSIG = 1


class Decoder:
    """`decode` as in `codec`, in a child process that is started when needed and ended by `close` or our own end.

    `limit_s` is the time that one recording may take, `limit_mb` the memory that the child may allocate.
    """

    def __init__(self, limit_s: float, limit_mb: int) -> None:
        self._limit_s, self._limit_mb = limit_s, limit_mb
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def decode(self, data: bytes, *, channel: int | None = None) -> codec.Audio:
        """What `codec.decode` answers or raises; DataError too where the child died, took too long or too much."""
        if (plain := codec.as_it_is(data, channel=channel)) is not None:
            return plain
        for _ in range(ATTEMPTS):
            end = self._socket or self._start()
            try:
                _send(end, _ASKED.pack(-1 if channel is None else channel, len(data)), data)
                told, samples_T = _receive_answer(end)
            except TimeoutError:
                self.close()
                raise DataError(
                    "decoding hung", why=f"no end within {self._limit_s:g} s", fix="remove the file, or repair it"
                ) from None
            except OSError:
                how = self._end()
                continue
            if isinstance(told, VoxstillError):
                raise told
            return codec.Audio(samples_T=samples_T, **told)
        raise DataError("decoding crashed", why=f"its process was {how}", fix="remove the file, or repair it")

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        code = f"from voxstill.audio import decoder; decoder.serve({theirs.fileno()}, {self._limit_mb}, {os.getpid()})"
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._socket = ours
        ours.settimeout(START_LIMIT_S)
        try:
            ready = ours.recv(1)
        except TimeoutError:
            ready = b""
        if not ready:
            self.close()
            raise VoxstillError("a decoder cannot start", why="its process ended", fix="see whether memory is short")
        ours.settimeout(self._limit_s)
        return ours

    def _end(self) -> str:
        """Take leave of a child that is ending; how it ended."""
        assert self._child is not None
        assert self._socket is not None
        self._socket.close()
        code = self._child.wait()  # its socket is closed, so it does not live on
        self._child = self._socket = None
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def serve(handle: int, limit_mb: int, parent: int) -> None:
    """The child: decodes what comes in until nobody is there to ask."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also in the middle of a loop that never ends
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import av  # noqa: F401  # before the limit: a library takes what it needs

    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + limit_mb * 2**20,) * 2)
    end = socket.socket(fileno=handle)
    end.sendall(b"!")
    while True:
        try:
            channel, num_bytes = _ASKED.unpack(_receive(end, _ASKED.size))
            data = bytes(_receive(end, num_bytes))
        except ConnectionError:
            return
        told, samples_T = _decoded(data, None if channel < 0 else channel, limit_mb)
        del data
        meta = pickle.dumps(told)
        _send(end, _ANSWERED.pack(len(meta), samples_T.nbytes) + meta, samples_T.data)


def _decoded(data: bytes, channel: int | None, limit_mb: int) -> tuple[Any, NDArray[np.int16]]:
    try:
        audio = codec.decode(data, channel=channel)
    except VoxstillError as error:
        return error, _NOTHING
    except MemoryError:
        return DataError("decoding needs too much memory", why=f"more than {limit_mb} MB", fix="split it"), _NOTHING
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return DataError("cannot be decoded", why=why, fix="remove the file, or repair it"), _NOTHING
    about = {"codec": audio.codec, "rate_hz": audio.rate_hz, "num_channels": audio.num_channels}
    return about, np.ascontiguousarray(audio.samples_T)


_ASKED = struct.Struct("<qq")  # channel or -1, bytes of the file
_ANSWERED = struct.Struct("<qq")  # bytes of the pickle that says what came out, bytes of samples
_NOTHING = np.zeros(0, np.int16)


def _send(end: socket.socket, *parts: Any) -> None:
    sent = end.sendmsg(parts)
    for part in parts:  # a large one does not go at once
        if sent < len(part):
            end.sendall(memoryview(part)[sent:])
        sent = max(0, sent - len(part))


def _receive(end: socket.socket, num_bytes: int) -> bytearray:
    taken = bytearray(num_bytes)
    _fill(end, memoryview(taken))
    return taken


def _receive_answer(end: socket.socket) -> tuple[Any, NDArray[np.int16]]:
    num_meta, num_bytes = _ANSWERED.unpack(_receive(end, _ANSWERED.size))
    told = pickle.loads(_receive(end, num_meta))
    samples_T = np.empty(num_bytes // 2, np.int16)
    _fill(end, samples_T.data.cast("B"))
    return told, samples_T


def _fill(end: socket.socket, into: memoryview) -> None:
    at = 0
    while at < len(into):
        taken = end.recv_into(into[at:])
        if not taken:
            raise ConnectionError
        at += taken
