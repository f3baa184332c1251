"""Decode audio in a child process with time and memory limits: a file that crashes, hangs or fills it is one error.

Decoders are C libraries that read untrusted files: no exception can be caught from a segmentation fault or from an
endless loop, so they run in a process that may die, and that can do nothing but decode (`audio/sandbox.py`). What it
answers is not trusted either: JSON of known keys, and no more samples than a recording may have.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
import soundfile
from numpy.typing import NDArray

from voxstill.audio import codec, sandbox
from voxstill.audio.level import Gain, Level
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.records import RATE_HZ

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
        """Decode as `codec.decode`; DataError also where the child crashed, timed out or ran out of memory.

        The samples of a plain WAV are those in `data`, and cannot be written to.
        """
        if (plain := codec.read_plain_wav(data, channel=channel, copy=False)) is not None:
            return codec.amplified(plain, gain)
        target, in_db = (gain, 0.0) if isinstance(gain, str) else ("", gain)
        request = _REQUEST.pack(-1 if channel is None else channel, target.encode(), in_db, len(data))
        for _ in range(ATTEMPTS):
            connection = self._socket or self._start()
            try:
                _send(connection, request, data)
                return _receive_response(connection)
            except TimeoutError:
                self.close()
                raise DataError(
                    "decoding hung", why=f"no end within {self._limit_s:g} s", fix="remove the file, or repair it"
                ) from None
            except OSError:
                cause = self._end()
            except _ProtocolError:
                self.close()
                cause = "answering nonsense, and ended"
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
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group: the parent handles them
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(os.devnull, "r+b") as nowhere:
        for standard in (1, 2):
            os.dup2(nowhere.fileno(), standard)  # what C libraries write of a bad file; its error says what is wrong
    _warm_up()  # before the limits, which are for decoding alone
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + limit_mb * 2**20,) * 2)
    connection = socket.socket(fileno=handle)
    sandbox.confine()
    connection.sendall(b"!")
    while True:
        try:
            channel, target, in_db, num_bytes = _REQUEST.unpack(_receive(connection, _REQUEST.size))
            gain = target.rstrip(b"\0").decode() or in_db
            data = bytes(_receive(connection, num_bytes))
        except ConnectionError:
            return
        answer, samples_T = _decoded(data, None if channel < 0 else channel, gain, limit_mb)
        del data
        answer_bytes = json.dumps(answer).encode()
        header = _RESPONSE.pack(len(answer_bytes), samples_T.nbytes)
        _send(connection, header + answer_bytes, samples_T.view(np.uint8).data)


def _warm_up() -> None:
    """Load what decoding loads when it is first needed: files cannot be opened later."""
    for form in ("WAV", "AU"):
        sink = io.BytesIO()
        soundfile.write(sink, np.arange(800, dtype=np.int16), 8000, format=form)
        codec.decode(sink.getvalue(), gain="loudness")
    with contextlib.suppress(DataError):
        codec.decode(b"no audio")


def _decoded(
    data: bytes, channel: int | None, gain: Gain, limit_mb: int
) -> tuple[Mapping[str, object], NDArray[np.int16]]:
    """What is answered: `error` with its kind and words, or all of `codec.Audio` but its samples; and the samples."""
    try:
        audio = codec.decode(data, channel=channel, gain=gain)
    except VoxstillError as error:
        return _error(error), _NO_SAMPLES
    except MemoryError:
        why = f"more than {limit_mb} MB"
        return _error(DataError("decoding needs too much memory", why=why, fix="split it")), _NO_SAMPLES
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return _error(DataError("cannot be decoded", why=why, fix="remove the file, or repair it")), _NO_SAMPLES
    metadata = {name: getattr(audio, name) for name in _METADATA}
    return metadata, np.ascontiguousarray(audio.samples_T)


def _error(error: VoxstillError) -> Mapping[str, object]:
    return {"error": [type(error).__name__, error.what, error.why, error.fix]}


_REQUEST = struct.Struct("<q8sdq")  # channel or -1, normalization or nothing, gain in dB then, bytes of the file
_RESPONSE = struct.Struct("<qq")  # bytes of the metadata or error as JSON, bytes of samples
_MAX_ANSWER = 1 << 20
_METADATA = ("codec", "rate_hz", "num_channels", "file_level", "gain_db", "louder_channel")
_ERRORS = {kind.__name__: kind for kind in (VoxstillError, DataError, codec.SilentError)}
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


def _receive_response(connection: socket.socket) -> codec.Audio:
    """The audio of an answer; raises its error, and _ProtocolError where it is no answer of the child's code."""
    num_meta, num_bytes = _RESPONSE.unpack(_receive(connection, _RESPONSE.size))
    if not (0 < num_meta <= _MAX_ANSWER and 0 <= num_bytes <= 2 * codec.MAX_S * RATE_HZ and num_bytes % 2 == 0):
        raise _ProtocolError
    meta = _receive(connection, num_meta)
    samples_T = np.empty(num_bytes // 2, np.int16)
    _fill(connection, samples_T.data.cast("B"))
    try:
        answer = json.loads(meta)
        if "error" in answer:
            kind, what, why, fix = answer["error"]
            error = _ERRORS[kind](str(what), why=str(why), fix=str(fix))
        else:
            level = answer.pop("file_level")
            return codec.Audio(samples_T=samples_T, file_level=level and Level(*level), **answer)
    except (ValueError, KeyError, TypeError):
        raise _ProtocolError from None
    raise error


class _ProtocolError(Exception):
    """What the child sends is not what its code sends."""


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    num_received = 0
    while num_received < len(buffer):
        num_new = connection.recv_into(buffer[num_received:])
        if not num_new:
            raise ConnectionError
        num_received += num_new
