"""Requests that no page of the explorer makes: other tokens, hosts and origins, SQL everywhere, paths, bodies."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from explorer_process import NUM, ExplorerProcess, exploring, get, make_corpus, post, write_config
from voxstill.core.config import Config

SQL = (
    "'",
    "' OR 1=1 --",
    '"; DROP TABLE rows; --',
    "id) UNION SELECT value FROM about --",
    "1; ATTACH '/etc/passwd' AS x",
    "(SELECT read_text('/etc/passwd'))",
    "row",
    "rows.id",
    "search",
    "__proto__",
    "\0",
    "\u202e",
    "%",
    "_",
)
PATHS = ("/api/about", "/api/rows", "/", "/app.js", "/api/export", "/api/utterances/0/audio")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return make_corpus(tmp_path_factory.mktemp("attacked"))


@pytest.fixture(scope="module")
def explorer(corpus: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExplorerProcess]:
    folder = tmp_path_factory.mktemp("explorer")
    with exploring(folder, corpus.work, "--config", write_config(folder, corpus), "--edit") as process:
        yield process
        assert len(process.rows(limit=500)) == NUM  # whatever was asked


@pytest.fixture(scope="module")
def reader(corpus: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExplorerProcess]:
    folder = tmp_path_factory.mktemp("reader")
    with exploring(folder, corpus.work, "--config", write_config(folder, corpus)) as process:
        yield process


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_answered(explorer: ExplorerProcess, path: str) -> None:
    tokens = ("x", explorer.token[:-1], explorer.token + "x", explorer.token.swapcase(), "ü" * 43)
    assert get(explorer.base + path).status_code == 401
    for token in tokens:
        assert get(explorer.base + path, params={"token": token}).status_code == 401
        headers = {"Authorization": b"Bearer " + token.encode()}
        assert get(explorer.base + path, headers=headers).status_code == 401
    assert get(explorer.base + path, headers={"Cookie": 'voxstill_explore_1="x"; ;;='}).status_code == 401
    if path != "/":  # the token in an address opens the page alone, and moves into a cookie at once
        assert get(explorer.base + path, params={"token": explorer.token}).status_code == 401


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_has(explorer: ExplorerProcess) -> None:
    answer = get(explorer.url)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "referrer-policy" in answer.headers
    page = get(explorer.url, follow_redirects=True)
    assert page.headers["content-security-policy"].startswith(
        "default-src 'none'; script-src 'self'; style-src 'self';"
    )
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "://" not in page.text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example:{port}", ""])
def test_another_host_is_refused(explorer: ExplorerProcess, host: str) -> None:
    name = host.format(port=explorer.base.rpartition(":")[2])
    for path in PATHS:
        assert get(explorer.base + path, headers={**explorer.headers, "Host": name}).status_code in (400, 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://localhost:{port}"]
)
def test_another_origin_is_refused(explorer: ExplorerProcess, origin: str) -> None:
    name = origin.format(port=explorer.base.rpartition(":")[2])
    for path in PATHS:
        assert get(explorer.base + path, headers={**explorer.headers, "Origin": name}).status_code == 403
    assert explorer.judge({"row": 0, "judgement": "right"}, Origin=name).status_code == 403
    site = {**explorer.headers, "Sec-Fetch-Site": "cross-site"}
    assert get(explorer.base + "/api/about", headers=site).status_code == 403


def test_it_listens_on_loopback_alone(explorer: ExplorerProcess) -> None:
    port = int(explorer.base.rpartition(":")[2])
    for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}:
        if not str(address).startswith("127."):
            with pytest.raises(OSError):  # noqa: PT011  # refused, or no way there
                socket.create_connection((str(address), port), 5)


@pytest.mark.parametrize("text", SQL)
def test_sql_is_a_value_or_no_column_everywhere(explorer: ExplorerProcess, text: str) -> None:
    answers = [
        explorer.get("rows", order=text),
        explorer.get("rows", order="-" + text),
        explorer.get("rows", filter={"where": [{"column": text, "in": ["x"]}]}),
        explorer.get("histogram", column=text),
        explorer.get("facet", column=text),
        explorer.get("export", columns=f"id,{text}"),
        explorer.get("export", format=text),
        explorer.get("rows", limit=text),
        explorer.get("rows", order="duration_ms", after=[text, 1]),
        explorer.get("rows", order="duration_ms", after=[1, text]),
        explorer.get("rows", filter={"where": [{"column": "duration_ms", "min": text}]}),
        get(f"{explorer.base}/api/rows", params={"filter": text}, headers=explorer.headers),
        get(f"{explorer.base}/api/rows", params={"after": text}, headers=explorer.headers),
    ]
    assert {answer.status_code for answer in answers} == {400}, [answer.text for answer in answers]
    searched = explorer.get("rows", filter={"text": text})
    values = explorer.get("rows", filter={"where": [{"column": "speaker", "in": [text]}]})
    assert searched.status_code == values.status_code == 200
    assert values.json()["rows"] == []
    assert searched.json()["rows"] == [] or text in ("%", "_", "row")


@pytest.mark.parametrize(
    "tree",
    [
        [],
        1,
        {"text": 1},
        {"text": "x" * 201},
        {"where": {}},
        {"where": [1]},
        {"where": [{"column": ["id"]}]},
        {"where": [{"column": "split", "in": "dev"}]},
        {"where": [{"column": "split", "in": [1]}]},
        {"where": [{"column": "split", "in": ["x"] * 101}]},
        {"where": [{"column": "split", "min": 1}]},
        {"where": [{"column": "duration_ms", "min": True}]},
        {"where": [{"column": "duration_ms", "min": 2**127}]},
        {"where": [{"column": "kept", "in": ["true"]}]},
        {"where": [{"column": "split", "in": ["dev"]}] * 33},
    ],
)
def test_a_filter_of_another_shape_is_refused(explorer: ExplorerProcess, tree: object) -> None:
    for path in ("rows", "totals", "funnel", "export"):
        assert explorer.get(path, filter=tree).status_code == 400


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"text": "\\ud800"}', "{", "NaN", '{"where": [{"column": "duration_ms", "min": NaN}]}']
)
def test_json_that_is_none_is_refused(explorer: ExplorerProcess, text: str) -> None:
    answer = get(f"{explorer.base}/api/rows", params={"filter": text}, headers=explorer.headers)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/page/index.html",
        "/app.js/../../app.py",
        "/api/utterances/..%2f0",
        "/api/utterances/-1",
        "/api/utterances/99999999",
        "/api/utterances/99999999/audio",
        "/api/utterances/%2fetc%2fpasswd/audio",
        "/corpus.duckdb",
    ],
)
def test_paths_lead_nowhere(explorer: ExplorerProcess, path: str) -> None:
    answer = get(explorer.base + path, headers=explorer.headers)
    assert answer.status_code == 404
    assert "root:" not in answer.text


def test_a_number_that_is_none_fits_no_row(explorer: ExplorerProcess) -> None:
    for row in (str(1 << 64), "9" * 400):
        assert get(f"{explorer.base}/api/utterances/{row}", headers=explorer.headers).status_code in (400, 404)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"row": 0},
        {"row": "0", "judgement": "right"},
        {"row": True, "judgement": "right"},
        {"row": -1, "judgement": "right"},
        {"row": 1 << 63, "judgement": "right"},
        {"row": 10**6, "judgement": "right"},
        {"row": 0, "judgement": "DROP TABLE"},
        {"row": 0, "judgement": ["right"]},
        {"row": 0, "judgement": "right", "text": "x"},
        {"row": 0, "judgement": "corrected"},
        {"row": 0, "judgement": "corrected", "text": 1},
        {"row": 0, "judgement": "corrected", "text": "x" * 10_001},
        {"row": 0, "judgement": "corrected", "text": "x" * 100_000},
    ],
)
def test_a_judgement_of_another_shape_is_refused_and_nothing_is_written(
    explorer: ExplorerProcess, corpus: Config, body: object
) -> None:
    assert explorer.judge(body).status_code in (400, 404, 413)
    assert not list(Path(corpus.work).glob("corrections/*"))


def test_a_judgement_needs_json_an_origin_and_edit(
    explorer: ExplorerProcess, reader: ExplorerProcess, corpus: Config
) -> None:
    body = {"row": 0, "judgement": "right"}
    form = {**explorer.headers, "Origin": explorer.base, "Content-Type": "text/plain"}
    url = f"{explorer.base}/api/judgements"
    assert post(url, content=json.dumps(body), headers=form).status_code == 415
    assert post(url, json=body, headers=explorer.headers).status_code == 403
    assert post(url, json=body, headers={"Origin": explorer.base}).status_code == 401
    assert get(url, headers=explorer.headers).status_code == 405
    assert reader.judge(body).status_code == 403
    assert "--edit" in reader.judge(body).json()["error"]
    assert not list(Path(corpus.work).glob("corrections/*"))


def test_texts_are_no_markup_of_the_page_and_scripts_of_others_are_not_allowed(explorer: ExplorerProcess) -> None:
    page = get(explorer.url, follow_redirects=True)
    assert "onerror" not in page.text
    for name in ("app", "api", "charts", "detail", "experiments", "sound"):
        script = get(f"{explorer.base}/{name}.js", headers=explorer.headers).text
        assert not any(
            word in script for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write")
        )
