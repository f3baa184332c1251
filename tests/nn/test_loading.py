"""Weights that do not fit their model are an error that names them, of every kind and wherever they are loaded."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import write_waveform_checkpoint, write_whisper_checkpoint
from voxstill.core.config import Pretrain, Student
from voxstill.core.errors import DataError
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.nn import checkpoints, classifiers, loading, self_supervised, students

Weights = dict[str, torch.Tensor]
Load = Callable[[Path], Any]


def started(folder: Path, **changes: Any) -> Any:
    """A student with a new vocabulary from a checkpoint."""
    options = {"keep_vocabulary": False, "dropout": None, "seed": 0, "kind": "ctc", "freeze_convolutions": True}
    return checkpoints.from_checkpoint(str(folder), 7, **{**options, **changes})


def classified(folder: Path) -> Any:
    return classifiers.new(Student(task="classes", checkpoint=str(folder)), ["a", "b"], 0, {})


def pretrained(folder: Path) -> Any:
    return self_supervised.wav2vec2(Pretrain(checkpoint=str(folder)), 0)


def recognized(folder: Path) -> None:
    Recognizer(RecognizerOptions(model=str(folder))).load()


LOADS: dict[str, tuple[str, str, Load]] = {
    "evaluate wav2vec2": ("wav2vec2", "wav2vec2.encoder.layers.0.attention.k_proj.weight", checkpoints.load),
    "train wav2vec2": ("wav2vec2", "wav2vec2.encoder.layers.0.attention.k_proj.weight", started),
    "classes wav2vec2": ("wav2vec2", "wav2vec2.encoder.layers.0.attention.k_proj.weight", classified),
    "train pretrained": ("pretrained", "wav2vec2.feature_extractor.conv_layers.0.conv.weight", started),
    "go on pretraining": ("pretrained", "quantizer.weight_proj.weight", pretrained),
    "pretrain wav2vec2": ("wav2vec2", "wav2vec2.encoder.layer_norm.weight", pretrained),
    "evaluate parakeet": ("ctc", "encoder.layers.0.self_attn.k_proj.weight", checkpoints.load),
    "evaluate its head": ("ctc", "ctc_head.weight", checkpoints.load),
    "train parakeet": ("ctc", "encoder.layers.0.self_attn.k_proj.weight", started),
    "classes parakeet": ("ctc", "encoder.layers.0.self_attn.k_proj.weight", classified),
    "evaluate transducer": ("tdt", "decoder.lstm.weight_hh_l0", checkpoints.load),
    "train transducer": ("tdt", "encoder.layers.0.self_attn.k_proj.weight", lambda path: started(path, kind="tdt")),
    "evaluate whisper": ("whisper", "model.encoder.conv1.weight", checkpoints.load),
    "train whisper": ("whisper", "model.decoder.embed_tokens.weight", lambda path: started(path, kind="seq2seq")),
    "label whisper": ("whisper", "model.encoder.conv1.weight", recognized),
    "evaluate classes": ("classes", "classifier.weight", classifiers.load),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each kind."""
    root: Path = tmp_path_factory.mktemp("models")
    for kind in ("ctc", "tdt"):
        students.build("tiny", 12, dropout=0.0, seed=0, kind=kind).save_pretrained(root / kind)
    classified(root / "ctc").save_pretrained(root / "classes")
    whisper = write_whisper_checkpoint(root / "whisper", ["abc def"])
    (whisper / "preprocessor_config.json").write_text('{"feature_extractor_type": "WhisperFeatureExtractor"}')
    return {
        "wav2vec2": write_waveform_checkpoint(root / "wav2vec2", "Wav2Vec2"),
        "pretrained": write_waveform_checkpoint(root / "pretrained", "Wav2Vec2", norm="layer", head="ForPreTraining"),
        "whisper": whisper,
        **{kind: root / kind for kind in ("ctc", "tdt", "classes")},
    }


