"""The status that Kubeflow Trainer asks for, at a real HTTPS server."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from core.metrics.test_endpoint import certificate
from voxstill.core import monitor
from voxstill.core.metrics import kubeflow
from voxstill.core.metrics.kubeflow import Status
from waiting import until

__all__ = ["certificate"]


class Trainer(HTTPServer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Trainer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.reports.append((self.headers.get("Authorization", ""), json.loads(body)))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def trainer(certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    server = Trainer()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(kubeflow, "INTERVAL_S", 0.05)
    monkeypatch.setenv(kubeflow.URL, f"https://localhost:{server.server_port}/status")
    monkeypatch.setenv(kubeflow.CA_FILE, str(certificate))
    monkeypatch.setenv(kubeflow.TOKEN_FILE, str(tmp_path / "token"))
    (tmp_path / "token").write_text("first\n")
    yield server
    server.shutdown()
    server.server_close()


def test_it_is_told_with_the_token_of_the_file_and_once_more_at_the_end(trainer: Trainer, tmp_path: Path) -> None:
    now = [Status(progress=0.256, time_left_s=90.6, figures={"loss": 0.5, "step": 1200000})]
    with kubeflow.reporting(lambda: now[0]):
        until(lambda: trainer.reports)
        (tmp_path / "token").write_text("second\n")
        until(lambda: trainer.reports[-1][0] == "Bearer second")
        now[0] = Status(progress=1.0, time_left_s=0.0)
    assert trainer.reports[0][0] == "Bearer first"
    first, last = (trainer.reports[i][1]["trainerStatus"] for i in (0, -1))
    assert first.pop("lastUpdatedTime").endswith("Z")
    assert first == {
        "progressPercentage": 25,
        "estimatedRemainingSeconds": 90,
        "metrics": [{"name": "loss", "value": "0.5"}, {"name": "step", "value": "1200000"}],
    }
    assert last["progressPercentage"] == 100


def test_a_server_that_refuses_or_is_gone_is_no_matter(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    monitor.start_logging("debug")
    trainer.status = 500
    with kubeflow.reporting(Status):
        until(lambda: len(trainer.reports) > 1)
    assert "Kubeflow Trainer got no status" in capsys.readouterr().err


def test_a_server_that_speaks_no_http_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(connection: socketserver.StreamRequestHandler) -> None:
        connection.rfile.readline()
        connection.wfile.write(b"garbage here\r\n")

    handler = type("Handler", (socketserver.StreamRequestHandler,), {"handle": answer})
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(kubeflow.URL, f"http://127.0.0.1:{server.server_address[1]}/status")
        with kubeflow.reporting(Status):
            pass
        server.shutdown()


def test_where_nobody_asks_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kubeflow.URL, raising=False)
    before = threading.active_count()
    with kubeflow.reporting(Status):
        assert threading.active_count() == before
