"""Classes and speakers are learnt from shards: counted, judged, frozen, resumed, and alike on two ranks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from checkpoints import write_waveform_checkpoint
from forked import call, forked
from seeds import seeded_random
from tones import write_voices
from training.train_once import classify_once, train_once
from voxstill.core.errors import DataError
from voxstill.nn import classifiers, students
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training.waits import SHARES

CLOCKS = {"seconds", "audio_seconds_per_second", "tokens_per_second", "tflops", "data_wait"}
QUICK = ("train.lr=3e-3", "train.validate_every=1000", "train.checkpoint_every=1000", "train.ascending_share=0")
SPEAKERS = "student.task=speakers"


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four words in four voices, three of them to learn from and another to judge by; three words of nobody known."""
    folder = tmp_path_factory.mktemp("voices")
    write_voices(Store(str(folder)), "shards/r", {"train": ("ann", "cas", "eve"), "dev": ("bob",)}, 3, unknown=3)
    return folder


@pytest.fixture(scope="module")
def wav2vec2(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint")
    return str(write_waveform_checkpoint(folder, "Wav2Vec2", norm="layer", head="ForPreTraining", masks=0.6))


def run_of(work: Path, path: Path, *overrides: str) -> RunDir:
    classify_once(str(work), str(path), *overrides)
    return RunDir(path)


def summary(run: RunDir) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(run.summary.read_text())
    return outcome


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(run.model / "model.safetensors")
    return tensors


def figures(run: RunDir) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines() if line.endswith("}")]
    return [{name: value for name, value in row.items() if name not in {*CLOCKS, *SHARES}} for row in rows]


def test_a_new_fast_conformer_classifies_words_of_an_unseen_speaker(voices: Path, tmp_path: Path) -> None:
    run = run_of(voices, tmp_path, *QUICK, "train.steps=30")
    outcome = summary(run)
    assert outcome["dev_error"] <= 0.4  # chance is 0.75
    assert outcome["utterances"] == 3 * 4 * 3 + 3  # their words are known
    assert classifiers.names_of(classifiers.load(run.model)) == ["ba", "du", "ko", "mi"]


def test_a_wav2vec2_classifies_words(voices: Path, wav2vec2: str, tmp_path: Path) -> None:
    start = f"student={{task: classes, checkpoint: {wav2vec2}, freeze_features: false}}"
    run = run_of(voices, tmp_path, *QUICK, start, "train.steps=60")
    rows = figures(run)
    assert rows[-2]["accuracy"] > 0.9
    assert rows[-2]["loss"] < 0.5 * rows[0]["loss"]


@pytest.mark.parametrize("input_kind", ["mels", "samples"])
def test_speakers_are_classified_and_new_ones_are_verified(tmp_path: Path, wav2vec2: str, input_kind: str) -> None:
    write_voices(Store(str(tmp_path)), "shards/r", {"train": ("ann", "cas", "dee", "fay"), "dev": ("bob", "eve")}, 3)
    start = f"student={{task: speakers, checkpoint: {wav2vec2}, freeze_features: false}}"
    run = run_of(tmp_path, tmp_path / "run", *QUICK, SPEAKERS if input_kind == "mels" else start, "train.steps=40")
    rows = figures(run)
    assert rows[-2]["accuracy"] > 0.8
    assert rows[-1]["trials"] == 24 * 23 // 2
    assert summary(run)["dev_eer"] == rows[-1]["eer"] < 0.45  # four voices teach little of others; chance is 0.5
    assert classifiers.load(run.model).config.target == "speaker"


def test_utterances_without_a_speaker_are_left_out_and_counted(voices: Path, tmp_path: Path) -> None:
    target = ("student.target=speaker", "train.steps=1")
    outcome = summary(run_of(voices, tmp_path, *QUICK, *target))
    assert outcome["dropped"]["without_a_class"] == 3
    assert outcome["utterances"] == 3 * 4 * 3
    assert outcome["dev_error"] is None  # its voice was never heard


