"""The GPU benchmarks, rehearsed on a CPU with everything small: every part ends, and none with an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from voxstill.core import world

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def test_all_gpu_benchmarks_run_small_on_a_cpu(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    command = [str(ROOT / "benchmarks/gpu.sh"), "--rehearse", "--output", str(output)]
    environment = {**world.environment(), "PYTHON": sys.executable}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(output.read_text())
    assert figures["rehearsed"]
    parts = {name: part for name, part in figures.items() if isinstance(part, dict) and name != "machine"}
    assert parts.keys() == {"steps", "tf32", "compiled", "estimate", "pretrain", "decoding", "resume", "transfer"}
    assert {name: part["error"] for name, part in parts.items() if "error" in part} == {}
    assert parts["resume"]["last loss"]["difference"] < 1e-5
    assert parts["resume"]["steps"]["before"] < parts["resume"]["steps"]["whole"] == parts["resume"]["steps"]["after"]
