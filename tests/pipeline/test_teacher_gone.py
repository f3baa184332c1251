"""Finished labels are enough: what follows them does not need the teacher that made them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tones import TEXTS, speak
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.records import Utterance
from voxstill.evaluation import teacher as judged_teacher
from voxstill.pipeline.filter import filter_labels, measured_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.plan import plan_
from voxstill.pipeline.shard import shard
from voxstill.pipeline.train import train
from voxstill.storage import tables
from voxstill.storage.store import Store


def labelled(folder: Path, student: Path) -> Config:
    """A few utterances with the labels of a student, which is moved away afterwards."""
    rows = []
    for number in range(8):
        samples_T, _ = speak(TEXTS[number % len(TEXTS)], number)
        (folder / f"{number}.wav").write_bytes(codec.encode(samples_T, "wav"))
        split = "dev" if number % 4 == 3 else "train"
        rows.append({"audio": f"{number}.wav", "text": TEXTS[number % len(TEXTS)], "speaker": "ann", "split": split})
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shutil.copytree(student, folder / "teacher")
    cfg = config.load(
        None,
        [
            *(f"work={folder / 'work'}", f"source.uri={folder / 'manifest.jsonl'}", "engine=inline"),
            f"teacher={{name: transformers, model: {folder / 'teacher'}}}",
            *("filter.min_chars_per_s=0.0", "plan.budget_ms=6000", f"train.root={folder / 'exp'}"),
            "train={steps: 2, checkpoint_every: 2, keep_every: 2, seed_mode: debug, loader_workers: 0}",
        ],
    )
    index(cfg)
    label_utterances(cfg)
    return cfg


def test_what_follows_the_labels_works_without_the_teacher(tmp_path: Path, tone_student: Path) -> None:
    cfg = labelled(tmp_path, tone_student)
    shutil.rmtree(tmp_path / "teacher")
    with pytest.raises(VoxstillError):
        label_utterances(cfg)
    verdicts = filter_labels(cfg)
    assert verdicts.judged == 8
    assert measured_labels(cfg)[0].recipe == verdicts.labels
    assert shard(cfg).utterances
    assert plan_(cfg.work, None, 0, cfg).steps
    assert train(cfg)
    rows = list(tables.read(Store(cfg.work), f"utterances/{verdicts.utterances}", Utterance))
    assert judged_teacher.evaluate(cfg, rows).teacher.startswith("transformers@")


def test_of_several_finished_labels_those_of_the_same_options_are_taken(tmp_path: Path, tone_student: Path) -> None:
    cfg = labelled(tmp_path, tone_student)
    assert cfg.teacher.model_extra is not None
    other = cfg.teacher.model_copy(update={"batch_ms": 1000})
    label_utterances(cfg.model_copy(update={"teacher": other}))
    shutil.rmtree(tmp_path / "teacher")
    of_other = measured_labels(cfg.model_copy(update={"teacher": other}))[0]
    assert measured_labels(cfg)[0].options == cfg.teacher.model_dump() != of_other.options
    with pytest.raises(VoxstillError):
        measured_labels(cfg.model_copy(update={"teacher": cfg.teacher.model_copy(update={"batch_ms": 2000})}))


def test_labels_that_are_begun_are_known_without_the_teacher(tmp_path: Path, tone_student: Path) -> None:
    cfg = labelled(tmp_path, tone_student)
    begun = config.changed(cfg, f"teacher={{name: transformers, model: {tmp_path / 'teacher'}, batch_ms: 1000}}")
    begun = config.changed(begun, "engine.chunk=4")
    label_utterances(begun, max_chunks=1)
    shutil.rmtree(tmp_path / "teacher")
    with pytest.raises(DataError, match="no finished labels of `transformers`"):
        filter_labels(begun)
    assert filter_labels(begun, partial=True).labelled == 4
    assert filter_labels(cfg).labelled is None
