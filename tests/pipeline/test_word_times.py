"""Word times of a manifest on their way to the shards, and what another index makes of others."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manifests import wav
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Label, Utterance, Word, text_hash
from voxstill.indexing.segment import IndexRow
from voxstill.labelling.label import task
from voxstill.labelling.transcribe import Transcribe
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard
from voxstill.pipeline.voices import voices
from voxstill.storage import tables
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

WORDS = [{"word": "one", "start": 0.1, "end": 0.4}, {"word": "two", "start": 0.4, "end": 0.9}]
WORD = (Word(text="one", start_ms=100, end_ms=400),)
LATER = [WORDS[0], {"word": "two", "start": 0.5, "end": 0.9}]


def write_manifest(folder: Path, *words: object) -> None:
    """A manifest of two stretches of each recording, of which the second is that of the words and begins at 1 s."""
    lines = []
    for number, of_file in enumerate(words):
        if not (folder / f"{number}.wav").exists():
            (folder / f"{number}.wav").write_bytes(wav(300 + number, 2.0))
        row = {"audio": f"{number}.wav", "text": "one two", "speaker": str(number)}
        lines.append(row | {"id": f"none-{number}", "start": 0.0, "end": 1.0})
        lines.append(row | {"id": f"some-{number}", "start": 1.0, "end": 2.0})
        if isinstance(of_file, list):
            lines[-1]["words"] = [word | {name: 1 + word[name] for name in ("start", "end")} for word in of_file]
        elif of_file is not None:
            lines[-1]["words"] = of_file
    (folder / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))


def configured(folder: Path, manifest: Path, work: str = "work") -> Config:
    return config.load(
        None,
        [
            f"work={folder}/{work}",
            f"source={{uri: {manifest}, dev_share: 0.0, test_share: 0.0}}",
            "teacher=reference",
            "engine={name: inline}",
        ],
    )


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    return configured(tmp_path, tmp_path / "m.jsonl")


def rows(cfg: Config, table: str, kind: Any) -> dict[str, Any]:
    of_table = tables.read(Store(cfg.work), table, kind)
    return {row.utterance_id if isinstance(row, Label) else row.id: row for row in of_table}


def times(row: Any) -> list[tuple[str, int, int]] | None:
    return None if row.words is None else [(word.text, word.start_ms, word.end_ms) for word in row.words]


def test_synthetic_voices_have_their_times_in_the_shards(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("switch every light off\nopen every door\n")
    manifest_of = voices(str(tmp_path / "texts.txt"), str(tmp_path / "voices"), 0.002, "en", 0)
    cfg = configured(tmp_path, Path(manifest_of.path))
    assert index(cfg).untimed is None
    label_utterances(cfg)
    filter_labels(cfg)
    shard(cfg)
    manifest: list[Mapping[str, Any]] = [json.loads(line) for line in Path(manifest_of.path).read_text().splitlines()]
    shards = rows(cfg, "shards", Sample)
    assert len(shards) == len(manifest) > 1
    for row in manifest:
        wanted = [(word["word"], round(1000 * word["start"]), round(1000 * word["end"])) for word in row["words"]]
        assert len(wanted) == len(row["text"].split())
        assert times(shards[row["id"]]) == wanted


def test_times_start_with_the_utterance_and_change_the_label(cfg: Config, tmp_path: Path) -> None:
    write_manifest(tmp_path, WORDS)
    index(cfg)
    label_utterances(cfg)
    utterances, labels = rows(cfg, "utterances", Utterance), rows(cfg, "labels", Label)
    assert times(utterances["some-0"]) == times(labels["some-0"]) == [("one", 100, 400), ("two", 400, 900)]
    assert (times(utterances["none-0"]), times(labels["none-0"])) == (None, [])
    none, timed = utterances["none-0"], utterances["some-0"]
    assert labels["none-0"].audio == text_hash(none.audio, none.text)  # as in earlier versions
    assert (
        labels["some-0"].audio == text_hash(timed.audio, timed.text, timed.words) != text_hash(timed.audio, timed.text)
    )
    done = label_utterances(cfg)
    other = configured(tmp_path, tmp_path / "m.jsonl", "other")
    index(other)
    shutil.copytree(f"{cfg.work}/labels", f"{other.work}/labels")
    assert label_utterances(other).sha256 == done.sha256  # compared with the utterances, and of the same times
    shutil.rmtree(f"{other.work}/utterances")
    shutil.rmtree(f"{other.work}/recordings")
    write_manifest(tmp_path, LATER)
    index(other)
    with pytest.raises(DataError, match=r"1 labels in .* are of different audio"):
        label_utterances(other)
    with pytest.raises(DataError, match="has other metadata"):
        index(cfg)


def test_supervised_sources_learn_from_the_times_whatever_the_teacher(cfg: Config, tmp_path: Path) -> None:
    write_manifest(tmp_path, WORDS)
    supervised = config.changed(cfg, "source.supervised=true", "teacher=echo")
    index(supervised)
    label_utterances(supervised)
    assert times(rows(supervised, "labels", Label)["some-0"]) == [("one", 100, 400), ("two", 400, 900)]


def test_a_teacher_that_is_shown_no_text_is_shown_no_words() -> None:
    unseen = Transcribe(dataclasses.replace(task(config.Teacher(name="reference")), reads_texts=False))
    utterance = Utterance(id="a", recording_id="a", uri="a.wav", end_ms=1000, text="one", words=WORD)
    shown = unseen.clip(utterance, np.zeros(16_000, np.int16)).utterance
    assert (shown.text, shown.words) == (None, None)


def test_wrong_times_are_left_out_with_a_reason(cfg: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    late = [WORDS[0], {"word": "two", "start": 0.5, "end": 1.9}]
    write_manifest(tmp_path, WORDS, "one two", WORDS[::-1], WORDS[:1], late)
    with caplog.at_level(logging.WARNING):
        figures = index(cfg)
    assert figures.untimed == {
        "no list of words with start and end": 1,
        "a word ends before it starts, or starts before the previous one": 1,
        "not the words of the text": 1,
        "outside the audio": 1,
    }
    assert "word times of 4 utterances are not used" in caplog.text
    assert (figures.utterances, figures.damaged) == (10, 0)
    utterances = rows(cfg, "utterances", Utterance)
    assert [id_ for id_, row in utterances.items() if row.words is not None] == ["some-0"]
    assert {row.text for row in utterances.values()} == {"one two"}
    assert index(cfg) == figures


def test_an_index_of_an_earlier_version_goes_on_without_the_times(
    cfg: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_manifest(tmp_path, None)
    index(cfg)
    work = Store(cfg.work)
    for table, kind, column in (("utterances", Utterance, "words"), ("recordings", IndexRow, "untimed")):
        for key in tables.parts(work, table):
            work.replace(key, tables.arrow_to_parquet(tables.to_arrow(work.read(key), kind).drop_columns([column])))
    write_manifest(tmp_path, WORDS, WORDS)
    with caplog.at_level(logging.WARNING):
        assert index(cfg).utterances == 4
    assert "1 recordings were indexed before their source had word times" in caplog.text
    label_utterances(cfg)  # reads both kinds of parts
    assert {id_ for id_, row in rows(cfg, "utterances", Utterance).items() if row.words} == {"some-1"}
