"""Held-out data stays out of training, by whatever name a data set holds it out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manifests import refused, wav
from voxstill.core.config import load
from voxstill.core.records import Utterance
from voxstill.indexing.formats.entry import split_named
from voxstill.pipeline.index import index
from voxstill.storage import tables
from voxstill.storage.store import Store


def splits(source: Path | str, work: Path) -> dict[str, str]:
    """The split of each file, by its name; no split is drawn by chance but train."""
    overrides = [f"work={work}", f"source={{uri: '{source}', dev_share: 0, test_share: 0}}", "engine.name=inline"]
    index(load(None, overrides, {}))
    store = Store(str(work))
    keys = [entry.key for entry in store.list("utterances") if entry.key.endswith(".parquet")]
    rows = [row for key in keys for row in tables.from_parquet(store.read(key), Utterance)]
    return {row.uri.rpartition("/")[2]: row.split for row in rows}


@pytest.mark.parametrize(
    ("name", "split"),
    {
        "train": "train",
        "training": "train",
        "train-clean-100": "train",
        "train.clean.360": "train",
        "validation": "dev",
        "valid": "dev",
        "dev-other": "dev",
        "Test": "test",
        "test_clean": "test",
        "eval": "test",
        "evaluation": "test",
        "contest": None,
        "trainer": None,
        "validated": None,
    }.items(),
)
def test_names_of_splits_of_other_data_sets_are_known(name: str, split: str | None) -> None:
    assert split_named(name) == split


def test_a_column_with_other_names_of_splits_holds_out_what_it_says(tmp_path: Path) -> None:
    names = ["train-clean-100", "validation", "test-clean", "eval", "dev", "-", None]
    rows = []
    for number, name in enumerate(names):
        (tmp_path / f"{number}.wav").write_bytes(wav(300 + 20 * number))
        rows.append({"audio": f"{number}.wav", "split": name})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = ["train", "dev", "test", "test", "dev", "train", "train"]
    assert splits(tmp_path / "manifest.jsonl", tmp_path / "work") == {
        f"{number}.wav": split for number, split in enumerate(expected)
    }


def test_a_split_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "manifest.jsonl").write_text(json.dumps({"audio": "a.wav", "split": "holdout"}) + "\n")
    error = refused(tmp_path / "manifest.jsonl")
    assert "manifest.jsonl:1" in error.what
    assert "'holdout'" in error.why


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_folders_named_after_splits_are_splits(tmp_path: Path, place: str, s3: Store) -> None:
    store = s3 if place == "bucket" else Store(str(tmp_path / "corpus"))
    for number, folder in enumerate(["train/ann", "train-other/bob", "validation/cem", "test-clean/dan/x", "."]):
        store.replace(f"{folder}/{number}.wav".removeprefix("./"), wav(300 + 20 * number))
    found = splits(store.root, tmp_path / "work")
    assert found == {"0.wav": "train", "1.wav": "train", "2.wav": "dev", "3.wav": "test", "4.wav": "train"}


def test_a_folder_named_test_alone_is_no_split(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "corpus"))
    store.replace("test/0.wav", wav())
    store.replace("more/1.wav", wav(400))
    assert set(splits(store.root, tmp_path / "work").values()) == {"train"}


def test_metadata_of_hugging_face_in_the_folder_of_a_split_is_of_that_split(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "corpus"))
    for number, folder in enumerate(["train", "test"]):
        store.replace(f"{folder}/{number}.wav", wav(300 + 20 * number))
        store.replace(f"{folder}/metadata.csv", f"file_name,transcription\n{number}.wav,hello\n".encode())
    assert splits(store.root, tmp_path / "work") == {"0.wav": "train", "1.wav": "test"}


def test_unknown_speakers_are_warned_of_where_chance_draws_the_splits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(tmp_path / "corpus"))
    store.replace("0.wav", wav())
    index(load(None, [f"work={tmp_path / 'a'}", f"source.uri={store.root}", "engine.name=inline"], {}))
    assert "the splits may share voices" in caplog.text
    caplog.clear()
    store.replace("manifest.jsonl", b'{"audio": "0.wav", "speaker": "ann"}\n')
    uri = store.uri("manifest.jsonl")
    index(load(None, [f"work={tmp_path / 'b'}", f"source.uri={uri}", "engine.name=inline"], {}))
    assert "share voices" not in caplog.text
