"""Decode audio in a child process with time and memory limits: a file that crashes, hangs or fills it is one error.

Decoders are C libraries that read untrusted files: no exception can be caught from a segmentation fault or from an
endless loop, so they run in a process that may die, and that can do nothing but decode (`audio/sandbox.py`). What it
answers is not trusted either: JSON of known keys, and no more samples than a recording may have.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import soundfile
from numpy.typing import NDArray

from voxstill.audio import answered_error, codec, sandbox, seeking
from voxstill.audio.byte_source import ByteSource
from voxstill.audio.connection import fill, receive, send
from voxstill.audio.level import Gain, Level
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.records import RATE_HZ

_Answer = TypeVar("_Answer")
_DecodeBlocks = Callable[[ByteSource, codec.Sink], DataError | None]
ATTEMPTS = 2
"""A crash is retried once in a fresh process: another process may have used up the memory."""
START_LIMIT_S = 60.0
_READY = b"!"
_REASON_BYTES = 2000
_PR_SET_PDEATHSIG = 1


class Decoder:
    """`codec.decode` in a child process, started when needed or by `start`, and ended by `close` or with the parent.

    `limit_s` is the time that one recording may take, `limit_mb` the memory that the child may allocate.
    """

    def __init__(self, limit_s: float, limit_mb: int) -> None:
        self._limit_s, self._limit_mb = limit_s, limit_mb
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._is_ready = self._is_interrupted = False

    def decode(self, data: bytes, *, channel: int | None = None, gain: Gain = "none") -> codec.Audio:
        """Decode as `codec.decode`; DataError also where the child crashed, timed out or ran out of memory.

        The samples of a plain WAV are those in `data`, and cannot be written to.
        """
        if (plain := codec.read_plain_wav(data, channel=channel, copy=False)) is not None:
            return codec.amplified(plain, gain)
        target, in_db = (gain, 0.0) if isinstance(gain, str) else ("", gain)
        request = _REQUEST.pack(_WHOLE, -1 if channel is None else channel, target.encode(), in_db, len(data))

        def exchange(connection: socket.socket) -> codec.Audio:
            send(connection, request, data)
            return _receive_response(connection)

        return self._attempt(exchange)

    def decode_blocks(self, data: ByteSource, sink: codec.Sink, *, as_float: bool = False) -> DataError | None:
        """Decode as `codec.decode_blocks`; DataError also where the child crashed, timed out or ran out of memory.

        The child asks for the bytes that it needs, so that neither it nor this process holds the file.
        """
        request = _REQUEST.pack(_BLOCKS, -1, b"", float(as_float), len(data))
        return self._exchange_blocks(request, data, sink, as_float=as_float)

    def decode_stretch(
        self, data: ByteSource, stretch: seeking.Stretch, *, channel: int | None = None, gain_db: float = 0.0
    ) -> NDArray[np.int16]:
        """Decode as `seeking.decode_stretch`; DataError also as above."""
        request = _REQUEST.pack(_STRETCH, -1 if channel is None else channel, stretch.pack(), gain_db, len(data))
        sink = seeking.Collected()
        self._exchange_blocks(request, data, sink, as_float=False)
        return sink.samples()

    def _exchange_blocks(
        self, request: bytes, data: ByteSource, sink: codec.Sink, *, as_float: bool
    ) -> DataError | None:
        """Send a request, answer what the child asks for, and give its samples to the sink; returns a fault."""

        def exchange(connection: socket.socket) -> _BlocksEnd:
            send(connection, request)
            try:
                end = _receive_blocks(connection, data, sink, as_float, time.monotonic() + self._limit_s)
            except (VoxstillError, KeyboardInterrupt):  # of the file or the sink: the child waits for an answer
                self.close()
                raise
            connection.settimeout(self._limit_s)
            return end

        error, fault = self._attempt(exchange)
        if error is not None:
            raise error
        return fault

    def _attempt(self, exchange: Callable[[socket.socket], _Answer]) -> _Answer:
        """What the child answers; a crash is retried in a fresh one."""
        self._is_interrupted = False
        for _ in range(ATTEMPTS):
            connection = self._connected()
            try:
                return exchange(connection)
            except TimeoutError:
                self.close()
                raise answered_error.unanswered("hung", f"no end within {self._limit_s:g} s") from None
            except OSError:
                cause = self._end()
                if self._is_interrupted:
                    break
            except _ProtocolError:
                self.close()
                cause = "gave an invalid answer and was stopped"
        raise answered_error.unanswered("crashed", f"its process was {cause}")

    def start(self) -> None:
        """Start the child process where none runs, without waiting for it: it gets ready beside other work."""
        if self._child is not None:
            if self._child.poll() is None:
                return
            self._end()  # it ended with the thread that started it
        parent_socket, child_socket = socket.socketpair()
        handle = child_socket.fileno()
        code = f"from voxstill.audio import decoder; decoder.serve({handle}, {self._limit_mb}, {os.getpid()})"
        with child_socket:
            self._child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[handle], stdin=subprocess.DEVNULL)
        self._socket = parent_socket

    def interrupt(self) -> None:
        """End what another thread decodes: there it is a DataError, and is not tried again."""
        self._is_interrupted = True
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.kill()
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connected(self) -> socket.socket:
        """The socket of a child process that is ready."""
        self.start()
        assert self._socket is not None
        if not self._is_ready:
            self._socket.settimeout(START_LIMIT_S)
            answer = b""
            with contextlib.suppress(TimeoutError):
                answer = self._socket.recv(_REASON_BYTES)
            self._is_ready = answer == _READY
            if not self._is_ready:
                self.close()
                why, fix = answer.decode(errors="replace"), "reinstall voxstill with its dependencies"
                if not why:
                    why, fix = "its process ended", "check the free memory"
                raise VoxstillError("the decoder process cannot start", code="worker-cannot-start", why=why, fix=fix)
        self._socket.settimeout(self._limit_s)
        return self._socket

    def _end(self) -> str:
        """Wait for a child that is ending; returns how it ended."""
        assert self._child is not None
        assert self._socket is not None
        self._socket.close()
        code = self._child.wait()  # its socket is closed, so it does not live on
        self._child, self._socket, self._is_ready = None, None, False
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
    connection = socket.socket(fileno=handle)
    try:
        _warm_up()  # before the limits, which are for decoding alone
    except Exception as error:  # a library is missing or broken
        connection.sendall(f"{type(error).__name__}: {error}".encode()[:_REASON_BYTES])
        return
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + limit_mb * 2**20,) * 2)
    sandbox.confine()
    connection.sendall(_READY)
    while True:
        try:
            kind, channel, target, in_db, num_bytes = _REQUEST.unpack(receive(connection, _REQUEST.size))
            if kind == _BLOCKS:
                decode = functools.partial(codec.decode_blocks, as_float=bool(in_db))
                _serve_blocks(connection, num_bytes, decode, limit_mb)
                continue
            if kind == _STRETCH:
                stretch = seeking.Stretch.unpack(target), None if channel < 0 else channel, in_db
                _serve_blocks(connection, num_bytes, functools.partial(seeking.write_stretch, *stretch), limit_mb)
                continue
            gain = target.rstrip(b"\0").decode() or in_db
            data = bytes(receive(connection, num_bytes))
        except ConnectionError:
            return
        answer, samples_T = _decoded(data, None if channel < 0 else channel, gain, limit_mb)
        del data
        answer_bytes = json.dumps(answer).encode()
        header = _RESPONSE.pack(len(answer_bytes), samples_T.nbytes)
        send(connection, header + answer_bytes, samples_T.view(np.uint8).data)


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
    except ConnectionError:
        raise
    except Exception as error:
        return answered_error.packed(answered_error.of(error, limit_mb)), _NO_SAMPLES
    metadata = {name: getattr(audio, name) for name in _METADATA}
    return metadata, np.ascontiguousarray(audio.samples_T)


# ------------------------------------------------------------------------------------------------- in blocks


class _ParentBytes:
    """The bytes of a file as the child asks its parent for them; the last piece is kept."""

    def __init__(self, connection: socket.socket, num_bytes: int) -> None:
        self._connection, self._num_bytes = connection, num_bytes
        self._start, self._piece = 0, b""

    def __len__(self) -> int:
        return self._num_bytes

    def __getitem__(self, part: slice, /) -> bytes:
        start, end, _ = part.indices(self._num_bytes)
        if start >= end:
            return b""
        if end - start > _PIECE_BYTES:
            return b"".join(self[at : min(at + _PIECE_BYTES, end)] for at in range(start, end, _PIECE_BYTES))
        if not self._start <= start <= end <= self._start + len(self._piece):
            num_bytes = min(_PIECE_BYTES, self._num_bytes - start)
            send(self._connection, _MESSAGE.pack(_READ, start, num_bytes))
            self._start, self._piece = start, bytes(receive(self._connection, num_bytes))
        return self._piece[start - self._start : end - self._start]


class _ParentSink:
    """Samples as the child sends them to its parent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, samples_T: NDArray[Any]) -> None:
        if len(samples_T):
            contiguous_T = np.ascontiguousarray(samples_T)
            send(self._connection, _MESSAGE.pack(_WRITE, 0, contiguous_T.nbytes), contiguous_T.view(np.uint8).data)

    def clear(self) -> None:
        send(self._connection, _MESSAGE.pack(_CLEAR, 0, 0))


