"""A label goes to no other audio than that which was labelled, whoever has the id of its utterance now."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from manifests import wav
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Label
from voxstill.pipeline.check_work import check_work
from voxstill.pipeline.export_labels import export_labels
from voxstill.pipeline.filter import filter_labels, measured_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard
from voxstill.storage import manifest, same_audio, tables
from voxstill.storage.store import Store

NUM = 3


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    """Half-second clips of two channels, in each of which another tone is heard."""
    time_T = np.arange(16_000) / 16_000
    for number in range(NUM):
        tones = [np.sin(2 * np.pi * (300 + 200 * number + 50 * channel) * time_T) for channel in range(2)]
        samples_TC = (9000 * np.stack(tones, axis=1)).astype(np.int16)
        (tmp_path / f"{number}.wav").write_bytes(codec.encode(samples_TC, "wav"))
    write_manifest(tmp_path)
    return config.load(
        None,
        [
            f"work={tmp_path}/work",
            f"source={{uri: {tmp_path}/manifest.jsonl, dev_share: 0.0, test_share: 0.0}}",
            "teacher=reference",
            "engine={name: inline, chunk: 2}",
        ],
    )


def write_manifest(folder: Path, change: Callable[[dict[str, object]], object] = lambda line: None) -> None:
    lines: list[dict[str, object]] = []
    for i in range(NUM):
        lines.append({"audio": f"{i}.wav", "id": f"u{i}", "start": 0.0, "end": 0.5, "channel": 0, "text": "one two"})
    change(lines[1])
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))


def line(cfg: Config) -> None:
    index(cfg)
    label_utterances(cfg)
    filter_labels(cfg)
    shard(cfg)


def elsewhere(cfg: Config) -> Config:
    """The same with another work folder, to which the labels are copied."""
    other = config.changed(cfg, f"work={cfg.work}-2")
    shutil.copytree(f"{cfg.work}/labels", f"{other.work}/labels")
    return other


def assert_refused(step: Callable[[], object]) -> None:
    with pytest.raises(DataError, match=r"1 labels in .* are of different audio") as caught:
        step()
    assert "`u1`" in caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("teacher", ["echo", "reference"])
def test_labels_of_another_language_are_refused(cfg: Config, teacher: str) -> None:
    english = config.changed(cfg, "source.language=en", f"teacher={teacher}")
    german = config.changed(english, "source.language=de")
    line(english)
    index(german)
    for step in (label_utterances, filter_labels):
        with pytest.raises(DataError, match="another language") as caught:
            step(german)
        assert "voxstill label" in caught.value.fix
    shutil.rmtree(f"{cfg.work}/labels")
    line(german)
    assert filter_labels(german).reasons["wrong_language"] == 0


CHANGES: dict[str, Callable[[dict[str, object]], object]] = {
    "another channel": lambda line: line.update(channel=1),
    "another stretch": lambda line: line.update(end=0.6),
    "another file": lambda line: line.update(audio="2.wav", start=0.2, end=0.7),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_labels_of_other_audio_are_refused_by_every_step(
    cfg: Config, tmp_path: Path, change: Callable[[dict[str, object]], object]
) -> None:
    line(cfg)
    write_manifest(tmp_path, change)
    other = elsewhere(cfg)
    index(other)
    assert_refused(lambda: label_utterances(other))
    assert_refused(lambda: label_utterances(other, retry_failed=True))
    assert_refused(lambda: filter_labels(other))
    assert_refused(lambda: measured_labels(other))
    assert_refused(lambda: export_labels(other, str(tmp_path / "out.jsonl"), "jsonl"))
    for table in ("scores", "verdicts"):
        shutil.copytree(f"{cfg.work}/{table}", f"{other.work}/{table}")
    assert_refused(lambda: filter_labels(other))
    assert_refused(lambda: shard(other))


def test_labels_are_refused_where_the_index_was_made_anew_in_their_place(cfg: Config, tmp_path: Path) -> None:
    line(cfg)
    for table in ("recordings", "utterances"):
        shutil.rmtree(f"{cfg.work}/{table}")
    write_manifest(tmp_path, CHANGES["another channel"])
    index(cfg)
    assert_refused(lambda: label_utterances(cfg))
    assert_refused(lambda: filter_labels(cfg))
    assert any("different audio" in finding.reason for finding in check_work(Store(cfg.work)).rows)


def test_another_index_in_the_same_folder_gets_no_labels_of_other_audio(cfg: Config, tmp_path: Path) -> None:
    write_manifest(tmp_path, lambda line: line.pop("channel"))
    line(cfg)
    one_channel = config.changed(cfg, "source.channels=1")
    index(one_channel)
    assert_refused(lambda: label_utterances(one_channel))
    assert_refused(lambda: filter_labels(one_channel))
    assert label_utterances(cfg).labels == NUM  # those of the first index are as they were
    filter_labels(cfg)


def test_labels_of_a_teacher_that_was_shown_other_texts_are_refused(cfg: Config, tmp_path: Path) -> None:
    line(cfg)
    write_manifest(tmp_path, lambda line: line.update(text="three"))
    other = elsewhere(cfg)
    index(other)
    assert_refused(lambda: label_utterances(other))


def test_labels_of_the_same_audio_are_used_again_with_other_speakers_and_splits(cfg: Config, tmp_path: Path) -> None:
    line(cfg)
    done = label_utterances(cfg)
    write_manifest(tmp_path, lambda line: line.update(speaker="s", split="dev"))
    other = elsewhere(cfg)
    index(other)
    before = {path.name: path.stat().st_mtime_ns for path in Path(other.work, "labels").rglob("*.parquet")}
    again = label_utterances(other)
    assert (again.labels, again.sha256) == (NUM, done.sha256)
    assert {path.name: path.stat().st_mtime_ns for path in Path(other.work, "labels").rglob("*.parquet")} == before
    assert filter_labels(other).judged == NUM
    assert shard(other).utterances == NUM


def test_labels_that_do_not_say_what_they_are_of_are_read_as_before(cfg: Config, tmp_path: Path) -> None:
    index(cfg)
    done = label_utterances(cfg)
    work = Store(cfg.work)
    keys = tables.parts(work, f"labels/{done.recipe}")
    for key in keys:
        rows = tables.to_arrow(work.read(key), Label).drop_columns(["audio"])
        work.replace(key, tables.arrow_to_parquet(rows))
    for name in (same_audio.NAME, manifest.NAME):
        work.delete(f"labels/{done.recipe}/{name}")
    work.write_json(
        f"labels/{done.recipe}/{tables.SUCCESS}",
        replace(done, hours=None, listing=tables.parts_hash(work, f"labels/{done.recipe}")).to_dict(),
    )
    assert label_utterances(cfg).labels == NUM
    assert [row.audio for row in tables.read(work, f"labels/{done.recipe}", Label)] == [None] * NUM
    assert filter_labels(cfg).judged == NUM
    assert shard(cfg).utterances == NUM


def test_nothing_is_opened_where_labelling_goes_on_with_the_same_utterances(
    cfg: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(cfg)
    label_utterances(cfg)
    read: list[str] = []
    plain = Store.read
    monkeypatch.setattr(Store, "read", lambda self, key: read.append(key) or plain(self, key))
    assert label_utterances(cfg).labels == NUM
    assert [key for key in read if key.endswith(".parquet")] == []


def test_a_grown_index_is_labelled_where_it_grew(cfg: Config, tmp_path: Path) -> None:
    index(cfg)
    label_utterances(cfg)
    (tmp_path / "new.wav").write_bytes(wav(2000, 1))
    with (tmp_path / "manifest.jsonl").open("a") as manifest:
        manifest.write("\n" + json.dumps({"audio": "new.wav", "id": "new", "text": "one"}))
    index(cfg)
    assert label_utterances(cfg).labels == NUM + 1
    assert filter_labels(cfg).judged == NUM + 1
