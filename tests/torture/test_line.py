"""The whole line, out of a bucket and into it, while its processes are killed: every clip is there once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import forked
import loose_files
from torture import runs

pytestmark = pytest.mark.slow


class ForkedCommand:
    """A command that does not load again what is slow to load, with what the line asks of a `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._process = forked.start(forked.command, command, log=log)
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode


def test_a_line_whose_processes_are_killed_has_every_clip_once(
    torture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(loose_files.ROOT / "benchmarks"))
    line = loose_files.load("benchmarks/scale_line.py")
    if runs.SHARE is None:
        monkeypatch.setattr(line, "_start", ForkedCommand)
    num, kills = torture.count(short=2_000, full=100_000), torture.count(short=1, full=2)
    figures = line.measure(tmp_path, num, train_steps=torture.count(short=10, full=200), kills=kills)
    assert (figures["lost"], figures["doubled"]) == (0, 0)
    assert sum(step["kills"] for step in figures["steps"]) >= 3 * kills
    assert max(step["peak_mb"] for step in figures["steps"]) < 2_000
    torture.tell("SIGKILL in a line of a bucket", "; ".join(line.table(figures)))
