"""What cannot fit into memory is refused before the first step, with what would fit; what fits is never refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from training.train_once import SETTINGS, train_once
from voxstill.core import config
from voxstill.core.errors import TrainingError
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks import recognition
from voxstill.training import fits
from voxstill.training.setup import TrainingSetup

CPU = torch.device("cpu")


class OneProcess:
    global_rank, world_size = 0, 1

    def rank_zero_first(self) -> Any:
        return torch.no_grad()


def setup_of(work: Path, folder: Path, *overrides: str) -> tuple[TrainingSetup, config.Config]:
    cfg = config.load(None, [f"work={work}", *SETTINGS, "train.steps=1", "train.optimizer=adamw", *overrides])
    one: Any = OneProcess()
    return recognition.build(one, cfg, RunDir(folder), Store(str(work)), "shards/r"), cfg


def refused(
    setup: TrainingSetup,
    cfg: config.Config,
    num_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device = CPU,
) -> TrainingError:
    monkeypatch.setattr(fits, "device_bytes", lambda *_: num_bytes)
    with pytest.raises(TrainingError) as error:
        fits.refuse_what_cannot_fit(setup, cfg, device, 1)
    return error.value


def test_a_training_that_needs_more_than_there_is_is_refused_with_a_budget_that_fits(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, cfg = setup_of(work, tmp_path, "plan.budget_ms=60000")
    plan = setup.data.plan(0, ascending=True)
    footprint = fits.footprint_of(setup.model, setup.task, cfg, plan, 1, "fp32")
    needed = int(footprint.least(fits.Shapes.of_plan(plan)).max())
    monkeypatch.setattr(fits, "PROCESS_BYTES", 0)
    error = refused(setup, cfg, needed - 1, monkeypatch)
    assert "the training needs" in error.what
    assert "activations" in error.why
    budget_ms = int(error.fix.partition("`plan.budget_ms` to ")[2].partition(";")[0])
    assert 0 < budget_ms < 60_000
    smaller, cfg = setup_of(work, tmp_path, f"plan.budget_ms={budget_ms}")
    fits.refuse_what_cannot_fit(smaller, cfg, CPU, 1)  # what it proposes it does not refuse


def test_what_just_fits_is_not_refused(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup, cfg = setup_of(work, tmp_path, "plan.budget_ms=60000")
    plan = setup.data.plan(0, ascending=True)
    footprint = fits.footprint_of(setup.model, setup.task, cfg, plan, 1, "fp32")
    needed = int(footprint.least(fits.Shapes.of_plan(plan)).max())
    monkeypatch.setattr(fits, "device_bytes", lambda *_: needed)
    fits.refuse_what_cannot_fit(setup, cfg, CPU, 1)


def test_a_model_that_one_device_cannot_hold_is_refused_with_how_many_share_it(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, cfg = setup_of(work, tmp_path, "plan.budget_ms=6000")
    monkeypatch.setattr(fits, "PROCESS_BYTES", 0)
    error = refused(setup, cfg, 26 << 20, monkeypatch, torch.device("cuda", 0))  # 22 to 30 MiB: two share it
    assert "train on 2 GPUs or more (`train.devices: 2` and `train.shard_above: 0`)" in error.fix
    assert "plan.budget_ms" not in error.fix
    error = refused(setup, cfg, 26 << 20, monkeypatch)
    assert "train.devices" not in error.fix  # processes of one machine share its memory


def test_train_refuses_before_its_first_step(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "device_bytes", lambda *_: 1 << 20)
    run = RunDir(tmp_path / "run")
    with pytest.raises(TrainingError, match=r"has 1\.0 MiB"):
        train_once(str(work), str(run.path), "train.steps=2")
    assert not run.metrics.exists()
    assert not run.checkpoints.exists()


def test_a_model_that_cannot_be_made_for_its_shapes_is_left_to_the_loop(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, cfg = setup_of(work, tmp_path, "plan.budget_ms=6000")
    monkeypatch.setattr(fits, "device_bytes", lambda *_: 10 << 20)
    setup.model.encoder.layers[0].forward = None
    fits.refuse_what_cannot_fit(setup, cfg, CPU, 1)


def test_proposals_leave_room_for_the_process_and_its_allocator() -> None:
    for on_gpu in (True, False):
        safe = fits.safe_bytes(8 << 30, on_gpu=on_gpu)
        least, most = fits.process_bytes(safe, on_gpu=on_gpu)
        assert least < most <= 8 << 30
    assert fits.safe_bytes(1 << 20, on_gpu=True) == 0
