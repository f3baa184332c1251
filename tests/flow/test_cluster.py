"""A cluster of two nodes that somebody else started: the same command, the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from forked import command, finish, free_port, start
from ray_nodes import RAY, cluster_environment, listens, node
from waiting import until

pytestmark = pytest.mark.slow
ECHO = {"name": "echo", "substitute": 0.1, "delay_ms": 40}


class Head(NamedTuple):
    """Of a cluster that somebody started: its address, that of its dashboard, and the environment with its token."""

    address: str
    dashboard: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    environment = cluster_environment()
    port, dashboard, agent = (free_port() for _ in range(3))
    options = ("--head", "--node-ip-address=127.0.0.1", f"--port={port}", f"--dashboard-port={dashboard}")
    with node(*options, f"--dashboard-agent-listen-port={agent}", environment=environment):
        until(lambda: all(map(listens, (port, dashboard, agent))), every_s=0.2)
        yield Head(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", environment)


def test_the_ray_job_of_the_examples_labels_on_the_cluster_that_it_is_submitted_to(
    head: Head, digits: Path, configure: Callable[..., Path], voxstill: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    job = yaml.safe_load((Path(__file__).parents[2] / "examples/cluster/rayjob.yml").read_text())
    config = configure(tmp_path, digits / "manifest.jsonl", teacher=ECHO, engine={"name": "ray", "chunk": 2})
    work = tmp_path / "work"
    voxstill("index", digits / "manifest.jsonl", "--work", work, "--config", config, "--set", "engine=inline")
    here = {"voxstill ": f"{sys.executable} -m voxstill ", "s3://bucket/work": work, "/config/my.yaml": config}
    entrypoint = job["spec"]["entrypoint"]
    for there, path in here.items():
        entrypoint = entrypoint.replace(there, str(path), 1)
    submit = [str(RAY), "job", "submit", f"--address={head.dashboard}", "--", *entrypoint.split()]
    done = subprocess.run(submit, env=head.environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [finished] = work.glob("labels/*/_SUCCESS.json")
    assert json.loads(finished.read_text())["labels"] == len(list(digits.glob("*.flac")))


def test_a_cluster_of_two_nodes_gives_the_bytes_of_one_process(
    head: Head, digits: Path, configure: Callable[..., Path], voxstill: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    parts = {}
    with node(f"--address={head.address}", environment=head.environment):
        time.sleep(5)
        for name in ("inline", "ray"):
            folder = tmp_path / name
            folder.mkdir()
            engine = {"name": name, "chunk": 2}
            config = configure(folder, digits / "manifest.jsonl", teacher=ECHO, engine=engine)
            work = folder / "work"
            voxstill("index", digits / "manifest.jsonl", "--work", work, "--config", config, "--set", "engine=inline")
            label, log = ["label", work, "--config", config, "--set", f"engine.address={head.address}"], folder / "log"
            finish(start(command, label, log=log, environment=head.environment), log=log)
            parts[name] = {path.name: path.read_bytes() for path in work.glob("labels/*/*.parquet")}
            assert head.environment["RAY_AUTH_TOKEN"] not in log.read_text()
    assert len(parts["ray"]) == 12
    assert parts["ray"] == parts["inline"]


def test_a_cluster_that_cannot_be_joined_is_not_reported_as_a_teacher_error(
    digits: Path, configure: Callable[..., Path], voxstill: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    config = configure(tmp_path, digits / "manifest.jsonl", teacher=ECHO, engine={"name": "inline"})
    work = tmp_path / "work"
    voxstill("index", digits / "manifest.jsonl", "--work", work, "--config", config)
    nowhere = ["--set", "engine=ray", "--set", f"engine.address=127.0.0.1:{free_port()}"]
    log = tmp_path / "log"
    process = start(command, ["label", work, "--config", config, *nowhere], log=log)
    process.join(200)
    assert (process.exitcode, "cannot be joined" in log.read_text()) == (1, True), log.read_text()[-2000:]