def _serve_blocks(connection: socket.socket, num_bytes: int, decode: _DecodeBlocks, limit_mb: int) -> None:
    """Decode one file in the child, and send its samples and at the end its error or fault."""
    try:
        fault = decode(_ParentBytes(connection, num_bytes), _ParentSink(connection))
        answer = {"fault": answered_error.packed(fault)["error"]} if fault is not None else {}
    except ConnectionError:
        raise
    except Exception as error:
        answer = dict(answered_error.packed(answered_error.of(error, limit_mb)))
    answer_bytes = json.dumps(answer).encode()
    send(connection, _MESSAGE.pack(_END, 0, len(answer_bytes)), answer_bytes)


def _receive_blocks(
    connection: socket.socket, data: ByteSource, sink: codec.Sink, as_float: bool, deadline: float
) -> _BlocksEnd:
    """Answer what the child asks for until it ends."""
    kind = np.dtype(np.float32 if as_float else np.int16)
    num_clears = num_samples = 0
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        message, start, num_bytes = _MESSAGE.unpack(receive(connection, _MESSAGE.size))
        if message == _READ and start >= 0 and 0 < num_bytes <= _PIECE_BYTES and start + num_bytes <= len(data):
            piece = data[start : start + num_bytes]
            send(connection, piece + bytes(num_bytes - len(piece)))  # a file may become shorter while it is read
        elif message == _WRITE and 0 < num_bytes <= _MAX_BLOCK and num_bytes % kind.itemsize == 0:
            num_samples += num_bytes // kind.itemsize
            if num_samples > codec.MAX_S * RATE_HZ:
                raise _ProtocolError
            sink.write(np.frombuffer(receive(connection, num_bytes), kind))
        elif message == _CLEAR and num_clears < _MAX_CLEARS:
            num_clears, num_samples = num_clears + 1, 0
            sink.clear()
        elif message == _END and 0 < num_bytes <= _MAX_ANSWER:
            return _blocks_end(receive(connection, num_bytes))
        else:
            raise _ProtocolError


