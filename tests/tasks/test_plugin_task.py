"""A task that another package brings in one file is trained, validated, saved, judged and replayed as ours are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tasks.tagging import TagEncoder
from tones import PITCH_HZ, batch_of, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.evaluation import results
from voxstill.nn import classifiers
from voxstill.nn.log_mel import LogMel
from voxstill.tasks import registry
from voxstill.training import guard
from voxstill.training.task import StepContext

SETTINGS = """
work: {folder}/work
engine: inline
source: {{dev_share: 0, test_share: 0}}
student: {{task: tagging}}
plan: {{budget_ms: 8000}}
augment: {{noise_prob: 0.0, tempo: 0.0, warp: 0.0, time_masks: 0, mel_masks: 0}}
train: {{steps: 60, optimizer: adamw, lr: 3e-3, loader_workers: 0, seed_mode: debug, validate_every: 30,
  root: {folder}/exp}}
"""
COUNTS = {"train": 48, "dev": 9, "test": 15}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the task, as pip would leave it."""
    about = tmp_path / "site" / "voxstill_tagging-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: voxstill-tagging\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[voxstill.tasks]\ntagging = tasks.tagging:TAGGING\n")
    monkeypatch.syspath_prepend(str(about.parent))


def write_corpus(folder: Path) -> dict[str, dict[Path, str]]:
    """A manifest of utterances with one to three tags each; by split, the file of each and its text."""
    random, files = np.random.default_rng(0), dict[str, dict[Path, str]]()
    rows = []
    for split, num in COUNTS.items():
        for i in range(num):
            text = " ".join(random.permutation(list(PITCH_HZ))[: random.integers(1, 4)])
            path = folder / f"{split}-{i}.flac"
            path.write_bytes(codec.encode(speak(text, len(rows))[0], "flac"))
            rows.append({"id": f"{split}-{i}", "audio": path.name, "text": text, "split": split})
            files.setdefault(split, {})[path] = text
    (folder / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def counted(model: Any, files: dict[Path, str]) -> dict[str, float]:
    """Exact matches and F1, counted tag by tag from the files themselves."""
    names, true, false, missed, exact = classifiers.names_of(model), 0, 0, 0, 0
    for path, text in files.items():
        samples_T = codec.decode(path.read_bytes()).samples_T
        features, frames = LogMel()(torch.from_numpy(samples_T)[None], torch.tensor([len(samples_T)]))
        with torch.no_grad():
            prob_C = model(input_features=features, attention_mask=torch.ones(1, int(frames)))[0].sigmoid()[0]
        errors = 0
        for name, prob in zip(names, prob_C.tolist(), strict=True):
            true += prob > 0.5 and name in text.split()
            false += prob > 0.5 and name not in text.split()
            missed += prob <= 0.5 and name in text.split()
            errors += (prob > 0.5) != (name in text.split())
        exact += errors == 0
    return {"exact_match": exact / len(files), "f1": true / (true + (false + missed) / 2)}


def test_several_tags_for_each_utterance_are_a_task_in_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "tagging" in registry.names()
    files = write_corpus(tmp_path)
    config = tmp_path / "my.yaml"
    config.write_text(SETTINGS.format(folder=tmp_path))
    run(capsys, "shard", str(tmp_path / "work"), "--from", str(tmp_path / "all.jsonl"), "--config", str(config))
    trained = run(capsys, "train", str(config))
    assert (trained["steps"], trained["loss_unit"]) == (60, "utterances")
    folder = Path(trained["path"])
    judged = run(capsys, "evaluate", trained["path"], "--on", "test")
    assert (judged["task"], judged["utterances"]) == ("tagging", COUNTS["test"])

    model = classifiers.load(folder / "model").eval()
    for name, value in counted(model, files["test"]).items():
        assert judged[name] == pytest.approx(value), name
    assert judged["f1"] > 0.8  # to say every tag each time is 0.67
    [result] = results.read_all(folder / "evaluation")
    assert result.figures["f1"] == judged["f1"]
    assert len((result.path / "tags.jsonl").read_text().splitlines()) == COUNTS["test"]

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    dev = [row for row in rows if row.get("split") == "dev"]
    assert [row["step"] for row in dev] == [30, 60, 60]
    for name, value in counted(model, files["dev"]).items():
        assert dev[-1][name] == pytest.approx(value), name
    assert trained["dev_error"] == min(row["error"] for row in dev)


def test_its_folder_is_no_recogniser_and_the_same_training_again_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path)
    config = tmp_path / "my.yaml"
    config.write_text(SETTINGS.format(folder=tmp_path))
    run(capsys, "shard", str(tmp_path / "work"), "--from", str(tmp_path / "all.jsonl"), "--config", str(config))
    few = ("--set", "train.steps=2")
    trained = run(capsys, "train", str(config), *few)
    before = load_file(Path(trained["path"]) / "model" / "model.safetensors")
    assert run(capsys, "train", str(config), *few) == trained
    after = load_file(Path(trained["path"]) / "model" / "model.safetensors")
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert registry.name_of(trained["path"]) == "tagging"
    assert cli.main(["transcribe", trained["path"], str(tmp_path / "test-0.flac")]) == 2
    assert "its task is `tagging`" in capsys.readouterr().err

    path = tmp_path / "saved.safetensors"
    batch: Any = batch_of(TagEncoder(sorted(PITCH_HZ)))  # type: ignore[arg-type]
    guard.save(path, [batch], StepContext(0.5, 12, 100, 2, len(batch.ids)), step=2, rank=0)
    replayed = run(capsys, "doctor", trained["path"], "--batch", str(path))
    assert (replayed["at_fault"], replayed["weights_not_finite"]) == ([], [])
    parts = sum(row["loss"] for row in replayed["utterances"])
    assert replayed["batches"][0]["loss"] == pytest.approx(parts, rel=1e-3)
