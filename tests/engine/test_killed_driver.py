from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seeds import seeded_random

DRIVER = Path(__file__).parents[1] / "torture" / "killed_driver.py"


@pytest.mark.slow
def test_a_run_whose_driver_was_killed_twice_ends_with_the_same_bytes_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    def start(folder: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment["VOXSTILL_TORTURE"] = str(tmp_path)  # every process of the run inherits it: how we find them
        return subprocess.Popen(
            [sys.executable, str(DRIVER), str(tmp_path / folder)], stdout=subprocess.PIPE, text=True, env=environment
        )

    def files(folder: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / folder).glob("*.parquet")}

    def processes() -> list[str]:
        """All but Ray's two agents, idle ones that may wait a minute for a server that was killed, and then end."""
        mark = f"VOXSTILL_TORTURE={tmp_path}".encode()
        marked = [path.parent for path in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(path)]
        names = [_bytes(folder / "cmdline").replace(b"\0", b" ").decode().strip() for folder in marked]
        return [name for name in names if name and name not in {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}]

    assert start("undisturbed").wait(120) == 0
    chance = seeded_random()
    for targets in ((0, 5), (5, 13)):
        target = chance.randint(*targets)
        driver = start("killed")
        deadline = time.monotonic() + 60
        while len(files("killed")) < target and driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(chance.random())
        driver.kill()
        driver.wait()
    before = files("killed")
    assert start("killed").wait(120) == 0
    assert files("killed") == files("undisturbed")
    assert len(before) < 15 or before == files("killed")
    deadline = time.monotonic() + 20
    while (survivors := processes()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert survivors == []


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""