def changed(source: Path, target: Path, change: Callable[[Weights], object]) -> Path:
    """A copy of a checkpoint with other weights."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("name", LOADS)
def test_weights_that_fit_are_loaded(folders: dict[str, Path], name: str) -> None:
    kind, _, load = LOADS[name]
    load(folders[kind])


@pytest.mark.parametrize("name", LOADS)
def test_a_weight_that_is_missing_unknown_or_of_another_shape_is_named(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    kind, key, load = LOADS[name]
    for about, change in {
        "missing": lambda weights: weights.pop(key),
        "unknown": lambda weights: weights.update({f"{key}s": torch.zeros(3)}),
        "of another shape": lambda weights: weights.update({key: weights[key][:1].clone()}),
    }.items():
        folder = changed(folders[kind], tmp_path / about, change)
        with pytest.raises(DataError, match="do not fit") as raised:
            load(folder)
        assert about in raised.value.why
        assert key.removeprefix("encoder.") in raised.value.why


def test_a_renamed_weight_is_named_by_both_names(folders: dict[str, Path], tmp_path: Path) -> None:
    def rename(weights: Weights) -> None:
        weights["wav2vec2.encoder.layer_norm.gain"] = weights.pop("wav2vec2.encoder.layer_norm.weight")

    folder = changed(folders["wav2vec2"], tmp_path / "renamed", rename)
    with pytest.raises(DataError) as raised:
        started(folder)
    assert "missing: `wav2vec2.encoder.layer_norm.weight`" in raised.value.why
    assert "unknown: `wav2vec2.encoder.layer_norm.gain`" in raised.value.why


def test_many_weights_that_do_not_fit_are_counted(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="do not fit") as raised:
        checkpoints.load(changed(folders["ctc"], tmp_path / "empty", dict.clear))
    assert " and 16" in raised.value.why


def test_a_vocabulary_that_is_kept_needs_its_head(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(folders["wav2vec2"], tmp_path / "headless", lambda weights: weights.pop("lm_head.bias"))
    started(folder)
    with pytest.raises(DataError, match="do not fit") as raised:
        checkpoints.from_checkpoint(
            str(folder), 31, keep_vocabulary=True, dropout=None, seed=0, kind="ctc", freeze_convolutions=False
        )
    assert "lm_head.bias" in raised.value.why


def test_the_vector_of_masked_frames_may_be_missing_and_old_names_are_known(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}

    def change(weights: Weights) -> None:
        weights.pop("wav2vec2.masked_spec_embed", None)
        for name in list(weights):
            for new, old in names.items():
                if new in name:
                    weights[name.replace(new, old)] = weights.pop(name)

    model = checkpoints.load(changed(folders["wav2vec2"], tmp_path / "old", change))
    wanted = checkpoints.load(folders["wav2vec2"]).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, wanted[name]) or "masked" in name


def test_the_digest_covers_every_file_of_weights_that_is_read(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "wav2vec2"
    shutil.copytree(folders["wav2vec2"], folder)
    whole = checkpoints.weights_digest(str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    assert checkpoints.weights_digest(str(folder)) == whole
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    digests = {whole}
    for name in ("model.safetensors.index.json", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin"):
        for content in (b"one", b"two"):
            (folder / name).write_bytes(content)
            digests.add(checkpoints.weights_digest(str(folder)))
    assert len(digests) == 7


def test_the_digest_of_safetensors_alone_is_that_of_earlier_versions(tmp_path: Path) -> None:
    for name, content in (("a", b"first"), ("model", b"second")):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    wanted = "2f3416032c534e1b3cd58f0e0528c5a8f57dea586b788b040c4fab0d37055d28"
    assert checkpoints.weights_digest(str(tmp_path)) == wanted


def test_a_flipped_bit_of_a_finished_student_is_an_error_and_sha256sum_knows_the_file(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "student"
    shutil.copytree(folders["ctc"], folder)
    loading.write_sums(folder)
    subprocess.run(["sha256sum", "--check", "--strict", loading.SUMS], cwd=folder, check=True, capture_output=True)
    checkpoints.load(folder)
    for load in (checkpoints.load, started, classified):
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (folder / "model.safetensors").write_bytes(data)
        with pytest.raises(DataError, match="is broken"):
            load(folder)
        data[-1] ^= 1
        (folder / "model.safetensors").write_bytes(data)
    (folder / "model.safetensors").unlink()
    assert loading.sum_faults(folder) == {"model.safetensors": "it is missing"}


def test_another_number_in_the_configuration_of_a_finished_student_is_an_error(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "student"
    shutil.copytree(folders["ctc"], folder)
    loading.write_sums(folder)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(re.sub(r'"dropout": [0-9.]+', '"dropout": 0.5', text))
    with pytest.raises(DataError, match=r"config\.json` is broken"):
        checkpoints.load(folder)
    (folder / loading.SUMS).unlink()
    checkpoints.load(folder)
    (folder / "config.json").write_text(re.sub(r'"dropout": [0-9.]+', '"dropout": 2.0', text))
    with pytest.raises(DataError) as caught:
        checkpoints.load(folder)
    assert "`dropout` of its config.json is 2.0" in str(caught.value.why)
