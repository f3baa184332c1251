"""All GPU benchmarks, rehearsed on a CPU, where a training is ended and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_rehearsal import rehearsed
from torture.runs import SHARE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SHARE is None, reason="the short form is in tests/test_gpu_script.py"),
]


def test_all_gpu_benchmarks_run_small_on_a_cpu(tmp_path: Path) -> None:
    parts = rehearsed(tmp_path / "gpu.json")
    assert parts.keys() == {
        "steps",
        "graphs",
        "tf32",
        "compiled",
        "estimate",
        "pretrain",
        "decoding",
        "resume",
        "transfer",
    }
    assert parts["resume"]["last loss"]["difference"] < 1e-5
    assert parts["resume"]["steps"]["before"] < parts["resume"]["steps"]["whole"] == parts["resume"]["steps"]["after"]
