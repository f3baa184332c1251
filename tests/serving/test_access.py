"""Keys, limits, damaged files and overload: refused in words, and the server lives."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import websockets.exceptions
from websockets.sync.client import connect

from serving_process import ServerProcess, serving, wav_of
from tones import TEXTS
from waiting import until

PATHS = ("/", "/metrics", "/v1/models", "/v1/audio/transcriptions", "/nothing", "/v1/models/tone")


@pytest.fixture(scope="module")
def small_server(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of small limits without keys."""
    settings = ("serve.max_upload_mb=1", "serve.max_audio_s=20", "serve.max_queue_s=2")
    folder = tmp_path_factory.mktemp("small_server")
    with serving(folder, [f"tone={tone_student}"], *settings, environment={"VOXSTILL_API_KEYS": ""}) as process:
        yield process


def is_alive(server: ServerProcess) -> bool:
    return server.get("/ready", None)[0] == 200


@pytest.mark.parametrize("key", [None, "wrong", "key-of-the-test", "ключ"])
def test_every_path_but_those_of_probes_needs_a_key(server: ServerProcess, key: str | None) -> None:
    header = {} if key is None else {"Authorization": f"Bearer {key}".encode()}
    for path in PATHS:
        answer = httpx.get(server.url + path, headers=header)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), path
    for path in ("/health", "/ready"):
        assert httpx.get(server.url + path, headers=header).status_code == 200


def test_a_key_is_taken_as_a_bearer_token_and_as_a_password(server: ServerProcess) -> None:
    for path, status in zip(PATHS, (200, 200, 200, 405, 404, 200), strict=True):
        assert httpx.get(server.url + path, headers={"Authorization": f"Bearer {server.key}"}).status_code == status
        assert httpx.get(server.url + path, auth=("anybody", server.key)).status_code == status
    assert httpx.get(f"{server.url}/v1/models", auth=("anybody", "wrong")).status_code == 401


def test_the_administration_takes_its_own_key_as_a_bearer_token_alone(
    server: ServerProcess, small_server: ServerProcess
) -> None:
    assert server.admin()[0] == 200
    assert server.get("/admin")[0] == 401
    assert httpx.get(f"{server.url}/admin", auth=("admin", "admin-of-the-tests")).status_code == 401
    assert small_server.admin()[0] == 403


def test_a_websocket_needs_a_key_and_a_page_of_this_server(server: ServerProcess) -> None:
    url = server.url.replace("http", "ws") + "/v1/realtime?intent=transcription"
    bearer = {"Authorization": f"Bearer {server.key}"}
    for headers, protocols in (
        ({}, []),
        ({"Authorization": "Bearer wrong"}, []),
        ({}, ["realtime", "openai-insecure-api-key.wrong"]),
        (bearer | {"Origin": "https://example.org"}, []),
    ):
        with pytest.raises(websockets.exceptions.InvalidStatus, match="403"):
            connect(url, additional_headers=headers, subprotocols=protocols or None)
    by_protocol = {"subprotocols": ["realtime", f"openai-insecure-api-key.{server.key}"]}
    for options in ({"additional_headers": bearer}, by_protocol, {"additional_headers": bearer, "origin": server.url}):
        with connect(url, **options) as client:
            assert json.loads(client.recv(60))["type"] == "session.created"


def test_a_request_that_is_too_large_is_a_413(small_server: ServerProcess) -> None:
    form = {"files": {"file": ("a.wav", bytes(2_000_000))}, "data": {"model": "tone"}}
    with contextlib.suppress(httpx.WriteError):  # refused while it is sent
        assert httpx.post(f"{small_server.url}/v1/audio/transcriptions", **form).status_code == 413
    assert is_alive(small_server)


def test_a_body_of_unknown_length_is_counted(small_server: ServerProcess) -> None:
    client = http.client.HTTPConnection(urlsplit(small_server.url).netloc, timeout=60)
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    with contextlib.suppress(ConnectionError):
        pieces = iter([head, *[bytes(100_000)] * 30])
        client.request("POST", "/v1/audio/transcriptions", pieces, headers, encode_chunked=True)
        assert client.getresponse().status == 413
    assert is_alive(small_server)


