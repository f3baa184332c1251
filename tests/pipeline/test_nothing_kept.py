"""A filter that keeps nothing says why, and there are no shards of nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from manifests import wav
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.pipeline import nothing_kept
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard
from voxstill.storage.figures import VerdictFigures
from voxstill.storage.store import Store
from voxstill.storage.workdir import finished_recipes


def labelled(
    folder: Path, *overrides: str, split: str = "train", texts: Sequence[str | None] = ("one two", "three")
) -> Config:
    """Clips with the reference as their labels."""
    rows = []
    for number, text in enumerate(texts):
        (folder / f"{number}.wav").write_bytes(wav(300 + 40 * number, seconds=0.5))
        rows.append({"audio": f"{number}.wav", "id": f"u{number}", "text": text, "split": split})
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    paths = (f"work={folder}/work", f"source.uri={folder}/manifest.jsonl")
    cfg = config.load(None, [*paths, "teacher=reference", "engine=inline", *overrides])
    index(cfg)
    label_utterances(cfg)
    return cfg


def refused(cfg: Config, caplog: pytest.LogCaptureFixture) -> DataError:
    """The error of `shard`, after `filter` has warned of the same, also where it has nothing to do."""
    for _ in range(2):
        caplog.clear()
        assert filter_labels(cfg).kept_utterances == 0
        messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    with pytest.raises(DataError) as error:
        shard(cfg)
    assert f"filter: {error.value.what}: {error.value.why}; {error.value.fix}" in messages
    assert finished_recipes(Store(cfg.work), "shards") == []
    return error.value


def test_labels_of_a_teacher_that_heard_another_language_point_to_the_options_of_languages() -> None:
    verdicts = VerdictFigures(recipe="r", judged=2, kept_utterances=0, reasons={"wrong_language": 2})
    with pytest.raises(DataError) as error:
        nothing_kept.refuse(Store("memory://nothing-kept"), verdicts)
    assert "2 of 2 are dropped as `wrong_language`" in error.value.why
    assert "`teacher.language`" in error.value.fix


def test_labels_that_failed_are_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    error = refused(labelled(tmp_path, texts=(None, "", None)), caplog)
    assert "2 of 3 are dropped as `failed`" in error.why
    assert "--retry-failed" in error.fix


def test_a_threshold_that_keeps_nothing_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    error = refused(labelled(tmp_path, "filter.max_chars_per_s=0.1"), caplog)
    assert "2 of 2 are dropped as `too_fast`" in error.why
    assert "--report" in error.fix


def test_a_corpus_of_the_test_split_alone_has_nothing_to_keep(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "splits train or dev" in refused(labelled(tmp_path, split="test"), caplog).why
