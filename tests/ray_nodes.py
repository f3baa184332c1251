"""Nodes of a Ray cluster on loopback, started as people start them and ended with the test."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

RAY = Path(sys.executable).with_name("ray")


def cluster_environment() -> dict[str, str]:
    """This environment without what it has of Ray, and with a token."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return environment | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def node(*options: str, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
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


def listens(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
