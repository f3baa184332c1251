"""A filter of the labels so far, and labels that are begun and not finished: no others are taken in their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tones import TEXTS, speak
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.records import Verdict
from voxstill.labelling import label
from voxstill.labelling.so_far import labels_so_far
from voxstill.pipeline import filter_report
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.plan import plan_
from voxstill.pipeline.recipes import finished_shards, finished_verdicts
from voxstill.pipeline.shard import shard
from voxstill.storage import tables
from voxstill.storage.figures import ShardFigures, VerdictFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

NUM = 24


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    """An indexed corpus without labels."""
    lines = []
    for number in range(NUM):
        text = TEXTS[number % len(TEXTS)]
        (tmp_path / f"{number}.wav").write_bytes(codec.encode(speak(text, number)[0], "wav"))
        lines.append(json.dumps({"audio": f"{number}.wav", "id": f"u{number}", "text": text, "speaker": f"s{number}"}))
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines))
    cfg = config.load(
        None,
        [
            f"work={tmp_path}/work",
            f"source={{uri: {tmp_path}/manifest.jsonl, dev_share: 0.2, test_share: 0.0}}",
            *("teacher=reference", "engine={name: inline, chunk: 4}", "shard.utterances=6"),
            "plan.budget_ms=6000",
        ],
    )
    index(cfg)
    return cfg


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lambda message, *values: lines.append(message % values))
    return lines


def ids_of(cfg: Config, figures: VerdictFigures | ShardFigures) -> list[str]:
    prefix = f"{figures.kind}/{figures.recipe}"
    if isinstance(figures, ShardFigures):
        return sorted(row.id for row in tables.read(Store(cfg.work), prefix, Sample))
    return sorted(row.utterance_id for row in tables.read(Store(cfg.work), prefix, Verdict))


def test_labels_so_far_are_judged_sharded_and_learnt_from_and_later_ones_are_added(
    cfg: Config, warnings: list[str]
) -> None:
    label_utterances(cfg, max_chunks=2)
    with pytest.raises(DataError, match="no finished labels of `reference`"):
        filter_labels(cfg)
    partial = filter_labels(cfg, partial=True)
    assert (partial.labelled, partial.judged, len(ids_of(cfg, partial))) == (8, 8, 8)
    assert finished_verdicts(cfg) == partial
    first = shard(cfg)
    assert ["8 labels" in message for message in warnings] == [True]
    assert first.utterances == partial.kept_utterances
    assert plan_(cfg.work, None, 0, cfg).steps

    label_utterances(cfg, max_chunks=1)
    assert finished_verdicts(cfg) == partial
    more = filter_labels(cfg, partial=True)
    assert (more.labelled, more.recipe == partial.recipe) == (12, False)
    second = shard(cfg)
    assert (second.generation, second.utterances) == (2, more.kept_utterances)

    label_utterances(cfg)
    whole = filter_labels(cfg)
    assert (whole.labelled, whole.judged, filter_labels(cfg, partial=True)) == (None, NUM, whole)
    assert finished_verdicts(cfg) == whole
    third = shard(cfg)
    assert finished_shards(cfg) == third
    assert (third.generation, third.utterances) == (3, whole.kept_utterances)
    assert ids_of(cfg, third) == sorted(f"u{number}" for number in range(NUM))
    assert {row.tar is None for row in tables.read(Store(cfg.work), f"shards/{third.recipe}", Sample)} == {True, False}


def test_verdicts_of_all_labels_are_those_once_labelling_has_ended(cfg: Config) -> None:
    label_utterances(cfg)
    work, recipe = Store(cfg.work), label.finished(Store(cfg.work), cfg.teacher).recipe
    for name in (tables.SUCCESS, "_manifest"):  # as if it had been ended after the last label
        work.delete(f"labels/{recipe}/{name}")
    partial = filter_labels(cfg, partial=True)
    assert (partial.labelled, finished_verdicts(cfg)) == (NUM, partial)
    label_utterances(cfg)
    whole = filter_labels(cfg)
    assert (whole.recipe, whole.judged, whole.labelled) == (partial.recipe, NUM, None)
    assert finished_verdicts(cfg) == whole


def test_labels_so_far_are_not_judged_in_parts(cfg: Config) -> None:
    with pytest.raises(ConfigError, match="in parts"):
        filter_labels(cfg, partial=True, part="1/2")


def test_a_report_of_labels_so_far(cfg: Config, tmp_path: Path) -> None:
    label_utterances(cfg, max_chunks=2)
    page = filter_report.write(cfg, filter_labels(cfg, partial=True), str(tmp_path / "filter.html"))
    assert Path(str(page.report)).read_text()


def test_labels_that_are_added_while_the_filter_runs_are_left_out(cfg: Config) -> None:
    label_utterances(cfg, max_chunks=1)
    read = labels_so_far(Store(cfg.work), cfg.teacher)
    label_utterances(cfg, max_chunks=1)
    assert read.keys is not None
    assert (len(read.keys), len(labels_so_far(Store(cfg.work), cfg.teacher).keys or ())) == (1, 2)


def test_a_grown_corpus_is_filtered_with_the_labels_so_far(cfg: Config, tmp_path: Path) -> None:
    label_utterances(cfg)
    whole = filter_labels(cfg)
    lines = (tmp_path / "manifest.jsonl").read_text().splitlines()
    for number in range(NUM, NUM + 8):
        (tmp_path / f"{number}.wav").write_bytes(codec.encode(speak(TEXTS[0], number)[0], "wav"))
        lines.append(json.dumps({"audio": f"{number}.wav", "id": f"u{number}", "text": TEXTS[0], "speaker": "new"}))
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines))
    index(cfg)
    label_utterances(cfg, max_chunks=1)
    with pytest.raises(DataError, match="--partial"):
        filter_labels(cfg)
    assert finished_verdicts(cfg) == whole
    partial = filter_labels(cfg, partial=True)
    assert NUM < (partial.labelled or 0) < NUM + 8
    assert finished_verdicts(cfg) == partial
    label_utterances(cfg)
    assert filter_labels(cfg).judged == NUM + 8


def test_there_are_no_labels_so_far(cfg: Config) -> None:
    with pytest.raises(DataError, match="no labels of `reference`"):
        filter_labels(cfg, partial=True)


def test_labels_of_another_teacher_are_not_taken_for_those_that_are_begun(cfg: Config) -> None:
    label_utterances(config.changed(cfg, "teacher={name: echo}"))
    assert label.finished(Store(cfg.work), cfg.teacher).teacher.startswith("echo@")  # nothing of `reference` is begun
    label_utterances(cfg, max_chunks=2)
    for step in (filter_labels, shard):
        with pytest.raises(DataError, match="no finished labels of `reference`") as caught:
            step(cfg)
        assert "echo@" in caught.value.why
    nothing_set = cfg.model_copy(update={"teacher": config.Teacher()})
    assert label.finished(Store(cfg.work), nothing_set.teacher).teacher.startswith("echo@")
    assert filter_labels(cfg, partial=True).teacher.startswith("reference@")
    assert finished_verdicts(cfg).labelled == 8
    label_utterances(cfg)
    assert filter_labels(cfg).labelled is None


def test_begun_labels_of_other_options_are_not_taken_either(cfg: Config) -> None:
    other = config.changed(cfg, "teacher={name: echo, substitute: 0.5}")
    label_utterances(config.changed(cfg, "teacher={name: echo}"))
    label_utterances(other, max_chunks=2)
    with pytest.raises(DataError, match="no finished labels of `echo`"):
        filter_labels(other)
    assert filter_labels(config.changed(cfg, "teacher={name: echo}")).judged == NUM
