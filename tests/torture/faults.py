"""Commands in processes in which one write fails, or which are killed at one: `faults.c`, aimed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NO_FAULT = 0
KINDS = {"I/O error": 1, "full disk": 2, "short write": 3, "kill": 4}
TRANSFERS = ("write", "copy")


def points_of(points: list[str], kind: str) -> dict[int, str]:
    """The points where a fault of this kind can be, by the number under which `faults.c` counts them.

    An experiment gets a copy of the code, some hundred files into a draft: of these points the first and the last.
    """
    points = [point for point in points if "/waits/" not in point and "/control/" not in point]  # written by the clock
    if kind == "kill":
        counted = [point for point in points if "/tensorboard/" not in point]
    else:
        counted = [point for point in points if not point.startswith("remove ")]
    copied = [number for number, point in enumerate(counted, start=1) if "/src_backup/" in point]
    return {
        number: point
        for number, point in enumerate(counted, start=1)
        if (kind != "short write" or point.split()[0] in TRANSFERS) and number not in copied[1:-1]
    }


class Nursery:
    """The command line with a fault: `run` gives the exit code."""

    def __init__(self, folder: Path) -> None:
        shim = folder / "faults.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, HERE / "faults.c", "-ldl"], check=True)
        path = os.pathsep.join([str(HERE.parent), *sys.path[1:]])
        self._process = subprocess.Popen(
            [sys.executable, HERE / "nursery.py"],
            env=os.environ | {"LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def run(
        self, folder: Path, *arguments: object, at: int = 0, kind: int = NO_FAULT, target: str = "voxstill.cli"
    ) -> int:
        """The command with a fault at one write point below `folder`; words and points are beside it."""
        for name in ("said", "points"):
            folder.with_suffix(f".{name}").unlink(missing_ok=True)
        order = {"log": f"{folder}.said", "trace": f"{folder}.points", "below": str(folder), "at": at, "kind": kind}
        order["target"] = target
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order | {"arguments": [str(argument) for argument in arguments]}) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
