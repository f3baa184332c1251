"""Copies of changed weights: whole again to the bit with their base, and refused with another one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import write_whisper_checkpoint
from tones import TEXTS
from training.train_once import train_once
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.decoding.checkpoint_files import model_folder
from voxstill.nn import loading
from voxstill.storage.rundir import RunDir
from voxstill.training import changes
from voxstill.training.check import check


def write_model(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text("{}")
    loading.write_sums(folder)
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    weights = {"same": torch.randn(40, 40), "changed": torch.randn(4), "gone": torch.ones(2), "shape": torch.ones(3)}
    return write_model(tmp_path / "base", weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_copy_and_its_base_are_the_model_to_the_bit_in_any_precision(
    base: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    before = load_file(base / "model.safetensors")
    now = {
        "same": before["same"].to(dtype),
        "changed": (before["changed"] + 1).to(dtype),
        "shape": torch.ones(1, 3, dtype=dtype),
        "new": torch.arange(3),
    }
    whole, copy = write_model(tmp_path / "whole", now), tmp_path / "copy"
    shutil.copytree(whole, copy)
    changes.keep_changes(copy, str(base))
    assert load_file(copy / changes.NAME).keys() == {"changed", "shape", "new"}
    assert {path.name for path in copy.iterdir()} == {changes.NAME, "config.json", loading.SUMS}
    assert not loading.sum_faults(copy)
    moved = tmp_path / "moved"
    base.rename(moved)
    changes.restore(copy, tmp_path / "restored", str(moved))
    restored = load_file(tmp_path / "restored" / "model.safetensors")
    assert restored.keys() == now.keys()
    assert all(restored[name].dtype == now[name].dtype and torch.equal(restored[name], now[name]) for name in now)
    assert not loading.sum_faults(tmp_path / "restored")
    assert (tmp_path / "restored" / "config.json").read_text() == "{}"


def test_another_base_a_broken_copy_and_no_copy_are_refused(base: Path, tmp_path: Path) -> None:
    copy, output = tmp_path / "copy", tmp_path / "output"
    shutil.copytree(base, copy)
    with pytest.raises(DataError, match="no copy of changed weights"):
        changes.restore(copy, output)
    changes.keep_changes(copy, str(base))
    with pytest.raises(ConfigError, match="not a complete model"):
        model_folder(str(copy))
    other = write_model(tmp_path / "other", load_file(base / "model.safetensors") | {"same": torch.zeros(40, 40)})
    with pytest.raises(DataError, match="not the base"):
        changes.restore(copy, output, str(other))
    shutil.rmtree(base)
    with pytest.raises(ConfigError, match="no weights to compare"):
        changes.restore(copy, output)
    (copy / "config.json").write_text("{ }")
    with pytest.raises(DataError, match="broken"):
        changes.restore(copy, output, str(other))
    assert not output.exists()


def test_a_training_needs_a_base_with_safetensors(tmp_path: Path) -> None:
    for student, match in (({}, "nothing to compare"), ({"checkpoint": str(tmp_path)}, "no weights to compare")):
        cfg = Config.model_validate({"student": student, "train": {"steps": 1, "export_changes": True}})
        with pytest.raises(ConfigError, match=match):
            check(cfg)


def test_the_copies_of_a_training_are_uploaded_and_whole_again(work: Path, tmp_path: Path) -> None:
    from transformers import WhisperForConditionalGeneration

    base = write_whisper_checkpoint(tmp_path / "base", TEXTS, layers=(2, 1))
    run, bucket = RunDir(tmp_path / "run"), tmp_path / "bucket"
    train_once(
        str(work),
        str(run.path),
        "train.steps=2",
        f"student={{checkpoint: {base}, kind: seq2seq, freeze_layers: 1}}",
        "train.export_changes=true",
        f"train.upload={bucket}",
    )
    name = run.last.resolve().name
    copy = bucket / run.path.name / "exports" / name
    assert not (copy / "model.safetensors").exists()
    assert not [weight for weight in load_file(copy / changes.NAME) if weight.startswith("model.encoder")]
    changes.restore(copy, tmp_path / "whole")
    model, info = WhisperForConditionalGeneration.from_pretrained(
        tmp_path / "whole", local_files_only=True, output_loading_info=True
    )
    assert not any(info.values())
    weights = load_file(run.last / "model.safetensors")
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert model.generation_config.begin_suppress_tokens is None
