"""A server of labels that never ends, sends too much or sends elsewhere costs a stated time, and gets no more."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from servers import Handler, serve
from voxstill.core import config
from voxstill.core.errors import TeacherError
from voxstill.core.records import Utterance
from voxstill.teachers import limited_http, registry
from voxstill.teachers.teacher import Clip, Transcription

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Talk = Callable[[socket.socket], None]


def drip(data: bytes) -> Talk:
    """Sends some bytes, one in a tenth of a second, again and again."""

    def talk(connection: socket.socket) -> None:
        while True:
            for byte in data:
                connection.sendall(bytes([byte]))
                time.sleep(0.1)

    return talk


def flood(first: bytes, again: bytes) -> Talk:
    def talk(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(again)

    return talk


@contextlib.contextmanager
def server(talk: Talk) -> Iterator[str]:
    """The address of a server that reads a request and then talks, on every connection."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(1 << 16)
            head, _, body = data.partition(b"\r\n\r\n")
            if head.startswith(b"GET"):  # of the metrics that a server of vLLM has
                return
            left = int(head.lower().partition(b"content-length:")[2].split()[0]) - len(body)
            while left > 0:
                left -= len(connection.recv(1 << 16))
            talk(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)


def transcribed(url: str, **options: object) -> tuple[Transcription, float]:
    """What the teacher makes of one clip, and the seconds that it took."""
    section = {"name": "openai", "base_url": url, "model": "m", "timeout_s": 0.6, "retries": 1, **options}
    teacher = registry.create(config.Teacher.model_validate(section))
    teacher.load()
    clip = Clip(utterance=Utterance(id="u", recording_id="r", uri="", end_ms=100), samples_T=np.full(1600, 1, np.int16))
    start_s = time.monotonic()
    try:
        (answer,) = teacher.transcribe_batch([clip])
        return answer, time.monotonic() - start_s
    finally:
        teacher.close()


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Slow: " + b"y" * 10_000,
        HEAD + b"Content-Length: 100000\r\n\r\n" + b" " * 10_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 10_000,
    ],
    ids=["1xx", "headers", "body", "chunks"],
)
def test_a_byte_now_and_then_is_a_late_answer(data: bytes) -> None:
    with server(drip(data)) as url:
        answer, seconds = transcribed(url)
    assert answer.is_transient
    assert "timed out" in (answer.error or "")
    assert 1.2 <= seconds < 60  # two tries and the pause between them; all of it would take a quarter of an hour


@pytest.mark.parametrize(
    "talk",
    [
        flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        flood(HEAD + b"\r\n", b" " * 65_536),
        flood(HEAD + b"Content-Length: 1000000000000000\r\n\r\n", b" " * 65_536),
        flood(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65_536 + b"\r\n"),
        flood(HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFF\r\n", b" " * 65_536),
    ],
    ids=["1xx", "endless", "announced", "chunks", "large chunk"],
)
def test_an_answer_without_an_end_is_a_row(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_http, "MAX_BYTES", 1 << 20)
    with server(talk) as url:
        answer, seconds = transcribed(url, timeout_s=20.0)
    assert answer.error == "the answer of the server is larger than 1,048,576 bytes"
    assert not answer.is_transient
    assert seconds < 20  # it is not the time limit that ends it


def test_an_answer_is_not_unpacked() -> None:
    packed = zlib.compress(json.dumps({"text": " " * 10_000_000}).encode())
    head = HEAD + f"Content-Encoding: deflate\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    with server(lambda connection: connection.sendall(head + packed)) as url:
        answer, _ = transcribed(url)
    assert (answer.error or "").startswith("not a response of this protocol")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'{"text": "a", "words": [{"word": "a", "start": 1e999, "end": 2}]}',
        b'{"text": "a", "words": [{"word": "a", "start": NaN, "end": 2}]}',
        b'{"text": "a", "usage": {"output_tokens": Infinity}}',
        b'{"text": "a", "language": 3}',
        b'{"text": null}',
        b'{"text": "a", "logprobs": [{"logprob": "x"}]}',
        b'{"text": "a", "usage": {"output_tokens": ' + b"9" * 5000 + b"}}",
    ],
    ids=lambda body: body[:60].decode(),
)
def test_an_odd_answer_is_a_row(body: bytes) -> None:
    head = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode()
    with server(lambda connection: connection.sendall(head + body)) as url:
        answer, _ = transcribed(url)
    assert (answer.error or "").startswith("not a response of this protocol")


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 503 x\r\nRetry-After: " + b"9" * 5000 + b"\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 503 x\r\nRetry-After: Fri, 31 Dec 99999 23:59:59 GMT\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 429 x\r\nRetry-After: -5\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Content-Length: 15, 16\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc",
        b"HTTP/1.1 -200 x\r\n\r\n",
        HEAD + b"".join(b"a%d: 1\r\n" % i for i in range(300)) + b"\r\n",
        b"\0" * 1000,
    ],
    ids=["digits", "year", "negative", "two lengths", "chunk", "status", "headers", "nothing of HTTP"],
)
def test_odd_headers_are_no_answer(head: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        connection.sendall(head)
        connection.shutdown(socket.SHUT_WR)

    with server(talk) as url:
        answer, _ = transcribed(url, retries=0)
    assert answer.is_transient
    assert answer.error


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_key_follows_no_redirect(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "own-key")
    arrived: list[str] = []

    class Elsewhere(Handler):
        def post(self) -> None:
            arrived.append(str(self.headers))
            self.answer(200, b'{"text": "stolen"}')

        do_POST = do_GET = post

    with serve(Elsewhere) as port:
        head = f"HTTP/1.1 {status} Moved\r\nLocation: http://localhost:{port}/v1\r\nContent-Length: 0\r\n\r\n".encode()
        with server(lambda connection: connection.sendall(head)) as url, pytest.raises(TeacherError):
            transcribed(url, api_key_env="OWN_KEY")
    assert arrived == []
