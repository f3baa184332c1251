"""`train.corpora`: several works in one training, each utterance once, held-out ones never."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from tones import TEXTS, speak, write_shards
from training import train_once
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.data.loader import Batches
from voxstill.data.plan import plan
from voxstill.data.shard_index import open_index
from voxstill.pipeline import language_model
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.mixture import labelled_shards
from voxstill.pipeline.plan import plan_
from voxstill.pipeline.remove import remove
from voxstill.pipeline.shard import shard
from voxstill.pipeline.train import train
from voxstill.storage import shard_format, tables, workdir
from voxstill.storage.figures import IndexFigures, ShardFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

SETTINGS = (*train_once.SETTINGS, *train_once.OF_STUDENT, "train.steps=2")


@pytest.fixture
def works(tmp_path: Path) -> tuple[Store, Store]:
    """Human texts of 12 utterances, and pseudo-labels of these and 8 more."""
    human, pseudo = Store(str(tmp_path / "human")), Store(str(tmp_path / "pseudo"))
    write_shards(human, "shards/h", {"train": 12, "dev": 4})
    write_shards(pseudo, "shards/p", {"train": 20}, seed=1)
    return human, pseudo


def configuration(work: Store, *overrides: str) -> Config:
    return config.load(None, [f"work={work.root}", *SETTINGS, *overrides])


def mixed(human: Store, pseudo: Store, *overrides: str) -> Config:
    """Both, by a work folder of its own."""
    corpora = f"[{{work: {human.root}, dataset: human}}, {{work: {pseudo.root}, dataset: pseudo}}]"
    return configuration(own_work(human), f"train.corpora={corpora}", *overrides)


def own_work(human: Store) -> Store:
    return Store(str(Path(human.root).parent / "own"))


def rows_of(store: Store, figures: ShardFigures) -> list[Sample]:
    prefix = workdir.prefix(figures.kind, figures.recipe)
    return list(tables.read(store, prefix, Sample))


def test_an_utterance_of_two_corpora_comes_once_from_the_first(works: tuple[Store, Store]) -> None:
    human, pseudo = works
    figures = labelled_shards(mixed(human, pseudo))
    rows = rows_of(own_work(human), figures)
    assert len(rows) == len({row.id for row in rows}) == figures.utterances == 24
    assert figures.dropped == {"in an earlier corpus": 12}
    texts = {row.id: row.text for row in tables.read(human, "shards/h", Sample)}
    assert all(row.text == texts[row.id] for row in rows if row.id in texts)
    assert {row.info.dataset for row in rows} == {"human", "pseudo"}
    assert sorted(row.id for row in rows if row.info.dataset == "pseudo") == sorted(f"train/{i}" for i in range(12, 20))


def test_its_audio_is_that_of_the_corpora(works: tuple[Store, Store], tmp_path: Path) -> None:
    human, pseudo = works
    cfg = mixed(human, pseudo)
    figures = labelled_shards(cfg)
    prefix = workdir.prefix(figures.kind, figures.recipe)
    index = open_index(own_work(human), prefix, tmp_path / "index", splits=("train",), encode=None, encoder="")
    batches = Batches(index, plan(index.durations_ms, None, cfg.plan, seed=0, epoch=0))
    steps = [batches[step] for step in range(len(batches))]
    assert not any(step.unread for step in steps)
    assert sum(int((batch.weight_B > 0).sum()) for step in steps for batch in step.batches) == 20


def test_what_is_held_out_to_judge_on_is_in_no_corpus(works: tuple[Store, Store]) -> None:
    human, pseudo = works
    utterances = [
        Utterance(id=f"train/{i}", recording_id=f"{i}", uri="x", end_ms=100, split="test" if i in (3, 15) else "train")
        for i in range(20)
    ]
    own_work(human).create("utterances/u/a.parquet", tables.to_parquet(utterances, Utterance))
    workdir.finish(own_work(human), IndexFigures(recipe="u"))
    figures = labelled_shards(mixed(human, pseudo))
    assert {"train/3", "train/15"}.isdisjoint(row.id for row in rows_of(own_work(human), figures))
    assert figures.dropped == {"in an earlier corpus": 11, "of a test split": 3}


def test_audio_is_compared_and_not_its_id_alone(tmp_path: Path) -> None:
    """The same files are in both corpora, under other ids and as other stretches."""
    for number in range(6):
        (tmp_path / f"{number}.wav").write_bytes(codec.encode(speak(TEXTS[0], number)[0], "wav"))
    whole = [{"audio": f"{i}.wav", "id": f"a{i}", "split": "test" if i < 2 else "train"} for i in range(6)]
    other = [{"audio": f"{i}.wav", "id": f"b{i}", "split": "train"} for i in range(6) if i not in (1, 3)]
    parts = [
        {"audio": f"{i}.wav", "id": f"b{i}-{at}", "offset": at / 2, "duration": 0.5, "text": "on", "split": "train"}
        for i in (1, 3)
        for at in (0, 1)
    ]
    works = [prepared(tmp_path, name, rows) for name, rows in (("a", whole), ("b", [*other, *parts]))]
    corpora = f"[{{work: {works[0].work}}}, {{work: {works[1].work}}}]"
    figures = labelled_shards(config.changed(works[0], f"train.corpora={corpora}"))
    assert figures.dropped == {"of a test split": 3, "in an earlier corpus": 3}
    ids = {row.id for row in rows_of(Store(works[0].work), figures)}
    assert ids == {"a2", "a3", "a4", "a5", "b3-0", "b3-1"}


def test_what_was_removed_from_one_work_folder_comes_from_no_other(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.wav").write_bytes(codec.encode(speak(TEXTS[0], number)[0], "wav"))
    first, second = (
        prepared(tmp_path, name, [{"audio": f"{i}.wav", "id": f"{id_}{i}", "split": "train"} for i in range(5)])
        for name, id_ in (("a", "u"), ("b", "other"))
    )
    corpora = f"[{{work: {first.work}}}, {{work: {second.work}}}]"
    both = config.changed(first, f"train.corpora={corpora}")
    assert labelled_shards(both).utterances == 5
    remove(first, ["u2"])
    for step in (label_utterances, filter_labels, shard):
        step(first)
    figures = labelled_shards(both)
    assert {row.id for row in rows_of(Store(first.work), figures)} == {"u0", "u1", "u3", "u4"}
    assert figures.dropped == {"removed": 1, "in an earlier corpus": 4}


def clips(folder: Path, texts: list[str], seed: int) -> None:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.wav").write_bytes(codec.encode(speak(text, seed + number)[0], "wav"))


def rows_below(folder: str, num: int, id_: str, tests: int = 0) -> list[dict[str, object]]:
    splits = ["test"] * tests + ["train"] * (num - tests)
    return [{"audio": f"{folder}/{i}.wav", "id": f"{id_}{i}", "split": split} for i, split in enumerate(splits)]


def of_both(first: Config, second: Config) -> Config:
    return config.changed(first, f"train.corpora=[{{work: {first.work}}}, {{work: {second.work}}}]")


def test_other_audio_under_the_same_ids_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where one is as long; but what has the id and the length of a test utterance may be that, encoded anew."""
    texts = [TEXTS[0], TEXTS[2], TEXTS[0], TEXTS[0], TEXTS[0]]
    clips(tmp_path / "x", texts, seed=0)
    clips(tmp_path / "y", [TEXTS[0]] * 5, seed=50)
    first = prepared(tmp_path, "a", rows_below("x", 5, "u", tests=2))
    second = prepared(tmp_path, "b", rows_below("y", 5, "u"))
    figures = labelled_shards(of_both(first, second))
    ids = sorted(row.id for row in rows_of(Store(first.work), figures))
    assert ids == ["u1", "u2", "u2", "u3", "u3", "u4", "u4"]
    assert figures.dropped == {"of a test split": 1}
    assert "1 utterances are left out that have the id and length of a held-out or removed one" in caplog.text
    assert plan_(first.work, None, 0, of_both(first, second)).steps


