"""train-lm: from a file, a folder, or the labels that a student learns from, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.text import lm


def counted(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert cli.main(["train-lm", *arguments, "--json"]) == 0
    figures: dict[str, object] = json.loads(capsys.readouterr().out)
    return figures


def test_a_file_and_a_folder_give_the_same_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts/deep").mkdir(parents=True)
    (tmp_path / "texts/one.txt").write_text("Turn on the light!\n\nTurn it OFF.\n")
    (tmp_path / "texts/deep/two.txt").write_text("the light is on")
    (tmp_path / "texts/notes.md").write_text("not this")
    (tmp_path / "all.txt").write_text("turn on the light\nturn it off\nthe light is on\n")
    figures = counted(capsys, str(tmp_path / "texts"), "--output", str(tmp_path / "a.arpa"), "--order", "2")
    assert (figures["sentences"], figures["words"], figures["ngrams"]) == (3, 11, [10, 12])
    counted(capsys, str(tmp_path / "all.txt"), "--output", str(tmp_path / "b.arpa"), "--order", "2")
    assert (tmp_path / "a.arpa").read_text() == (tmp_path / "b.arpa").read_text()
    assert lm.read(str(tmp_path / "a.arpa")).order == 2


def test_a_work_folder_gives_the_labels_of_its_training_split_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for number, (text, split) in enumerate(zip(TEXTS, ("train", "train", "dev", "test"), strict=True)):
        (tmp_path / f"{number}.flac").write_bytes(codec.encode(speak(text)[0], "flac"))
        rows.append({"audio": f"{number}.flac", "text": f"{text} {split}", "split": split, "speaker": str(number)})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = str(tmp_path / "work")
    assert cli.main(["shard", work, "--from", str(tmp_path / "manifest.jsonl"), "--set", "engine=inline"]) == 0
    figures = counted(capsys, work, "--output", str(tmp_path / "words.arpa.gz"))
    assert figures["sentences"] == 2
    words = set(lm.read(str(tmp_path / "words.arpa.gz")).ids) - {"<s>", "</s>", "<unk>"}
    assert words == {*TEXTS[0].split(), *TEXTS[1].split(), "train"}


def test_a_corpus_that_has_grown_gives_the_labels_of_all_its_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, work, manifest = [], str(tmp_path / "work"), tmp_path / "manifest.jsonl"
    options = ["--set", "engine=inline", "--set", "teacher=echo", "--set", f"source.uri={manifest}"]
    for number, text in enumerate(TEXTS[:2]):
        (tmp_path / f"{number}.flac").write_bytes(codec.encode(speak(text)[0], "flac"))
        rows.append({"audio": f"{number}.flac", "text": text, "split": "train", "speaker": str(number)})
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for step in (["index", "--work", work], ["label", work], ["filter", work], ["shard", work]):
            assert cli.main([*step, *options]) == 0
    assert counted(capsys, work, "--output", str(tmp_path / "words.arpa"), *options)["sentences"] == 2


def test_a_corpus_without_texts_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    for source in (tmp_path, tmp_path / "empty.txt"):
        assert cli.main(["train-lm", str(source), "--output", str(tmp_path / "out.arpa")]) == 3
        assert "no words" in capsys.readouterr().err
    (tmp_path / "empty.txt").unlink()
    assert cli.main(["train-lm", str(tmp_path), "--output", str(tmp_path / "out.arpa")]) == 3
    assert "contains no texts" in capsys.readouterr().err