def test_a_single_class_is_refused(voices: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too few classes"):
        run_of(voices, tmp_path, *QUICK, "student.target=language", "train.steps=1")


def test_a_training_killed_and_resumed_equals_an_undisturbed_one(voices: Path, wav2vec2: str, tmp_path: Path) -> None:
    settings = [
        f"student={{task: classes, checkpoint: {wav2vec2}, freeze_layers: 1.0}}",
        *("train.unfreeze_share=0.6", "train.steps=10", "train.lr=1e-3"),
    ]
    straight, run = run_of(voices, tmp_path / "straight", *settings), RunDir(tmp_path / "killed")
    wanted = seeded_random().randint(3, 6)  # what is left takes longer than to see it and to kill it
    with forked(classify_once, str(voices), str(run.path), *settings, log=tmp_path / "log") as process:
        while process.is_alive() and not (run.metrics.exists() and len(figures(run)) >= wanted):
            time.sleep(0.002)
    assert not run.summary.exists()
    classify_once(str(voices), str(run.path), *settings)
    one, two = weights(run), weights(straight)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert figures(run) == figures(straight)


def start_of(checkpoint: str) -> dict[str, torch.Tensor]:
    return load_file(Path(checkpoint) / "model.safetensors")


def changed(run: RunDir, checkpoint: str) -> set[str]:
    """What of the encoder is no longer as the checkpoint has it, layers by number."""
    before, changed_layers = start_of(checkpoint), set()
    for name, value in weights(run).items():
        if name in before and not torch.equal(value, before[name]):
            changed_layers.add(name.partition("encoder.layers.")[2].partition(".")[0] or name)
    return changed_layers


FROZEN = {
    "for good": (("student.freeze_layers=0.5",), {"1", "wav2vec2.encoder.layer_norm"}),
    "all of it": (("student.freeze_layers=1",), set()),
    "thawed from the top": (
        ("student.freeze_layers=1", "train.unfreeze_share=1.0"),
        {"1", "wav2vec2.encoder.layer_norm"},
    ),
    "thawed": (("student.freeze_layers=1", "train.unfreeze_share=0.5"), {"0", "1", "wav2vec2.encoder.layer_norm"}),
}


@pytest.mark.parametrize("way", FROZEN)
def test_frozen_layers_stay_to_the_bit_and_unfrozen_ones_learn(
    voices: Path, wav2vec2: str, tmp_path: Path, way: str
) -> None:
    overrides, expected = FROZEN[way]
    start = (f"student.checkpoint={wav2vec2}", "train.steps=6", "train.average_share=0.6", "train.weight_decay=0.1")
    run = run_of(voices, tmp_path, *QUICK, *start, *overrides)
    layers = {name.removesuffix(".weight").removesuffix(".bias") for name in changed(run, wav2vec2)}
    others = {name for name in layers if not (name.isdigit() or name.endswith("encoder.layer_norm"))}
    assert layers - others == expected
    assert bool(others) == (way == "thawed")  # what is beneath the layers
    assert not any("feature_extractor" in name for name in layers)  # `student.freeze_features`


def test_the_batch_norm_of_frozen_layers_counts_nothing(voices: Path, tmp_path: Path) -> None:
    folder = tmp_path / "start"
    students.build("tiny", 12, dropout=0.1, seed=3).save_pretrained(folder)
    start = (f"student.checkpoint={folder}", "train.steps=4", "train.validate_every=2", "student.freeze_layers=0.5")
    run = run_of(voices, tmp_path / "run", *QUICK[:1], *start)
    before, after = load_file(folder / "model.safetensors"), weights(run)
    same = {name: torch.equal(value, before[name]) for name, value in after.items() if name in before}
    for name, stayed in same.items():
        frozen = name.startswith(("encoder.subsampling.", "encoder.layers.0.", "encoder.layers.1."))
        if frozen or name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            assert stayed == frozen, name


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classes", "recognition"])
def test_two_ranks_freeze_and_unfreeze_like_one(voices: Path, wav2vec2: str, tmp_path: Path, task: str) -> None:
    start = [
        f"student={{task: {task}, checkpoint: {wav2vec2}, freeze_layers: 1.0, dropout: 0.0}}",
        *("plan.batches_per_step=2", "train.steps=6", "train.unfreeze_share=0.7", "train.lr=1e-3"),
    ]
    once = classify_once if task == "classes" else train_once
    one, two, still = (RunDir(tmp_path / name) for name in ("one", "two", "still"))
    once(str(voices), str(one.path), *start)
    ways: list[tuple[RunDir, list[str]]] = [(two, [])]
    if task == "classes":
        ways.append((still, ["train.unfreeze_share=0"]))
    for run, more in ways:
        call(once, str(voices), str(run.path), *start, *more, log=tmp_path / "log", ranks=2)
    assert {"0", "1"} <= changed(one, wav2vec2) == changed(two, wav2vec2)
    if task == "classes":  # in recognition each rank has masks and noise of its own
        assert not changed(still, wav2vec2)
        other = weights(two)
        assert all(torch.allclose(value, other[name], atol=1e-4) for name, value in weights(one).items())


def test_the_loss_of_a_class_counts_by_its_weight(voices: Path, tmp_path: Path) -> None:
    little = "{ba: 1e-6, du: 1e-6, ko: 1e-6, mi: 1e-6}"
    run = run_of(voices, tmp_path / "run", *QUICK, "train.steps=1", f"train.class_weights={little}")
    assert 0 < figures(run)[0]["loss"] < 1e-4
