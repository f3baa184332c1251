"""What a training shows of its speed."""

from __future__ import annotations

import time
from pathlib import Path

from voxstill.storage.rundir import RunDir
from voxstill.training.meter import Meter
from voxstill.training.state import State


def test_the_rate_is_that_of_the_steps_after_the_first(tmp_path: Path) -> None:
    meter = Meter(RunDir(tmp_path), writes=False, state=State(), ranks=1)
    assert meter.steps_per_s == 0
    meter.count([], 1.0, {})
    assert meter.steps_per_s == 0
    begin = time.perf_counter()
    time.sleep(0.05)
    meter.count([], None, {})
    meter.count([], 1.0, {})
    assert 0 < meter.steps_per_s <= 2 / 0.05
    assert meter.steps_per_s > 0.5 / (time.perf_counter() - begin)
