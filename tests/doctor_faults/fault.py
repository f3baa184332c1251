"""What a fault is: how it is induced, asked about and mended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


class CannotBeInduced(Exception):  # noqa: N818
    """This machine does not allow what the fault needs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What doctor said, its exit code and how long it took."""

    checks: Sequence[Mapping[str, Any]]
    code: int
    seconds: float


class Fault:
    """One fault; `check` is the name of the check that must come first."""

    name: ClassVar[str]
    check: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        """While entered the fault is there."""
        yield

    def ask(self) -> Answer:
        """Run doctor on it."""
        raise NotImplementedError

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        """While entered the `fix` is applied."""
        yield

    def speed(self) -> float | None:
        """Steps a second of a training that goes on; None of all else."""
        return None


def doctor(*arguments: object, environment: Mapping[str, str] | None = None, before: Sequence[str] = ()) -> Answer:
    """Run `voxstill doctor --json` as a command, behind the words of another one."""
    command = [*before, sys.executable, "-m", "voxstill", "doctor", *map(str, arguments), "--json"]
    variables = {**os.environ, **(environment or {})}
    start = time.perf_counter()
    process = subprocess.run(command, capture_output=True, text=True, env=variables, check=False, timeout=120)
    seconds = time.perf_counter() - start
    if not process.stdout:
        raise RuntimeError(process.stderr)
    return Answer(json.loads(process.stdout)["checks"], process.returncode, round(seconds, 2))