def test_copies_of_a_file_are_one_file(tmp_path: Path) -> None:
    clips(tmp_path / "x", [TEXTS[0]] * 6, seed=0)
    shutil.copytree(tmp_path / "x", tmp_path / "y")
    clips(tmp_path / "z", [TEXTS[0]], seed=50)
    (tmp_path / "z/0.wav").rename(tmp_path / "y/6.wav")
    first = prepared(tmp_path, "a", rows_below("x", 6, "u", tests=2))
    second = prepared(tmp_path, "b", rows_below("y", 7, "v"))
    both = of_both(first, second)
    figures = labelled_shards(both)
    assert {row.id for row in rows_of(Store(first.work), figures)} == {"u2", "u3", "u4", "u5", "v6"}
    assert figures.dropped == {"of a test split": 2, "in an earlier corpus": 4}
    remove(first, ["u3"])
    for step in (label_utterances, filter_labels, shard):
        step(first)
    figures = labelled_shards(both)
    assert {row.id for row in rows_of(Store(first.work), figures)} == {"u2", "u4", "u5", "v6"}
    assert figures.dropped == {"of a test split": 2, "removed": 1, "in an earlier corpus": 3}


def prepared(folder: Path, name: str, rows: list[dict[str, object]]) -> Config:
    """A work folder with shards of these rows of a manifest."""
    (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": TEXTS[0], **row}) + "\n" for row in rows))
    cfg = config.load(
        None, [f"work={folder}/{name}", f"source.uri={folder}/{name}.jsonl", "teacher=reference", "engine=inline"]
    )
    for step in (index, label_utterances, filter_labels, shard):
        step(cfg)
    return cfg


def test_training_plan_and_language_model_read_the_mixture(
    works: tuple[Store, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    human, pseudo = works
    weights = "plan.weights={human: 3.0, pseudo: 1.0}"
    cfg = mixed(human, pseudo, weights)
    summary = train(cfg)
    assert summary.utterances > 20  # those of the human texts come more than once
    result = plan_(cfg.work, None, 0, cfg)
    environment = json.loads(RunDir(Path(summary.path)).environment.read_text())
    assert environment["plan_hash"] == result.sha256
    assert [corpus["shards"] for corpus in environment["data"]["corpora"]] == ["h", "p"]
    assert train(cfg).path == summary.path
    counted = language_model.of_labels(cfg, str(tmp_path / "lm.arpa"), 2)
    assert counted.sentences == 20


def test_two_labels_of_one_work_are_told_apart_by_their_teacher(tmp_path: Path) -> None:
    work = Store(str(tmp_path / "work"))
    write_shards(work, "shards/h", {"train": 4})
    write_shards(work, "shards/p", {"train": 8}, seed=1)
    for recipe, teacher in (("h", "reference@1"), ("p", "echo@1")):
        key = f"shards/{recipe}/_SUCCESS.json"
        figures = ShardFigures.from_dict(work.read_json(key) or {})
        work.replace(key, json.dumps(dataclasses.replace(figures, teacher=teacher).to_dict()).encode())
    both = f"[{{work: {work.root}, shards: reference}}, {{work: {work.root}, shards: p}}]"
    figures = labelled_shards(configuration(work, f"train.corpora={both}"))
    assert (figures.utterances, figures.teacher) == (8, "reference@1 + echo@1")
    with pytest.raises(DataError, match=r"whisper") as caught:
        labelled_shards(configuration(work, f"train.corpora=[{{work: {work.root}, shards: whisper}}]"))
    assert "h (reference@1), p (echo@1)" in caught.value.why


def test_another_content_of_a_corpus_is_another_mixture(works: tuple[Store, Store]) -> None:
    human, pseudo = works
    first = labelled_shards(mixed(human, pseudo))
    assert labelled_shards(mixed(human, pseudo)).recipe == first.recipe
    write_shards(pseudo, "shards/q", {"train": 24}, seed=1)
    with pytest.raises(DataError, match="several recipes"):
        labelled_shards(mixed(human, pseudo))
    corpora = f"train.corpora=[{{work: {human.root}}}, {{work: {pseudo.root}, shards: q}}]"
    assert labelled_shards(configuration(own_work(human), corpora)).recipe != first.recipe


def test_an_unfinished_mixture_is_written_again(works: tuple[Store, Store]) -> None:
    human, pseudo = works
    figures = labelled_shards(mixed(human, pseudo))
    prefix = workdir.prefix(figures.kind, figures.recipe)
    own = own_work(human)
    whole = {key: own.read(key) for key in tables.parts(own, prefix)}
    own.delete(f"{prefix}/_SUCCESS.json")
    own.delete(f"{prefix}/{shard_format.sidecar_name(1)}")
    assert labelled_shards(mixed(human, pseudo)) == figures
    assert {key: own.read(key) for key in tables.parts(own, prefix)} == whole


def test_shards_without_labels_are_refused_where_texts_are_learnt(works: tuple[Store, Store]) -> None:
    human, pseudo = works
    figures = ShardFigures.from_dict(pseudo.read_json("shards/p/_SUCCESS.json") or {})
    key = "shards/p/_SUCCESS.json"
    pseudo.replace(key, json.dumps(dataclasses.replace(figures, unlabelled=True).to_dict()).encode())
    with pytest.raises(DataError, match="have no labels"):
        labelled_shards(mixed(human, pseudo))
