"""A step that works on what is older than the index says so, and which step to run first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manifests import wav
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.pipeline import exported, freshness
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.mixture import labelled_shards
from voxstill.pipeline.recipes import removed_in
from voxstill.pipeline.shard import shard, shard_unlabelled
from voxstill.storage import removals, tables
from voxstill.storage.figures import IndexFigures, ShardFigures, VerdictFigures
from voxstill.storage.removals import Removal
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from voxstill.storage.workdir import finish, finished_recipes


def grown(folder: Path, num: int) -> Config:
    """The index of `num` clips; those that were there stay."""
    rows = []
    for number in range(num):
        path = folder / f"{number}.wav"
        if not path.exists():
            path.write_bytes(wav(300 + 40 * number, seconds=0.5))
        rows.append({"audio": path.name, "id": f"u{number}", "text": "one two", "speaker": f"s{number}"})
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    cfg = config.load(
        None,
        [
            f"work={folder}/work",
            f"source={{uri: {folder}/manifest.jsonl, dev_share: 0.0, test_share: 0.0}}",
            "teacher=reference",
            "engine={name: inline, chunk: 2}",
        ],
    )
    index(cfg)
    return cfg


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return [message for message in messages if "voxstill " in message]


def test_each_step_names_the_first_one_that_has_something_new(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cfg = grown(tmp_path, 3)
    label_utterances(cfg)
    filter_labels(cfg)
    first = shard(cfg)
    labelled_shards(cfg)
    assert warnings(caplog) == []

    grown(tmp_path, 5)
    assert filter_labels(cfg).judged == 3
    (message,) = warnings(caplog)
    assert "2 utterances have no label" in message
    assert "`voxstill label` first" in message
    assert shard(cfg).recipe == labelled_shards(cfg).recipe == first.recipe
    assert warnings(caplog) == []  # it has been said

    assert label_utterances(cfg).labels == 5
    assert shard(cfg).recipe == labelled_shards(cfg).recipe == first.recipe
    (message,) = warnings(caplog)
    assert "2 utterances have no verdict" in message
    assert "`voxstill filter` first" in message

    assert filter_labels(cfg).judged == 5
    assert labelled_shards(cfg).recipe == first.recipe
    (message,) = warnings(caplog)
    assert "`voxstill shard` first" in message

    assert shard(cfg).utterances == labelled_shards(cfg).utterances == 5
    assert warnings(caplog) == []


def test_other_options_than_those_of_the_only_verdicts_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = grown(tmp_path, 2)
    label_utterances(cfg)
    verdicts = filter_labels(cfg)
    shard(config.changed(cfg, "filter.max_repeats=7"))
    (message,) = warnings(caplog)
    assert verdicts.recipe in message
    assert "`voxstill filter` first" in message


def test_what_was_removed_in_another_table_is_not_counted_among_shards(tmp_path: Path) -> None:
    """The id `u` is of the first channel in the table of the shards, and of the second in another table."""
    work = Store(str(tmp_path))
    for channel in range(2):
        row = Utterance(id="u", recording_id=f"r{channel}", uri="a.wav", channel=channel, end_ms=500)
        work.create(f"utterances/{channel}/0.parquet", tables.to_parquet([row], Utterance))
        finish(work, IndexFigures(recipe=str(channel)))
        finish(work, VerdictFigures(recipe=f"v{channel}", utterances=str(channel)))
    removals.append(work, [Removal(id="x", uri="a.wav", channel=1, end_ms=400, time="2026-01-01T00:00:00Z")])
    sample = Sample(id="u", duration_ms=500, num_samples=8000)
    for channel, num in ((0, 0), (1, 1)):
        figures = ShardFigures(recipe=f"s{channel}", verdicts=f"v{channel}", shards=1, utterances=1)
        work.create(f"shards/s{channel}/00000.parquet", tables.to_parquet([sample], Sample))
        assert len(removed_in(work, figures)) == num


def test_other_options_of_index_than_those_of_the_only_utterances_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = grown(tmp_path, 3)
    label_utterances(cfg)
    filter_labels(cfg)
    (recipe,) = finished_recipes(Store(cfg.work), "utterances")
    label_utterances(Config(work=cfg.work, teacher="reference", engine="inline"))
    whole = Config(work=cfg.work, teacher="reference", engine="inline").model_dump()
    label_utterances(Config.model_validate(whole))  # as in the folder of an experiment
    assert warnings(caplog) == []
    for changed in ("segment.max_ms=400", "source.language=de"):
        for step in (label_utterances, filter_labels, shard):
            step(config.changed(cfg, changed))
        message, *_ = warnings(caplog)
        assert recipe in message
        assert "were made with other options of `index`" in message
        freshness._warn.cache_clear()


@pytest.mark.parametrize("split", ["test", "dev"])
def test_a_speaker_held_out_without_a_new_index_is_an_error(tmp_path: Path, split: str) -> None:
    cfg = grown(tmp_path, 3)
    for step in (label_utterances, filter_labels, shard):
        step(cfg)
    other = config.changed(cfg, f"source.{split}_speakers=[s2]")
    for use in (label_utterances, filter_labels, shard, labelled_shards, shard_unlabelled):
        with pytest.raises(DataError, match=r"contains `s2`, whose split is train in the only utterances"):
            use(other)
    with pytest.raises(DataError, match="contains `s2`"):
        exported.LabelReader(other, scores=False, verdicts=False, kept=False)
    index(other)
    label_utterances(other)
    filter_labels(other)
    assert shard(other).utterances == 2 + (split == "dev")


def test_labels_of_other_utterances_do_not_count_as_labels_of_these(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = label_utterances(grown(tmp_path, 5))
    others = (tmp_path / "manifest.jsonl").read_text().splitlines()[:3]
    (tmp_path / "others.jsonl").write_text("\n".join(others).replace('"u', '"v'))
    cfg = config.changed(grown(tmp_path, 5), f"source.uri={tmp_path}/others.jsonl", "seed=1")
    work, source = Store(cfg.work), index(cfg)
    warnings(caplog)
    assert freshness.tell_unlabelled(work, source, labels)
    (message,) = warnings(caplog)
    assert "3 utterances have no label" in message
    assert not freshness.tell_unlabelled(work, source, label_utterances(cfg))