def test_a_recording_that_is_too_long_is_a_413(small_server: ServerProcess) -> None:
    file = ("a.wav", wav_of(*TEXTS * 5))
    answer = httpx.post(
        f"{small_server.url}/v1/audio/transcriptions", files={"file": file}, data={"model": "tone"}, timeout=120
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "file")
    assert answer.json()["error"]["code"] == "audio-too-long"
    assert "more than 20 s" in answer.json()["error"]["message"]


def test_overload_is_a_429_that_says_when_to_come_again(small_server: ServerProcess) -> None:
    async def ask() -> list[httpx.Response]:
        form = {"files": {"file": ("a.wav", wav_of(*TEXTS * 2))}, "data": {"model": "tone"}}
        async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=40)) as client:
            jobs = [client.post(f"{small_server.url}/v1/audio/transcriptions", **form) for _ in range(40)]
            return await asyncio.gather(*jobs)

    answers = asyncio.run(ask())
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}, statuses
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert all(answer.json()["text"] == " ".join(TEXTS * 2) for answer in answers if answer.status_code == 200)
    assert is_alive(small_server)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no form",
        b"--b\r\n",
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ntone\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\ntext\r\n--b--\r\n',
        b"--b\r\nContent-Disposition: form-data\r\n\r\n\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="model"; filename="a"\r\n\r\ntone\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n' + bytes(100_000) + b"\r\n--b--\r\n",
    ],
)
def test_a_damaged_form_is_a_400(small_server: ServerProcess, body: bytes) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = httpx.post(f"{small_server.url}/v1/audio/transcriptions", content=body, headers=headers)
    assert (answer.status_code, set(answer.json())) == (400, {"error"}), answer.text
    assert httpx.post(f"{small_server.url}/v1/audio/transcriptions", content=body).status_code == 400


def test_a_client_that_leaves_costs_nothing(small_server: ServerProcess) -> None:
    address = urlsplit(small_server.url)
    request = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n"
    for _ in range(20):
        with socket.create_connection((address.hostname or "", address.port or 0)) as client:
            client.sendall(request + b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n")
    assert is_alive(small_server)
    assert b"Traceback" not in small_server.log.read_bytes()


def test_damaged_files_are_4xx_with_a_reason(server: ServerProcess, shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("nasty-audio") / "files"
    statuses = Counter[int]()
    with httpx.Client(timeout=200, headers={"Authorization": f"Bearer {server.key}"}) as client:
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.stat().st_size > 5_000_000:
                continue
            files = {"file": (path.name.encode(errors="replace").decode(), path.read_bytes())}
            answer = client.post(f"{server.url}/v1/audio/transcriptions", files=files, data={"model": "tone"})
            statuses[answer.status_code] += 1
            if answer.status_code != 200:
                assert answer.status_code in (400, 413), (path.name, answer.text)
                assert answer.json()["error"]["message"]
    assert statuses[400] > 5
    assert statuses[200] > 5
    assert is_alive(server)


def test_basic_credentials_that_are_none_are_a_401(server: ServerProcess) -> None:
    for credentials in ("=", "%%%", base64.b64encode(b"\xff\xfe").decode(), base64.b64encode(b"nocolon").decode()):
        answer = httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Basic {credentials}"})
        assert answer.status_code == 401, credentials


def test_two_files_in_one_request_are_refused(server: ServerProcess) -> None:
    files = [("file", (f"{name}.wav", wav_of("ba"))) for name in "ab"]
    headers = {"Authorization": f"Bearer {server.key}"}
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions", files=files, data={"model": "tone"}, headers=headers, timeout=60
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


def test_a_recording_of_a_client_that_has_left_is_not_transcribed(server: ServerProcess) -> None:
    def figure(name: str) -> float:
        lines = server.get("/metrics")[1].decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    long_wav = wav_of(*TEXTS * 300)
    before_s = figure("voxstill_audio_seconds_total")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}/v1/audio/transcriptions",
            files={"file": ("long.wav", long_wav)},
            data={"model": "tone"},
            headers={"Authorization": f"Bearer {server.key}"},
            timeout=httpx.Timeout(60, read=0.1),
        )
    until(lambda: figure("voxstill_requests_in_flight") == 0)
    assert figure("voxstill_audio_seconds_total") - before_s < 0.5 * len(long_wav) / 32_000
