"""Clients of the metrics of a job cost it neither threads without end nor tracebacks."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from voxstill.core.config import Monitor
from voxstill.core.metrics import endpoint
from voxstill.core.metrics.registry import Metrics
from waiting import until


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(endpoint, "MOST_CLIENTS", 4)
    monkeypatch.setattr(endpoint._Handler, "timeout", 1.0)
    return endpoint.Endpoint(Monitor(port=0), Metrics()).port


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        yield client


def answer(port: int) -> bytes:
    with connected(port) as client, contextlib.suppress(ConnectionError):
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        return b"".join(iter(lambda: client.recv(1 << 16), b""))
    return b""


def test_clients_that_say_nothing_are_few_and_are_left(port: int) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(port)) for _ in range(24)]
        for client in clients:
            with contextlib.suppress(ConnectionError):  # a reset, where it is left while it sends
                client.sendall(b"GET /met")
                assert client.recv(1) == b""
        until(lambda: threading.active_count() <= before)
        until(lambda: b"200 OK" in answer(port))


def test_a_client_that_leaves_shows_no_traceback(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    for request in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n", bytes(100) + b"\r\n\r\n"):
        with connected(port) as client:
            client.sendall(request)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close is a reset
    until(lambda: b"200 OK" in answer(port))
    assert "Traceback" not in capfd.readouterr().err
