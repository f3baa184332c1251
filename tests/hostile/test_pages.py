"""Pages of other servers, in a browser on the machine of `voxstill serve`: they get no text and no work done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
import websockets.exceptions
from websockets.sync.client import connect

import servers
from browser import CHROMIUM, Browser
from serving_process import ServerProcess, serving, wav_of
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.serving.app import TranscriptionServer
from voxstill.serving.middleware import Access

KEY = "key-of-the-tests"
PATH = "/v1/audio/transcriptions"
OTHERS = (
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://127.0.0.1.evil.example:8000"},
    {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
)
"""What browsers say of the page that asks."""


@pytest.fixture(scope="module")
def open_server(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without keys."""
    folder = tmp_path_factory.mktemp("open_server")
    with serving(folder, [f"tone={tone_student}"], environment={}) as process:
        yield process


def ask(
    method: str,
    path: str,
    headers: Mapping[str, str],
    *,
    keys: tuple[str, ...] = (),
    host: str = "127.0.0.1",
) -> httpx.Response:
    """What a server that has no model says; `host` is where it listens."""

    def no_model(_: str) -> object:
        raise ConfigError("there is no model", why="none was given", fix="give one")

    async def answer() -> httpx.Response:
        app = TranscriptionServer(Config(), no_model, Access(keys, None, host)).app  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, headers=dict(headers))

    return asyncio.run(answer())


@pytest.mark.parametrize("page", OTHERS, ids=str)
def test_a_page_of_another_server_has_no_audio_transcribed(open_server: ServerProcess, page: dict[str, str]) -> None:
    form = {"files": {"file": ("a.wav", wav_of())}, "data": {"model": "tone"}}
    answer = httpx.post(open_server.url + PATH, headers=page, timeout=60, **form)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "10.0.0.1", "[", ""])
def test_a_name_that_was_bound_to_this_machine_is_not_served(open_server: ServerProcess, host: str) -> None:
    """DNS rebinding: for the browser the page and the server are of one origin, so only the name tells."""
    headers = {"Host": host.format(port=open_server.url.rpartition(":")[2])}
    headers |= {"Origin": f"http://{headers['Host']}", "Sec-Fetch-Site": "same-origin"}
    for path in ("/", "/v1/models", "/metrics"):
        answer = httpx.get(open_server.url + path, headers=headers)
        assert answer.status_code in (400, 403), path
        assert "tone" not in answer.text
    form = {"files": {"file": ("a.wav", wav_of())}, "data": {"model": "tone"}}
    bearer = {"Authorization": "Bearer unused"}
    answer = httpx.post(open_server.url + PATH, headers=headers | bearer, **form)  # type: ignore[arg-type]
    assert answer.status_code in (400, 403)
    url = open_server.url.replace("http", "ws") + "/v1/realtime?intent=transcription"
    with pytest.raises((websockets.exceptions.InvalidStatus, websockets.exceptions.InvalidMessage)):
        connect(url, additional_headers=headers)


def test_two_names_of_a_host_are_not_served() -> None:
    """A server and a proxy before it may take different ones."""
    app = Access((), None, "127.0.0.1")
    headers = [(b"host", b"127.0.0.1:8000"), (b"host", b"evil.example")]
    with pytest.raises(Exception, match="host is not served"):
        app.check({"type": "http", "method": "GET", "path": "/v1/models", "headers": headers})


@pytest.mark.parametrize(
    "name", ["127.0.0.1", "localhost", "LOCALHOST", "127.0.0.1:9000", "localhost:9000", "[::1]:8000"]
)
def test_every_name_of_this_machine_is_served_at_every_port(name: str) -> None:
    """A tunnel (`ssh -L`) has a port of its own."""
    assert ask("GET", "/v1/models", {"Host": name}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},  # curl, OpenAI's client, Prometheus
        {"Authorization": "Bearer unused"},
        {"Origin": "http://127.0.0.1:8000"},  # the page at `/`, in an old browser
        {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "chrome-extension://abc", "Authorization": "Bearer unused"},  # no browser sends a token by itself
    ],
    ids=str,
)
def test_programs_and_the_own_page_may_ask(headers: dict[str, str]) -> None:
    assert ask("POST", PATH, headers).status_code == 503  # it has no model yet


