"""Telling classes and speakers apart by the command line: what comes out, and what is told instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tones import HUMS_HZ, PITCH_HZ, voiced
from voxstill import cli
from voxstill.audio import codec
from voxstill.evaluation import results

SETTINGS = """
work: {work}
engine: inline
source: {{dev_share: 0, test_share: 0}}
student: {{task: {task}, target: {target}}}
plan: {{budget_ms: 6000}}
augment: {{noise_prob: 0.0, tempo: 0.0, vtlp: 0.0, time_masks: 0, mel_masks: 0}}
train: {{steps: {steps}, optimizer: adamw, lr: 3e-3, loader_workers: 0, seed_mode: debug, root: {root}}}
"""
NEW = ("bob", "eve")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of words in voices, two of them in the test split alone, where one says a word that nobody learns."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = []
    for i, (speaker, word, time) in enumerate((s, w, t) for s in HUMS_HZ for w in PITCH_HZ for t in range(3)):
        name = f"{speaker}-{word}-{time}.flac"
        (folder / name).write_bytes(codec.encode(voiced(word, speaker, i), "flac"))
        split = "test" if speaker in NEW else "train"
        text = "never" if (speaker, word, time) == ("eve", "mi", 2) else word
        rows.append({"audio": name, "text": text, "speaker": speaker, "split": split, "language": "en"})
    (folder / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert cli.main([*words, "--json"]) == code
    output = capsys.readouterr().out
    figures: dict[str, Any] = json.loads(output) if output else {}
    return figures


def written(corpus: Path, folder: Path, task: str, target: str, steps: int) -> str:
    text = SETTINGS.format(work=folder / "work", task=task, target=target, steps=steps, root=folder / "exp")
    (folder / "my.yaml").write_text(text)
    return str(folder / "my.yaml")


def test_classes_can_be_the_texts_of_the_teacher(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(corpus, tmp_path, "classes", "text", 80)
    run(capsys, "shard", str(tmp_path / "work"), "--from", str(corpus / "all.jsonl"), "--config", config)
    trained = run(capsys, "train", config)
    figures = run(capsys, "evaluate", trained["path"], "--on", "test")
    assert figures["task"] == "classes"
    assert figures["utterances"] == 24
    assert figures["unknown"] == 1
    assert sum(row["count"] for row in figures["classes"].values()) == 23
    assert figures["accuracy"] > 0.5  # chance is 0.25
    assert figures["interval"][0] <= figures["accuracy"] <= figures["interval"][1]
    assert figures["interval_over"] == "speakers"
    assert 0 <= figures["macro_f1"] <= 1
    assert sum(sum(row.values()) for row in figures["confusion"].values()) == 23
    assert figures["rtfx"] > 0
    [result] = results.read_all(Path(trained["path"]) / "evaluation")
    assert result.figures["accuracy"] == figures["accuracy"]
    assert "<html" in (result.path / "page.html").read_text()
    assert cli.main(["transcribe", trained["path"], str(corpus / "ann-ba-0.flac")]) == 2
    assert "does not output text" in capsys.readouterr().err


def test_speakers_are_verified_without_any_label(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(corpus, tmp_path, "speakers", "text", 60)
    run(capsys, "index", str(corpus / "all.jsonl"), "--work", str(tmp_path / "work"), "--config", config)
    trained = run(capsys, "train", config)
    new = run(capsys, "evaluate", trained["path"], "--on", "test")
    assert new["accuracy"] is None
    assert new["unknown"] == new["utterances"] == 24
    assert new["trials"] == 24 * 23 // 2
    assert 0 <= new["eer"] <= 0.5  # four voices teach little of others
    assert 0 <= new["min_dcf"] <= 1
    known = run(capsys, "evaluate", trained["path"], "--on", "train")
    assert known["accuracy"] > 0.8
    assert known["eer"] < 0.1


def test_classes_by_text_need_labels(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(corpus, tmp_path, "classes", "text", 1)
    run(capsys, "index", str(corpus / "all.jsonl"), "--work", str(tmp_path / "work"), "--config", config)
    assert cli.main(["train", config]) == 3
    assert "voxstill" in capsys.readouterr().err
    assert cli.main(["run", config, "--set", f"source.uri={corpus / 'all.jsonl'}"]) == 2
    assert "not for `voxstill run`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("student.freeze_layers=0.5", "no pre-trained layers to freeze"),
        ("train.preset=fine_tune", "no pre-trained layers to freeze"),
        ("train.unfreeze_share=0.5", "nothing to unfreeze"),
    ],
)
def test_useless_settings_of_freezing_are_refused(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, message: str
) -> None:
    assert cli.main(["train", written(corpus, tmp_path, "classes", "speaker", 1), "--set", wrong]) == 2
    assert message in capsys.readouterr().err
