"""Copies of checkpoints in half precision: small, whole, and uploaded while the training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training.train_once import train_once
from voxstill.core.config import Train, identity
from voxstill.storage.rundir import RunDir
from voxstill.training.exports import Exports, in_half


def test_each_checkpoint_has_a_copy_that_transformers_loads_and_that_is_uploaded(work: Path, tmp_path: Path) -> None:
    from transformers import ParakeetForCTC

    run, target = RunDir(tmp_path / "run"), tmp_path / "bucket"
    options = ("train.steps=4", "train.keep_best=1", "train.export_dtype=fp16", f"train.upload={target}")
    train_once(str(work), str(run.path), *options)
    names = {path.name for path in run.checkpoints.glob("epoch=*")}
    assert names == {path.name for path in run.exports.iterdir()}
    copy = run.exports / run.last.resolve().name / "model"
    weights, halves = (load_file(folder / "model.safetensors") for folder in (run.last, copy))
    assert {value.dtype for value in halves.values() if value.is_floating_point()} == {torch.float16}
    for name, value in halves.items():
        assert torch.equal(value, weights[name].to(value.dtype))
    ParakeetForCTC.from_pretrained(copy, local_files_only=True)
    whole, half = ((folder / "model.safetensors").stat().st_size for folder in (run.last, copy))
    assert half < 0.6 * whole
    uploaded = target / run.path.name / "exports" / copy.parent.name
    assert {path.name for path in uploaded.iterdir()} == {path.name for path in copy.iterdir()}
    assert (uploaded / "model.safetensors").read_bytes() == (copy / "model.safetensors").read_bytes()


def test_a_copy_that_cannot_be_uploaded_is_told_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    run = RunDir(tmp_path / "run")

    def save(copy: RunDir, weights: dict[str, torch.Tensor]) -> None:
        copy.model.mkdir(parents=True)
        (copy.model / "model.safetensors").write_bytes(b"x" * len(weights))

    run.checkpoint(0, 1).mkdir(parents=True)
    with Exports(run, Train(export_dtype="bf16", upload=str(tmp_path / "file" / "below")), save) as exports:
        exports.add("epoch=0-step=1", {"a": torch.ones(2)})
    assert (run.exports / "epoch=0-step=1" / "model").is_dir()
    assert "was not uploaded" in caplog.text


def test_without_the_option_nothing_is_copied(tmp_path: Path) -> None:
    with Exports(RunDir(tmp_path), Train(), lambda *_: None) as exports:
        assert not exports.are_wanted
    assert identity(Train(export_dtype="fp16")) == identity(Train())


def test_what_half_precision_cannot_hold_stays_and_shared_weights_stay_shared() -> None:
    one = torch.full((2,), 0.1)
    weights = {"a": one, "b": one, "large": torch.tensor([1e6]), "count": torch.tensor([3])}
    half = in_half(weights, torch.float16)
    assert half["a"].dtype == torch.float16
    assert half["a"] is half["b"]
    assert (half["large"].dtype, half["count"].dtype) == (torch.float32, torch.int64)
    assert in_half(weights, torch.bfloat16)["large"].dtype == torch.bfloat16
