"""The GPU benchmarks, rehearsed on a CPU with everything small: their parts end, and none with an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_rehearsal import rehearsed

pytestmark = pytest.mark.slow


def test_gpu_benchmarks_run_small_on_a_cpu(tmp_path: Path) -> None:
    """But for TF32 and `compiled`, which are `steps` with another setting, and resuming; tests/torture has all."""
    quick = ("steps", "estimate", "pretrain", "decoding", "transfer")
    assert rehearsed(tmp_path / "gpu.json", *quick).keys() == {*quick}
