"""A cluster of two nodes that somebody else started: the same command, the same bytes."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from forked import free_port
from waiting import until

pytestmark = pytest.mark.slow
RAY = Path(sys.executable).with_name("ray")
ECHO = {"name": "echo", "substitute": 0.1, "delay_ms": 40}


@contextmanager
def node(*options: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`ray start --block`, in a process group of its own that ends with the block."""
    process = subprocess.Popen(
        [str(RAY), "start", *options, "--num-cpus=1", "--block"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_cluster_of_two_nodes_gives_the_bytes_of_one_process(
    digits: Path, configure: Callable[..., Path], voxstill: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    address = f"127.0.0.1:{free_port()}"
    parts = {}
    with ExitStack() as nodes:
        port = address.rpartition(":")[2]
        head = ("--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false")
        nodes.enter_context(node(*head, environment=environment))
        until(lambda: answers(int(port)), every_s=0.2)
        nodes.enter_context(node(f"--address={address}", environment=environment))
        time.sleep(5)
        for name in ("inline", "ray"):
            folder = tmp_path / name
            folder.mkdir()
            engine = {"name": name, "chunk": 2}
            config = configure(folder, digits / "manifest.jsonl", teacher=ECHO, engine=engine)
            work = folder / "work"
            voxstill("index", digits / "manifest.jsonl", "--work", work, "--config", config, "--set", "engine=inline")
            command = [sys.executable, "-m", "voxstill.cli", "label", str(work), "--config", str(config)]
            process = subprocess.run(
                [*command, "--set", f"engine.address={address}"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=150,
                check=False,
            )
            assert process.returncode == 0, process.stderr
            parts[name] = {path.name: path.read_bytes() for path in work.glob("labels/*/*.parquet")}
            assert environment["RAY_AUTH_TOKEN"] not in process.stdout + process.stderr
    assert len(parts["ray"]) == 12
    assert parts["ray"] == parts["inline"]


def test_the_manifests_of_clusters_name_what_is_installed() -> None:
    root = Path(__file__).parents[2]
    version = re.search(r"^ray==(\S+)$", (root / "constraints.txt").read_text(), re.M)
    assert version is not None
    assert f'rayVersion: "{version[1]}"' in (root / "examples/cluster/raycluster.yml").read_text()
    assert subprocess.run(["bash", "-n", root / "examples/cluster/slurm.sh"], check=False).returncode == 0


def test_a_cluster_that_cannot_be_joined_is_not_reported_as_a_teacher_error(
    digits: Path, configure: Callable[..., Path], voxstill: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    config = configure(tmp_path, digits / "manifest.jsonl", teacher=ECHO, engine={"name": "inline"})
    work = tmp_path / "work"
    voxstill("index", digits / "manifest.jsonl", "--work", work, "--config", config)
    command = [sys.executable, "-m", "voxstill.cli", "label", str(work), "--config", str(config)]
    nowhere = ["--set", "engine=ray", "--set", f"engine.address=127.0.0.1:{free_port()}"]
    process = subprocess.run([*command, *nowhere], check=False, capture_output=True, text=True, timeout=200)
    assert (process.returncode, "cannot be joined" in process.stderr) == (1, True), process.stderr[-2000:]