def test_probes_may_ask_by_any_name() -> None:
    for path in ("/health", "/ready"):
        assert ask("GET", path, {"Host": "10.1.2.3:8000"}).status_code in (200, 503)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "::"])
def test_a_server_for_other_machines_has_any_name(host: str) -> None:
    """It cannot know by which it is reached, through a proxy or a service of Kubernetes."""
    for headers in ({}, {"Origin": "https://asr.example"}, {"Sec-Fetch-Site": "same-origin", "Origin": "https://b.c"}):
        assert ask("POST", PATH, {"Host": "asr.example", **headers}, host=host).status_code == 503
    assert ask("POST", PATH, {"Host": "asr.example", "Origin": "http://evil.example"}, host=host).status_code == 403


def test_with_keys_any_name_is_served_as_no_browser_has_a_key_for_it() -> None:
    bearer = {"Host": "asr.example", "Authorization": f"Bearer {KEY}"}
    assert ask("GET", "/v1/models", bearer, keys=(KEY,)).status_code == 200
    assert ask("GET", "/v1/models", {"Host": "asr.example"}, keys=(KEY,)).status_code == 401


@pytest.mark.parametrize("page", OTHERS, ids=str)
def test_a_password_that_a_browser_repeats_for_another_page_opens_nothing(page: dict[str, str]) -> None:
    password = {"Authorization": httpx.BasicAuth("me", KEY)._auth_header}
    assert ask("POST", PATH, page | password, keys=(KEY,)).status_code == 403
    assert ask("POST", PATH, password, keys=(KEY,)).status_code == 503
    assert ask("POST", PATH, page | {"Authorization": f"Bearer {KEY}"}, keys=(KEY,)).status_code == 503


def test_no_page_of_another_server_is_allowed_a_header_of_its_own() -> None:
    """A browser asks before it sends a bearer token for a page, and gets no permission."""
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    answer = ask("OPTIONS", PATH, {"Origin": "http://evil.example", **asked})
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_link_of_another_page_opens_the_page() -> None:
    assert ask("GET", "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status_code == 200


class _EvilPage(servers.Handler):
    def do_GET(self) -> None:  # noqa: N802  (the name that http.server wants)
        self.answer(200, b"<!doctype html><title>evil</title>", Content_Type="text/html")


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
def test_a_real_browser_gets_nothing_for_another_page(open_server: ServerProcess, tmp_path: Path) -> None:
    def answered(status: int) -> float:
        lines = open_server.get("/metrics", None)[1].decode().splitlines()
        ours = [line for line in lines if line.startswith("voxstill_requests_total{") and PATH in line]
        return sum(float(line.rpartition(" ")[2]) for line in ours if f'status="{status}"' in line)

    refused = answered(403)
    with servers.serve(_EvilPage) as port, Browser(tmp_path) as browser:
        browser.open(f"http://127.0.0.1:{port}")
        browser.evaluate(
            f"""(() => {{
            const form = new FormData();
            form.set("model", "tone");
            form.set("file", new File([new Uint8Array(100)], "a.wav"));
            fetch("{open_server.url}{PATH}", {{ method: "POST", body: form, mode: "no-cors" }})
                .finally(() => {{ document.title = "asked"; }});
        }})()"""
        )
        browser.wait_for("document.title === 'asked'")
        assert answered(403) == refused + 1
        browser.open(f"{open_server.url.replace('127.0.0.1', 'evil.localhost')}/v1/models")  # it resolves to loopback
        assert "this host is not served" in browser.evaluate("document.body.textContent")
