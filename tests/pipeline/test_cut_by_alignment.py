"""Packed utterances whose teacher gives no word times are cut back by those of the aligner."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from older_tables import without_account
from tones import PITCH_HZ, speak
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.records import Alignment, Label, Utterance, Word
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.shard import shard
from voxstill.sharding import cut_labels
from voxstill.storage import tables
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

MAX_MS = 5_000
TEXT = " ".join(np.random.default_rng(0).choice(list(PITCH_HZ), 82))
SAMPLES_T, SAID = speak(TEXT)
LOOSE = {"min_chars_per_s": 0.0, "max_chars_per_s": 1e9, "frame_ms": 1, "max_compression_ratio": 1e9}


def config(work: Path, aligner: Path | None, max_ms: int | None = MAX_MS) -> Config:
    keep = {**LOOSE, "min_alignment": -1000.0, "aligner": None if aligner is None else str(aligner)}
    tree = {
        "work": str(work),
        "engine": {"name": "inline"},
        "teacher": {"name": "echo"},
        "filter": keep,
        "shard": {"max_ms": max_ms},
    }
    return Config.model_validate(tree)


def label_of(id_: str, cfg: Config, **changes: Any) -> Label:
    task = label.task(cfg.teacher)
    return dataclasses.replace(Label(utterance_id=id_, recipe=task.recipe, teacher=task.name, text=TEXT), **changes)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Labels of one utterance of 30 s, by a teacher without word times, with them, and of foreign words."""
    cfg, path = config(tmp_path / "work", None), tmp_path / "packed.wav"
    path.write_bytes(codec.encode(SAMPLES_T, "wav"))
    store, recipe, task = Store(cfg.work), utterances_recipe(cfg), label.task(cfg.teacher)
    rows = [
        Utterance(id=id_, recording_id="r", uri=str(path), end_ms=len(SAMPLES_T) // 16)
        for id_ in ("untimed", "timed", "foreign")
    ]
    labels = [
        label_of("untimed", cfg),
        label_of("timed", cfg, words=SAID),
        label_of("foreign", cfg, text="what no tone can say"),
    ]
    store.create(f"utterances/{recipe}/0.parquet", tables.to_parquet(rows, Utterance))
    store.write_json(f"utterances/{recipe}/{tables.SUCCESS}", {"recipe": recipe, "utterances": 3, "hours": 1.0})
    store.create(f"{task.prefix}/0.parquet", tables.to_parquet(labels, Label))
    listing = tables.parts_hash(store, task.prefix)
    success = {"recipe": task.recipe, "teacher": task.name, "sha256": "x", "listing": listing}
    store.write_json(f"{task.prefix}/{tables.SUCCESS}", success)
    return tmp_path / "work"


def samples_of(cfg: Config, recipe: str, id_: str) -> list[Sample]:
    """The samples of an utterance, in the order of their audio."""
    rows = (row for row in tables.read(Store(cfg.work), f"shards/{recipe}", Sample))
    mine = [row for row in rows if (row.cut_from or row.id) == id_]
    return sorted(mine, key=lambda row: int(row.id.rpartition("#")[2].split("-")[0]) if "#" in row.id else 0)


def test_a_packed_label_without_word_times_is_cut_where_the_aligner_finds_pauses(
    work: Path, tone_student: Path
) -> None:
    cfg = config(work, tone_student)
    filter_labels(cfg)
    figures = shard(cfg)
    assert figures.uncut == {cut_labels.NO_WORDS: 1}  # the foreign one
    cut = samples_of(cfg, figures.recipe, "untimed")
    assert len(cut) >= 6
    assert all(row.duration_ms <= MAX_MS for row in cut)
    assert " ".join(row.text for row in cut) == TEXT
    assert [word.text for row in cut for word in row.words] == TEXT.split()
    borders = [int(ms) for row in cut for ms in row.id.rpartition("#")[2].split("-")]
    assert borders[0] == 0
    assert all(one == two for one, two in zip(borders[1:-1:2], borders[2::2], strict=True))
    for border in borders:
        assert not any(word.start_ms + 80 < border < word.end_ms - 80 for word in SAID)
    num_words = np.cumsum([len(row.text.split()) for row in cut])
    for border, num in zip(borders[1:-1:2], num_words, strict=False):  # all its words are said before the cut
        assert SAID[num - 1].start_ms < border < SAID[num].end_ms
    by_teacher = samples_of(cfg, figures.recipe, "timed")
    assert [word for row in by_teacher for word in row.words] == _moved(SAID, by_teacher)


def _moved(words: tuple[Word, ...], samples: list[Sample]) -> list[Word]:
    """The words with their times from the start of their sample."""
    starts = [int(row.id.rpartition("#")[2].split("-")[0]) for row in samples for _ in row.words]
    return [
        dataclasses.replace(word, start_ms=word.start_ms - start, end_ms=word.end_ms - start)
        for word, start in zip(words, starts, strict=True)
    ]


def test_only_labels_without_word_times_get_them_and_without_an_aligner_they_stay_whole(
    work: Path, tone_student: Path
) -> None:
    cfg = config(work, tone_student)
    filter_labels(cfg)
    words = {row.utterance_id: row.words for row in tables.read(Store(cfg.work), "alignments", Alignment)}
    assert [word.text for word in words["untimed"] or ()] == TEXT.split()
    assert (words["timed"], words["foreign"]) == (None, ())
    none = config(work, None)
    filter_labels(none)
    figures = shard(none)
    assert figures.uncut == {cut_labels.NO_WORDS: 2}
    whole = config(work, tone_student, None)
    (sample,) = samples_of(whole, shard(whole).recipe, "untimed")
    assert (sample.text, sample.words) == (TEXT, ())


def test_alignments_of_an_earlier_version_are_read_and_cut_nothing(work: Path, tone_student: Path) -> None:
    import io

    import pyarrow.parquet as pq

    cfg, store = config(work, tone_student), Store(str(work))
    filter_labels(cfg)
    for key in tables.parts(store, "alignments"):
        old = pq.read_table(io.BytesIO(store.read(key))).drop_columns(["words"])
        store.replace(key, tables.arrow_to_parquet(old))
        without_account(work / key.rpartition("/")[0])
    assert {row.words for row in tables.read(store, "alignments", Alignment)} == {None}
    assert shard(cfg).uncut == {cut_labels.NO_WORDS: 2}
