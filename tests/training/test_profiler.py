"""`train.profile`: a trace of some steps after the warm-up, and nothing where it is off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from voxstill.core.config import Train, identity
from voxstill.storage.rundir import RunDir
from voxstill.training.profiler import WARM_UP_STEPS, StepProfiler


def profiled(
    run: RunDir, num_steps: int | None, *, trained_steps: int, first: int = 0, validates_after: int = 0
) -> list[str]:
    """Names of the traces that a training of some steps from `first` on leaves."""
    weight = torch.ones(4, 4, requires_grad=True)
    with StepProfiler(run, num_steps, first) as profiler:
        for step in range(first, first + trained_steps):
            profiler.before_step(step)
            (weight @ weight).sum().backward()
            if step + 1 == validates_after:
                profiler.end()
                torch.linalg.qr(weight)
    return sorted(path.name for path in run.profile.glob("*"))


def events(run: RunDir, name: str) -> list[str]:
    trace = json.loads((run.profile / name).read_text())
    return [event["name"] for event in trace["traceEvents"]]


def test_steps_after_the_warm_up_are_traced_and_no_others(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert profiled(run, 3, trained_steps=WARM_UP_STEPS + 9) == ["steps=11-13.json"]
    names = events(run, "steps=11-13.json")
    assert [name for name in names if name.startswith("step ")] == ["step 11", "step 12", "step 13"]
    assert names.count("aten::mm") == 3 * 3  # forward, and two in the backward pass


@pytest.mark.parametrize(
    ("trained_steps", "validates_after"), [(WARM_UP_STEPS + 2, 0), (WARM_UP_STEPS + 9, WARM_UP_STEPS + 2)]
)
def test_a_trace_that_is_ended_before_has_the_steps_made_until_then(
    tmp_path: Path, trained_steps: int, validates_after: int
) -> None:
    run = RunDir(tmp_path)
    assert profiled(run, 5, trained_steps=trained_steps, validates_after=validates_after) == ["steps=11-12.json"]
    names = events(run, "steps=11-12.json")
    assert names.count("aten::mm") == 3 * 2
    assert "aten::linalg_qr" not in names


def test_a_training_that_goes_on_warms_up_again(tmp_path: Path) -> None:
    assert profiled(RunDir(tmp_path), 1, first=100, trained_steps=WARM_UP_STEPS + 2) == ["steps=111-111.json"]


@pytest.mark.parametrize(("num_steps", "trained_steps", "warns"), [(None, 30, False), (5, WARM_UP_STEPS, True)])
def test_without_a_trace_nothing_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_steps: int | None, trained_steps: int, warns: bool
) -> None:
    assert profiled(RunDir(tmp_path), num_steps, trained_steps=trained_steps) == []
    assert not RunDir(tmp_path).profile.exists()
    assert ("no step was profiled" in caplog.text) == warns


def test_a_profiled_training_is_the_same_training() -> None:
    assert identity(Train(profile=5)) == identity(Train())
