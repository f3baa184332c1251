"""The whole line, out of a bucket and into it, while its processes are killed: every clip is there once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import loose_files

pytestmark = pytest.mark.slow


def test_a_line_whose_processes_are_killed_has_every_clip_once(
    torture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(loose_files.ROOT / "benchmarks"))
    line = loose_files.load("benchmarks/scale_line.py")
    num, kills = torture.count(short=2_000, full=100_000), torture.count(short=1, full=2)
    figures = line.measure(tmp_path, num, train_steps=torture.count(short=10, full=200), kills=kills)
    assert (figures["lost"], figures["doubled"]) == (0, 0)
    assert sum(step["kills"] for step in figures["steps"]) >= 3 * kills
    assert max(step["peak_mb"] for step in figures["steps"]) < 2_000
    torture.tell("SIGKILL in a line of a bucket", "; ".join(line.table(figures)))
