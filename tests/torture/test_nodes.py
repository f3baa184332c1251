"""A node of the cluster dies, or its head: labelling finishes, or goes on afterwards to the same bytes."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from seeds import seeded_random
from torture import runs

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
NUM = 60 if runs.SHARE is None else 120
ECHO = {"name": "echo", "substitute": 0.1, "delay_ms": 250}
ENGINE = {"chunk": 3, "workers": 2, "teachers": 2, "attempts": 1000, "lease_s": 8.0}
OTHER = "raylet of the other node"
VICTIMS = {
    OTHER: (OTHER,),
    "head": ("gcs_server of the head", "raylet of the head"),
    "server of the head": ("gcs_server of the head",),
    "raylet of the head": ("raylet of the head",),
}


@contextmanager
def cluster(token: str) -> Iterator[dict[str, Any]]:
    """Two nodes: the address, and the processes that can be killed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, HERE / "cluster.py"],
        env=environment | access(token),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        runs.end(process)


def access(token: str) -> dict[str, str]:
    """What a process needs to join; the last says that the cluster is on loopback, under Linux too."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def test_a_cluster_that_loses_a_node_or_its_head_ends_with_the_same_bytes(torture: Any, tmp_path: Path) -> None:
    chance, token = seeded_random(), secrets.token_hex(32)
    source = runs.corpus(tmp_path / "audio", NUM)
    calm, log = tmp_path / "calm", tmp_path / "log"
    config = runs.configure(calm, source, teacher=ECHO, engine={"name": "inline", "chunk": ENGINE["chunk"]})
    runs.finish("index", source, "--work", calm / "work", "--config", config, log=log)
    shutil.copytree(calm, tmp_path / "indexed")
    runs.finish("label", calm / "work", "--config", config, log=log)
    outcomes: Counter[str] = Counter()
    for number in range(torture.count(short=1, full=30)):
        folder, victim = tmp_path / f"round{number}", list(VICTIMS)[number % len(VICTIMS)]
        shutil.copytree(tmp_path / "indexed", folder)
        with cluster(token) as nodes:
            engine = ENGINE | {"name": "ray", "address": nodes["address"]}
            command = (
                "label",
                folder / "work",
                "--config",
                runs.configure(folder, source, teacher=ECHO, engine=engine),
            )
            process = runs.start(*command, log=log, **access(token))
            try:
                deadline, target = time.monotonic() + 90, chance.randint(1, 12)
                while len(list(folder.glob("work/labels/*/*.parquet"))) < target:
                    assert process.poll() is None, log.read_text()[-3000:]
                    assert time.monotonic() < deadline, "no label within 90 s"
                    time.sleep(0.02)
                for name in VICTIMS[victim]:
                    os.kill(nodes["pids"][name], signal.SIGKILL)
                assert process.poll() is None, "too late: everything was labelled"
                code = process.wait(240)
            finally:
                runs.end(process)
        if code != 0:  # the head or the driver's own node is gone: the same command goes on, on another cluster
            assert victim != OTHER, log.read_text()[-3000:]
            with cluster(token) as nodes:
                engine = ENGINE | {"name": "ray", "address": nodes["address"]}
                runs.configure(folder, source, teacher=ECHO, engine=engine)
                runs.finish(*command, log=log, **access(token))
        assert runs.kept(folder / "work") == runs.kept(calm / "work")
        ids = [row.utterance_id for row in runs.labels(str(folder / "work"))]
        assert sorted(ids) == [f"u{i:05}" for i in range(NUM)]
        outcomes[f"{victim}: {f'resumed after exit {code}' if code else 'finished'}"] += 1
        shutil.rmtree(folder)
    torture.tell("SIGKILL of a raylet or of the head", f"{outcomes.total()} kills: {dict(outcomes)}")
