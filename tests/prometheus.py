"""A real Prometheus, which scrapes every second or faster, and what it answers."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from waiting import until

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="Prometheus is not installed (.ci/run installs it)"
)


class Prometheus:
    """A server that runs."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, query: str, at: float | None = None) -> list[dict[str, Any]]:
        """The result of an instant query; empty, too, where the server does not answer yet."""
        parameters = {"query": query} if at is None else {"query": query, "time": str(at)}
        with contextlib.suppress(OSError):
            return list(self._get("query", parameters)["result"])
        return []

    def range(self, query: str, start: float, end: float, step_s: float) -> list[dict[str, Any]]:
        """The result of a range query."""
        parameters = {"query": query, "start": str(start), "end": str(end), "step": str(step_s)}
        return list(self._get("query_range", parameters)["result"])

    def first(self, query: str) -> list[dict[str, Any]]:
        """The result of a query, once there is one."""
        until(lambda: self.query(query), every_s=0.1)
        return self.query(query)

    def alerts(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self._get("alerts", {})["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def _get(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data


@contextlib.contextmanager
def prometheus(folder: Path, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """A Prometheus with this configuration; what it stores is below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))
    options = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        server = subprocess.Popen([str(PROMETHEUS), *options], stdout=output, stderr=output)
        try:
            running = Prometheus(address)
            until(lambda: running.query("vector(1)") or server.poll() is not None, within_s=60)
            assert server.poll() is None, log.read_text()
            yield running
        finally:
            server.terminate()
            server.wait(20)


def values(series: list[dict[str, Any]], *labels: str) -> dict[tuple[str, ...], float]:
    """The values of a result by these labels."""
    return {tuple(row["metric"].get(name, "") for name in labels): float(row["value"][1]) for row in series}


def scraped_for(seconds: float) -> None:
    """Wait while a Prometheus scrapes: rates want time."""
    time.sleep(seconds)