def _blocks_end(answer_bytes: bytearray) -> _BlocksEnd:
    """What is in the last answer of the child."""
    try:
        answer = json.loads(answer_bytes)
        error, fault = (
            answered_error.unpacked(answer[role]) if role in answer else None for role in ("error", "fault")
        )
    except (ValueError, KeyError, TypeError):
        raise _ProtocolError from None
    return _BlocksEnd(error, fault if isinstance(fault, DataError) else None)


class _BlocksEnd(NamedTuple):
    """How decoding in blocks ended: with the error of a file without samples, or the fault of one with some."""

    error: VoxstillError | None
    fault: DataError | None


_WHOLE, _BLOCKS, _STRETCH = b"W", b"B", b"S"
_REQUEST = struct.Struct("<cq8sdq")
"""Whole, in blocks or a stretch; channel or -1; normalization, a packed stretch or nothing; gain in dB, or whether
blocks are float; bytes of the file."""
_MESSAGE = struct.Struct("<cqq")
"""In blocks: what it is, the first byte, how many bytes; those of samples and of the end follow."""
_READ, _WRITE, _CLEAR, _END = b"R", b"W", b"C", b"E"
_PIECE_BYTES = 1 << 20
_MAX_BLOCK = 1 << 28
_MAX_CLEARS = 8
_RESPONSE = struct.Struct("<qq")  # bytes of the metadata or error as JSON, bytes of samples
_MAX_ANSWER = 1 << 20
_METADATA = ("codec", "rate_hz", "num_channels", "file_level", "gain_db", "louder_channel")
_NO_SAMPLES = np.zeros(0, np.int16)


def _receive_response(connection: socket.socket) -> codec.Audio:
    """The audio of an answer; raises its error, and _ProtocolError where it is not an answer of the child's code."""
    num_meta, num_bytes = _RESPONSE.unpack(receive(connection, _RESPONSE.size))
    if not (0 < num_meta <= _MAX_ANSWER and 0 <= num_bytes <= 2 * codec.MAX_S * RATE_HZ and num_bytes % 2 == 0):
        raise _ProtocolError
    meta = receive(connection, num_meta)
    samples_T = np.empty(num_bytes // 2, np.int16)
    fill(connection, samples_T.data.cast("B"))
    try:
        answer = json.loads(meta)
        if "error" in answer:
            error = answered_error.unpacked(answer["error"])
        else:
            level = answer.pop("file_level")
            return codec.Audio(samples_T=samples_T, file_level=level and Level(*level), **answer)
    except (ValueError, KeyError, TypeError):
        raise _ProtocolError from None
    raise error


class _ProtocolError(Exception):
    """What the child sends is not what its code sends."""
