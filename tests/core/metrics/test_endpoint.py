"""Where the metrics are read: who may, at which address, and until when."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from prometheus import needs_prometheus, prometheus
from voxstill.core.config import Monitor
from voxstill.core.errors import ConfigError
from voxstill.core.metrics import discovery, endpoint
from voxstill.core.metrics.endpoint import Endpoint
from voxstill.core.metrics.registry import Metrics
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.process import machine_id
from waiting import until

TOKEN = "a-token-of-a-test"


@contextlib.contextmanager
def served(metrics: Metrics | None = None, **options: object) -> Iterator[Endpoint]:
    server = Endpoint(Monitor.model_validate({"port": 0, **options}), metrics or Metrics())
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(path) + ".key"]
    subprocess.run(["openssl", "req", "-x509", "-days", "1", *key, "-out", str(path), *name], check=True)
    path.write_text(path.read_text() + Path(f"{path}.key").read_text())
    return path


def read(url: str, certificate: Path | None = None, token: str = "") -> int:
    context = None if certificate is None else ssl.create_default_context(cafile=str(certificate))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_port_that_is_taken_is_a_config_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(ConfigError, match="cannot be served"):
            Endpoint(Monitor(port=listener.getsockname()[1]), Metrics())


def test_beyond_this_machine_they_need_tls_and_a_token_or_an_explicit_word(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="anyone could read"):
        Endpoint(Monitor(port=0, host="0.0.0.0"), Metrics())
    with pytest.raises(ConfigError, match="anyone could read"):  # of TLS and a token, one is not enough
        Endpoint(Monitor(port=0, host="0.0.0.0", tls_cert=str(certificate)), Metrics())
    with served(host="0.0.0.0", insecure=True) as plain:
        assert read(f"http://127.0.0.1:{plain.port}/metrics") == 200
    monkeypatch.setenv(endpoint.TOKEN, TOKEN)
    with pytest.raises(ConfigError, match="anyone could read"):
        Endpoint(Monitor(port=0, host="0.0.0.0"), Metrics())
    with served(host="0.0.0.0", tls_cert=str(certificate)) as safe:
        url = f"https://localhost:{safe.port}/metrics"
        assert read(url, certificate, TOKEN) == 200
        assert read(url, certificate, "another") == 401
        assert read(url, certificate) == 401
        with pytest.raises(OSError, match=r"."):
            read(url.replace("https", "http"), token=TOKEN)


def test_a_token_is_taken_without_the_line_break_of_its_file_and_refused_where_no_header_holds_it(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(endpoint.TOKEN, f"{TOKEN}\n")
    with served(host="0.0.0.0", tls_cert=str(certificate)) as server:
        assert read(f"https://localhost:{server.port}/metrics", certificate, TOKEN) == 200
    monkeypatch.setenv(endpoint.TOKEN, "schlüssel")
    with pytest.raises(ConfigError, match="cannot be sent in a header"):
        Endpoint(Monitor(port=0), Metrics())


def test_a_certificate_that_is_none_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match="cannot be used"):
        Endpoint(Monitor(port=0, tls_cert=str(tmp_path / "none.pem")), Metrics())


def test_another_path_is_not_found() -> None:
    with served() as server:
        assert read(f"http://127.0.0.1:{server.port}/metrics?collect=x") == 200
        assert read(f"http://127.0.0.1:{server.port}/etc/passwd") == 404


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_an_address_of_version_6_is_listened_at() -> None:
    with served(host="::1") as server:
        assert read(f"http://[::1]:{server.port}/metrics") == 200


def test_a_run_that_nobody_has_read_ends_at_once() -> None:
    with served() as server:
        before_s = time.monotonic()
        server.linger()
        assert time.monotonic() - before_s < 1


def test_a_run_that_was_read_waits_for_one_more_scrape() -> None:
    with served() as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        read(url)
        until(lambda: server._readers)  # counted once it is sent
        thread = threading.Thread(target=server.linger)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        read(url)
        thread.join(10)
        assert not thread.is_alive()


def test_the_wait_for_a_scrape_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MOST_LINGER_S", 0.5)
    with served() as server:
        read(f"http://127.0.0.1:{server.port}/metrics")
        until(lambda: server._readers)
        before_s = time.monotonic()
        server.linger()
        assert 0.4 < time.monotonic() - before_s < 5


def test_each_reader_is_waited_for_by_its_own_interval() -> None:
    with served() as server:
        now_s = time.monotonic()
        for ago_s in (10.0, 9.7, 9.4):
            server.count_scrape("a shell", now_s - ago_s)
        for ago_s in (16.0, 1.0):
            server.count_scrape("Prometheus", now_s - ago_s)
        thread = threading.Thread(target=server.linger)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        server.count_scrape("a shell", time.monotonic())
        thread.join(0.3)
        assert thread.is_alive()
        server.count_scrape("Prometheus", time.monotonic())
        thread.join(10)
        assert not thread.is_alive()


def test_who_has_not_read_for_long_is_not_waited_for() -> None:
    with served() as server:
        server.count_scrape("a shell", time.monotonic() - 60)
        before_s = time.monotonic()
        server.linger()
        assert time.monotonic() - before_s < 1


def test_many_readers_take_no_room() -> None:
    with served() as server:
        for number in range(1000):
            server.count_scrape(f"client {number}", time.monotonic())
        assert len(server._readers) < 100


def test_what_was_served_for_one_command_is_not_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MOST_LINGER_S", 0.2)
    server = endpoint.serve(Monitor(port=0), "run")
    assert server is not None
    assert endpoint.serve(Monitor(port=0), "run") is server
    assert read(f"http://127.0.0.1:{server.port}/metrics") == 200
    endpoint.end()
    with pytest.raises(OSError, match="refused"):
        read(f"http://127.0.0.1:{server.port}/metrics")
    before_s = time.monotonic()
    endpoint.end()
    assert time.monotonic() - before_s < 1


@needs_prometheus
def test_a_real_prometheus_finds_a_run_and_sees_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    discover = {"job_name": "voxstill", "file_sd_configs": [{"files": [f"{folder}/*.json"]}]}
    config = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [discover]}
    folder.mkdir()
    with prometheus(tmp_path, config) as server:
        meter = StepMeter("label", 1, "utterances")
        with served(Metrics({"step": meter})) as exporter:
            discovery.write(str(folder), exporter.host, exporter.port, "my-run", is_tls=False)
            with meter:
                (row,) = server.first("voxstill_step_running == 1")
                assert (row["metric"]["run"], row["metric"]["host"]) == ("my-run", socket.gethostname())
            exporter.linger()
            discovery.remove()
        until(lambda: server.query("last_over_time(voxstill_step_running[1m]) == 0"))
        until(lambda: not server.query("up"))
    assert not list(folder.iterdir())


@needs_prometheus
def test_a_real_prometheus_reads_with_tls_and_the_token(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(endpoint.TOKEN, TOKEN)
    folder = tmp_path / "targets"
    discover = {
        "job_name": "voxstill",
        "file_sd_configs": [{"files": [f"{folder}/*.json"]}],
        "authorization": {"credentials": TOKEN},
        "tls_config": {"ca_file": str(certificate)},
    }
    config = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [discover]}
    folder.mkdir()
    with prometheus(tmp_path, config) as server, served(tls_cert=str(certificate)) as exporter:
        discovery.write(str(folder), exporter.host, exporter.port, "run", is_tls=True)
        assert server.first("up == 1")
        discovery.remove()


def test_files_of_processes_that_are_gone_are_removed_from_the_discovery(tmp_path: Path) -> None:
    name = socket.gethostname()
    gone, reused, elsewhere, other = (
        tmp_path / f"{name}-{machine_id()}-4194304999-123.json",
        tmp_path / f"{name}-{machine_id()}-{os.getpid()}-1.json",
        tmp_path / f"{name}-00000000-1-1.json",  # of another container with the name of this machine
        tmp_path / "own.json",
    )
    for path in (gone, reused, elsewhere, other):
        path.write_text("[]")
    own = discovery.write(str(tmp_path), "::1", 9464, "run", is_tls=True)
    assert set(tmp_path.iterdir()) == {elsewhere, other, own}
    (target,) = json.loads(own.read_text())
    assert target["targets"] == ["[::1]:9464"]
    assert target["labels"]["__scheme__"] == "https"
    discovery.remove()
    assert not own.exists()
    shutil.rmtree(tmp_path)
    tmp_path.touch()
    discovery.remove()  # a folder that is gone by the end of a run is no error of the run
