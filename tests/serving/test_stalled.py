"""Clients that send nothing, or hardly anything, hold no connection for long; slow ones are served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from serving_process import API_KEY, ServerProcess, command_with_small_limits, serving, wav_of
from small_students import write_whisper
from voxstill.serving import receiving
from voxstill.serving.errors import RequestError
from waiting import until

PATH = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def server(whisper: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for which 2 s are what 30 s are for others."""
    with serving(tmp_path_factory.mktemp("server"), [f"a={whisper}"], command=command_with_small_limits) as process:
        yield process


def form() -> bytes:
    """The body of an upload."""
    fields = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n'
    file = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + wav_of()
    return fields + file + b"\r\n--x--\r\n"


def upload(server: ServerProcess, num_bytes: int) -> socket.socket:
    """An upload of so many bytes, of which the head is sent."""
    address = urlsplit(server.url)
    client = socket.create_connection((address.hostname, address.port), timeout=60)
    head = f"POST {PATH} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {API_KEY}\r\n"
    head += f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {num_bytes}\r\n\r\n"
    client.sendall(head.encode())
    return client


def answer(client: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while block := client.recv(1 << 16):
            content += block
    return content


def is_healthy(server: ServerProcess) -> bool:
    with contextlib.suppress(OSError):
        return server.get("/health")[0] == 200
    return False


def test_stalled_uploads_are_given_up_and_the_log_says_that_there_were_too_many(server: ServerProcess) -> None:
    clients = []
    for _ in range(220):
        with contextlib.suppress(OSError):
            clients.append(upload(server, 1000))
            clients[-1].sendall(b"--x\r\n")
    until(lambda: "no file descriptor is left for connections" in server.log.read_text(), 30)
    until(lambda: is_healthy(server), 60)
    until(lambda: "the server takes connections again" in server.log.read_text(), 30)
    answers = [answer(client) for client in clients]
    assert sum(content.startswith(b"HTTP/1.1 408") for content in answers) > 100
    assert "Traceback" not in server.log.read_text()
    for client in clients:
        client.close()


def test_a_slow_upload_that_goes_on_is_transcribed(server: ServerProcess) -> None:
    body = form()
    start_s = time.monotonic()
    with upload(server, len(body)) as client:
        for start in range(0, len(body), len(body) // 10):
            client.sendall(body[start : start + len(body) // 10])
            time.sleep(0.3)
        assert time.monotonic() - start_s > 2.0
        status = client.recv(1 << 16)
    assert status.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("begin", [b"", b"POST /v1/audio"])
def test_a_connection_without_a_request_is_closed(server: ServerProcess, begin: bytes) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as client:
        client.sendall(begin)
        assert answer(client) == b""


def test_uploads_that_have_not_ended_when_the_server_does_cost_no_traceback(whisper: Path, tmp_path: Path) -> None:
    with serving(tmp_path, [f"a={whisper}"], "serve.grace_s=0", "serve.drain_s=1") as server:
        clients = [upload(server, 1000) for _ in range(20)]
        until(lambda: is_healthy(server))
        os.kill(server.process.pid or 0, signal.SIGTERM)
        assert all(answer(client).startswith(b"HTTP/1.1 503") for client in clients)
        server.process.join(60)
        log = server.log.read_text()
        assert server.process.exitcode == 0, log
        assert "Cancel 20 running task(s)" in log
        assert "Traceback" not in log
        assert len(log.splitlines()) < 10


@pytest.mark.parametrize(
    ("pauses_s", "size", "status"),
    [([0.05] * 20, 20, None), ([0.01, 1.0], 20, 408), ([0.05] * 20, 1, 408)],
    ids=["slow", "stalled", "too slow"],
)
def test_time_without_bytes_and_the_rate_are_limited(
    monkeypatch: pytest.MonkeyPatch, pauses_s: list[float], size: int, status: int | None
) -> None:
    monkeypatch.setattr(receiving, "STALLED_S", 0.6)
    monkeypatch.setattr(receiving, "BODY_S", 0.4)
    monkeypatch.setattr(receiving, "SLOWEST_BYTES_PER_S", 100.0)
    pauses = iter(pauses_s)

    async def receive() -> dict[str, object]:
        await asyncio.sleep(next(pauses))
        return {"type": "http.request", "body": bytes(size), "more_body": True}

    async def receive_all() -> None:
        limited = receiving.limited(receive, 1)
        for _ in pauses_s:
            await limited()

    if status is None:
        asyncio.run(receive_all())
    else:
        with pytest.raises(RequestError) as caught:
            asyncio.run(receive_all())
        assert caught.value.status == status
