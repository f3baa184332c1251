"""What is frozen is the bottom of the encoder, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from checkpoints import write_waveform_checkpoint, write_whisper_checkpoint
from voxstill.core.config import Student
from voxstill.nn import checkpoints, classifiers, students
from voxstill.nn.freezing import freeze


def held(model: Any) -> set[str]:
    return {name for name, weight in model.named_parameters() if not weight.requires_grad}


def fast_conformer() -> Any:
    return students.build("tiny", 9, dropout=0.3, seed=0)


def test_layers_are_frozen_from_the_bottom_with_what_is_beneath_them() -> None:
    for share, num in ((0.1, 0), (0.25, 1), (1 / 3, 1), (0.5, 2), (1.0, 4)):
        model = fast_conformer()
        freeze(model, share, 0.0)
        lowest = tuple(f"encoder.layers.{i}." for i in range(num))
        beneath = ("encoder.subsampling.",) if num else ()
        assert held(model) == {name for name, _ in model.named_parameters() if name.startswith((*lowest, *beneath))}


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_the_norm_of_all_layers_goes_with_what_it_stands_beside(tmp_path: Path, norm: str) -> None:
    folder = str(write_waveform_checkpoint(tmp_path, "Wav2Vec2", norm=norm))
    wanted = Student(task="classes", checkpoint=folder, freeze_features=False)
    half, whole = (classifiers.new(wanted, ["a", "b"], 0, {}) for _ in range(2))
    freeze(half, 0.5, 0.0)
    base = {name for name, _ in half.named_parameters() if name.startswith("wav2vec2.")}
    above = {name for name in base if name.startswith("wav2vec2.encoder.layers.1.")}
    if norm == "layer":
        above |= {name for name in base if name.startswith("wav2vec2.encoder.layer_norm.")}
    assert held(half) == base - above
    freeze(whole, 1.0, 0.0)
    assert held(whole) == base


def test_a_whisper_keeps_its_decoder(tmp_path: Path) -> None:
    folder = str(write_whisper_checkpoint(tmp_path, ["a b"]))
    wanted: dict[str, Any] = {
        "keep_vocabulary": True,
        "dropout": None,
        "seed": 0,
        "kind": "seq2seq",
        "freeze_convolutions": True,
    }
    model = checkpoints.from_checkpoint(folder, 9, **wanted)
    freeze(model, 1.0, 0.0)
    assert held(model) == {name for name, _ in model.named_parameters() if name.startswith("model.encoder.")}


def test_what_is_frozen_has_no_dropout_and_counts_nothing_until_it_is_unfrozen() -> None:
    model = fast_conformer().train()
    frozen = freeze(model, 1.0, 0.5)
    features_BFD, mask_BF = torch.randn(2, 160, 80), torch.ones(2, 160, dtype=torch.bool)

    def encoded() -> torch.Tensor:
        out: torch.Tensor = model.encoder(features_BFD, mask_BF).last_hidden_state
        return out

    frozen.set_modes(0.0)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert torch.equal(encoded(), encoded())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    frozen.set_modes(0.49)  # three of four layers
    assert not torch.equal(encoded(), encoded())
    counted = [
        not torch.equal(buffer, before[name]) for name, buffer in model.named_buffers() if name.endswith("running_mean")
    ]
    assert counted == [False, True, True, True]
    frozen.set_modes(0.5)
    encoded()
    assert all(module.training for module in model.modules())


def test_gradients_are_dropped_until_the_layer_is_unfrozen() -> None:
    model = fast_conformer()
    frozen = freeze(model, 1.0, 0.8)
    assert not held(model)  # all take part, so that ranks do not wait for each other
    layers = model.encoder.layers

    def learns(module: nn.Module) -> bool:
        return all(weight.grad is not None for weight in module.parameters())

    for progress, thawed in ((0.0, 0), (0.19, 0), (0.2, 1), (0.5, 2), (0.79, 3), (0.8, 4), (1.0, 4)):
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        frozen.drop_gradients(progress)
        assert [learns(layer) for layer in layers] == [i >= 4 - thawed for i in range(4)]
        assert learns(model.encoder.subsampling) == (thawed == 4)
        assert learns(model.ctc_head)
