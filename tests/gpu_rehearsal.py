"""The GPU benchmarks, rehearsed on a CPU with everything small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from voxstill.core import world

ROOT = Path(__file__).parents[1]


def rehearsed(output: Path, *only: str) -> dict[str, dict[str, Any]]:
    """The figures of each part, or of these; none may end with an error."""
    command = [str(ROOT / "benchmarks/gpu.sh"), "--rehearse", "--output", str(output)]
    command += ["--only", *only] if only else []
    environment = {**world.environment(), "PYTHON": sys.executable}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(output.read_text())
    assert figures["rehearsed"]
    parts = {name: part for name, part in figures.items() if isinstance(part, dict) and name != "machine"}
    assert {name: part["error"] for name, part in parts.items() if "error" in part} == {}
    return parts
