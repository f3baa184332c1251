"""Utterances that are made again after a removal: nothing of what was made before it is in use again."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from manifests import wav, write_tar
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.indexing.segment import IndexRow
from voxstill.labelling import label
from voxstill.pipeline import recipes
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.judged_split import of_split
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.mixture import labelled_shards
from voxstill.pipeline.plan import plan_
from voxstill.pipeline.remove import remove
from voxstill.pipeline.shard import repack, shard, shard_unlabelled
from voxstill.pipeline.verify import verify
from voxstill.storage import removals, tables
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

NUM = 10
STEPS = (index, label_utterances, filter_labels, shard, shard_unlabelled)


def write_source(folder: Path, num: int = NUM) -> None:
    """One file for each utterance, and a call of two speakers of whom `b` begins before `a` has ended."""
    rows: list[Mapping[str, Any]] = []
    for number in range(num):
        (folder / f"{number}.wav").write_bytes(wav(300 + 10 * number, 1.0))
        split = {0: "dev", 1: "test", 2: "test"}.get(number, "train")
        rows.append({"id": f"u{number}", "audio": f"{number}.wav", "text": text_of(number), "split": split})
    (folder / "call.wav").write_bytes(wav(2000, 2.0))
    for id_, start_ms in (("a", 0), ("b", 800)):
        times = {"start_ms": start_ms, "end_ms": start_ms + 1200}
        rows.append({"id": id_, "audio": "call.wav", "text": f"{id_} says it", "split": "train", **times})
    (folder / "manifest.jsonl").write_text("".join(json.dumps({**row, "speaker": row["id"]}) + "\n" for row in rows))


def text_of(number: int) -> str:
    return f"text {number} here"


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    write_source(tmp_path)
    overrides = [f"work={tmp_path / 'work'}", f"source.uri={tmp_path / 'manifest.jsonl'}", "shard.utterances=4"]
    return config.load(None, ["teacher=reference", "engine={name: inline, chunk: 3}", "train.steps=1", *overrides], {})


def deleted(cfg: Config) -> None:
    """Delete the tables of the index and make them again."""
    for kind in ("utterances", "recordings"):
        shutil.rmtree(Path(cfg.work) / kind)
    index(cfg)


def damaged(cfg: Config) -> None:
    """Damage each part of the utterances in one byte and have it made again."""
    for path in Path(cfg.work).glob("utterances/*/*.parquet"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert verify(cfg.work, cfg, repair=True).exit_code == 0


def in_parts(cfg: Config) -> None:
    for kind in ("utterances", "recordings"):
        shutil.rmtree(Path(cfg.work) / kind)
    for part in ("2/2", "1/2"):
        index(cfg, part=part)


WAYS = (deleted, damaged, in_parts)


def files(cfg: Config, *kinds: str) -> dict[str, bytes]:
    paths = (path for kind in kinds for path in (Path(cfg.work) / kind).rglob("*") if path.is_file())
    return {str(path.relative_to(cfg.work)): path.read_bytes() for path in paths}


def names(cfg: Config) -> tuple[str, ...]:
    """What the tables of the configuration are called now."""
    source, labels = recipes.finished_utterances(cfg), label.finished(Store(cfg.work), cfg.teacher)
    verdicts = recipes.finished_verdicts(cfg)
    return (
        recipes.scores_recipe(cfg, source, labels),
        recipes.verdicts_recipe(cfg, source, labels),
        recipes.shard_recipe(cfg, verdicts),
        recipes.unlabelled_recipe(cfg),
    )


def recording_of(cfg: Config, id_: str) -> str:
    return next(row.recording_id for row in tables.read(Store(cfg.work), "utterances", Utterance) if row.id == id_)


def sampled(cfg: Config, recipe: str) -> set[str]:
    return {row.id for row in tables.read(Store(cfg.work), f"shards/{recipe}", Sample)}


# ------------------------------------------------------------------------------------------------- one name for all


@pytest.mark.parametrize("way", WAYS)
def test_what_was_made_since_the_removal_stays_in_use_and_nothing_older(
    cfg: Config, tmp_path: Path, way: Callable[[Config], None], caplog: pytest.LogCaptureFixture
) -> None:
    *_, first, first_unlabelled = [step(cfg) for step in STEPS]
    removed = {"u1", "u3", "u4", "a"}
    assert remove(cfg, ["u1", "u3", recording_of(cfg, "u4"), "a"], "by letter").removed == len(removed)
    *_, second, unlabelled = [step(cfg) for step in STEPS]
    assert sampled(cfg, second.recipe) == sampled(cfg, first.recipe) - removed
    made, before, gone = files(cfg, "scores", "verdicts", "shards"), names(cfg), removals.of(Store(cfg.work))
    caplog.clear()

    way(cfg)

    rows = [row.id for row in tables.read(Store(cfg.work), "utterances", Utterance)]
    assert set(rows).isdisjoint(removed)
    assert len(rows) == NUM + 2 - len(removed)
    assert removals.of(Store(cfg.work)) == gone
    assert gone.keys() == removed
    assert names(cfg) == before
    assert [step(cfg) for step in STEPS][3:] == [second, unlabelled]
    assert files(cfg, "scores", "verdicts", "shards") == made
    assert plan_(cfg.work, None, 0, cfg).steps
    for old in (first, first_unlabelled):
        corpora = f"train.corpora=[{{work: {cfg.work}, shards: {old.recipe}}}]"
        own = config.changed(cfg, f"work={tmp_path / 'own'}", corpora)
        with pytest.raises(DataError) as caught:
            labelled_shards(own)
        assert caught.value.code == ("removed-since" if old is first else "step-unfinished")
    with pytest.raises(DataError, match="hold 3 utterances that were removed"):
        recipes.refuse_removed(Store(cfg.work), first_unlabelled)
    assert remove(cfg, ["u3", "u4", "a"]).to_dict() == {"removed": 0, "all_removed": len(removed)}
    assert not verify(cfg.work, cfg).broken
    assert not [record for record in caplog.records if "held" in record.message or "no verdict yet" in record.message]


def test_a_corpus_that_had_grown_keeps_its_shards_too(cfg: Config, tmp_path: Path) -> None:
    index(cfg)
    remove(cfg, ["u3"])
    shard_unlabelled(cfg)
    write_source(tmp_path, NUM + 2)
    index(cfg)
    grown = shard_unlabelled(cfg)
    deleted(cfg)
    assert shard_unlabelled(cfg) == grown
    write_source(tmp_path, NUM + 3)
    index(cfg)
    assert sampled(cfg, shard_unlabelled(cfg).recipe) == sampled(cfg, grown.recipe) | {f"u{NUM + 2}"}


def cut_at_random(folder: Path, rng: np.random.Generator) -> None:
    """A manifest of three recordings and a copy of each, with stretches that may overlap, some in each split."""
    rows = []
    for number in range(6):
        (folder / f"{number}.wav").write_bytes(wav(300 + 50 * (number % 3), 3.0))
        for start in sorted(rng.choice(22, 3, replace=False)):
            times = {"start_ms": int(start) * 100, "end_ms": int(start) * 100 + 600}
            rows.append({"audio": f"{number}.wav", "split": str(rng.choice(["train", "dev", "test"])), **times})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_removed_is_known_after_all_is_made_again(cfg: Config, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cut_at_random(tmp_path, rng)
    index(cfg)
    work = Store(cfg.work)
    rows = list(tables.read(work, "utterances", Utterance))
    ids = [*(row.id for row in rows), *{row.recording_id for row in rows}]
    for num in rng.integers(1, 4, 2):
        remove(cfg, rng.choice(ids, num, replace=False).tolist())
        before = removals.of(work)
        for way in rng.permutation(np.array([deleted, in_parts])):
            way(cfg)
            assert removals.of(work) == before
        left = {row.id for row in tables.read(work, "utterances", Utterance)}
        assert left == {row.id for row in rows} - before.keys()
    assert not verify(cfg.work, cfg).broken


# -------------------------------------------------------------------------------------------- what has no row any more


def test_a_record_that_is_lost_is_missed_and_the_same_ids_put_it_back(cfg: Config) -> None:
    index(cfg)
    remove(cfg, ["u3", "a"])
    deleted(cfg)
    shutil.rmtree(Path(cfg.work) / "removed")
    for step in (index, label_utterances, shard_unlabelled):
        with pytest.raises(DataError, match="record of removed utterances is broken") as caught:
            step(cfg)
        assert "the index has left 2 more utterances out" in caught.value.why
    remove(cfg, ["a"])
    with pytest.raises(DataError, match="record of removed utterances is broken"):
        removals.check(Store(cfg.work))
    remove(cfg, ["u3"])
    assert not verify(cfg.work, cfg).broken
    whole = config.changed(cfg, "segment.min_ms=210")  # another table, from which it goes by its stretch
    deleted(whole)
    assert removals.of(Store(cfg.work)).keys() == {"u3", "a"}


def test_the_tables_keep_no_text_and_no_name_of_what_was_removed(cfg: Config) -> None:
    index(cfg)
    remove(cfg, ["u3"])
    deleted(cfg)
    paths = [path for kind in ("utterances", "recordings") for path in (Path(cfg.work) / kind).rglob("*.parquet")]
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert text_of(5) in str(rows)
    assert text_of(3) not in str(rows)
    [removed] = [row["removed"] for row in rows if row.get("removed")]
    assert removed == [{"id": "u3", "channel": None, "start_ms": 0, "end_ms": 1000, "split": "train"}]


def test_of_a_recording_that_was_removed_an_utterance_is_known_without_its_row(cfg: Config) -> None:
    index(cfg)
    recording = recording_of(cfg, "a")
    assert remove(cfg, [recording]).removed == 2
    figures = index(config.changed(cfg, "segment.min_ms=210"))
    assert (figures.utterances, figures.removed) == (NUM, 2)
    deleted(cfg)
    assert remove(cfg, ["a", "b", recording]).to_dict() == {"removed": 0, "all_removed": 2}
    with pytest.raises(DataError, match="no utterance or recording `c`"):
        remove(cfg, ["c"])


def test_shards_that_hold_what_no_table_knows_are_refused_by_the_record(cfg: Config) -> None:
    """As before the index has run again, or where an earlier version has made a table again."""
    *_, labelled, unlabelled = [step(cfg) for step in STEPS]
    remove(cfg, ["u3"])
    for kind in ("utterances", "recordings"):
        shutil.rmtree(Path(cfg.work) / kind)
    for old in (labelled, unlabelled):
        with pytest.raises(DataError, match="hold 1 utterances that were removed") as caught:
            recipes.refuse_removed(Store(cfg.work), old)
        assert "index again" in (caught.value.fix or "")
    index(cfg)
    with pytest.raises(DataError, match="hold 1 utterances that were removed") as caught:
        recipes.refuse_removed(Store(cfg.work), labelled)
    assert caught.value.fix == f"run: voxstill shard {cfg.work}"


def test_the_id_of_a_removed_utterance_stays_taken(cfg: Config, tmp_path: Path) -> None:
    index(cfg)
    remove(cfg, ["u3"])
    deleted(cfg)
    (tmp_path / "new.wav").write_bytes(wav(3000, 1.0))
    (tmp_path / "new.jsonl").write_text(json.dumps({"id": "u3", "audio": "new.wav", "text": "other", "speaker": "s"}))
    with pytest.raises(DataError, match="the id `u3` is already used"):
        index(config.changed(cfg, f"source.uri={tmp_path / 'new.jsonl'}"))
    tar = write_tar(tmp_path / "new.tar", {"u3.wav": wav(3000, 1.0)})
    index(config.changed(cfg, f"source.uri={tar}"))
    assert len(removals.of(Store(cfg.work))) == 1


def test_a_copy_of_what_a_record_of_an_earlier_version_removed_does_not_come_back(cfg: Config, tmp_path: Path) -> None:
    """Such a record knows no content: the copy was none, as the recording had its turn before it."""
    shutil.copy(tmp_path / "3.wav", tmp_path / "copy.wav")
    with (tmp_path / "manifest.jsonl").open("a") as manifest:
        manifest.write(json.dumps({"id": "copy", "audio": "copy.wav", "text": text_of(3), "split": "train"}) + "\n")
    assert index(cfg).duplicates == 1
    uri = str(tmp_path / "3.wav")
    removals.append(Store(cfg.work), [removals.Removal(id="u3", uri=uri, end_ms=1000, time="2026-01-01T00:00:00")])
    deleted(cfg)
    assert {"u3", "copy"}.isdisjoint(row.id for row in tables.read(Store(cfg.work), "utterances", Utterance))
    assert removals.of(Store(cfg.work)).keys() == {"u3"}


def test_tables_of_an_earlier_version_are_what_they_were(cfg: Config) -> None:
    for step in STEPS:
        step(cfg)
    remove(cfg, ["u3"])
    before = names(cfg) if filter_labels(cfg) else ()
    for path in Path(cfg.work).glob("recordings/*/*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns("removed"), path)
    assert names(cfg) == before
    assert not verify(cfg.work, cfg).broken


# -------------------------------------------------------------------------------------------------------------- counts


def warnings(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_utterances_without_a_verdict_are_counted_without_those_that_were_removed(
    cfg: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in STEPS[:2]:
        step(cfg)
    remove(cfg, ["u3", "u4"])
    filter_labels(cfg)
    deleted(cfg)
    write_source(tmp_path, NUM + 1)
    index(cfg)
    label_utterances(cfg)
    recipes.finished_verdicts(cfg)
    assert f"`{cfg.work}`: 1 utterances have no verdict yet" in "".join(warnings(caplog))


def test_hidden_texts_of_removed_utterances_are_not_missed(cfg: Config, tmp_path: Path) -> None:
    texts = [{"id": id_, "text": "hidden"} for id_ in ("u1", "u2", "nobody")]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    cfg = config.changed(cfg, f"evaluate.texts={tmp_path / 'texts.jsonl'}")
    index(cfg)
    remove(cfg, ["u1"])
    before = of_split(cfg)
    deleted(cfg)
    after = of_split(cfg)
    assert (after.utterances, after.warnings) == (before.utterances, before.warnings)
    assert "1 texts of `evaluate.texts`" in after.warnings[0]


def test_repacked_shards_count_what_was_removed_once(cfg: Config, tmp_path: Path) -> None:
    repack(cfg)
    remove(cfg, ["u1", "u3"])
    before = repack(cfg).left_out
    deleted(cfg)
    assert repack(cfg).left_out == before == {"removed": 2, "of the test split": 1}


def test_recordings_that_do_not_say_any_more_what_was_left_out_are_broken(cfg: Config) -> None:
    index(cfg)
    remove(cfg, ["u3"])
    deleted(cfg)
    work = Store(cfg.work)
    for key in tables.parts(work, "recordings"):
        rows = [dataclasses.replace(row, removed=None) for row in tables.from_parquet(work.read(key), IndexRow)]
        work.replace(key, tables.to_parquet(rows, IndexRow))
    [broken] = verify(cfg.work, cfg).broken
    assert broken.reason == "it has 0 removed utterances, but _SUCCESS.json says 1"
