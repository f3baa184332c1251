from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seeds import seeded_random
from waiting import until

DRIVER = Path(__file__).parents[1] / "torture" / "killed_driver.py"


@pytest.mark.slow
def test_a_run_whose_driver_was_killed_twice_ends_with_the_same_bytes_and_leaves_no_process(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    drivers: list[subprocess.Popen[bytes]] = []
    request.addfinalizer(lambda: [driver.kill() for driver in drivers])

    def start(folder: str, *name: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment["VOXSTILL_TORTURE"] = str(tmp_path)  # every process of the run inherits it: how we find them
        command = [sys.executable, str(DRIVER), str(tmp_path / folder), *name]
        drivers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment))
        return drivers[-1]

    def files(folder: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / folder).glob("*.parquet")}

    def processes() -> list[str]:
        """All but Ray's two agents, idle ones that may wait a minute for a server that was killed, and then end."""
        mark = f"VOXSTILL_TORTURE={tmp_path}".encode()
        marked = [path.parent for path in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(path)]
        names = [_bytes(folder / "cmdline").replace(b"\0", b" ").decode().strip() for folder in marked]
        return [name for name in names if name and name not in {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}]

    assert start("undisturbed", "inline").wait(120) == 0
    chance = seeded_random()
    for targets in ((0, 5), (5, 13)):
        target = chance.randint(*targets)
        driver = start("killed")
        until(lambda: len(files("killed")) >= target or driver.poll() is not None)  # noqa: B023
        time.sleep(chance.random())
        driver.kill()
        driver.wait()
    before = files("killed")
    assert start("killed").wait(120) == 0
    assert files("killed") == files("undisturbed")
    assert len(before) < 15 or before == files("killed")
    until(lambda: not processes(), every_s=0.5)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""
