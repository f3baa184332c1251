"""A corpus that grows: old shards stay as they are, and only what is new is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tones import TEXTS, speak
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.data.loader import Batches
from voxstill.data.plan import plan
from voxstill.data.shard_index import open_index
from voxstill.pipeline.clean import clean
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.mixture import labelled_shards
from voxstill.pipeline.recipes import removed_in
from voxstill.pipeline.remove import remove
from voxstill.pipeline.shard import shard, shard_unlabelled
from voxstill.pipeline.verify import verify
from voxstill.sharding import generation, references
from voxstill.storage import manifest, tables, workdir
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample, sidecar_name
from voxstill.storage.store import Store


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    return config.load(
        None,
        [
            f"work={tmp_path}/work",
            f"source={{uri: {tmp_path}/manifest.jsonl, dev_share: 0.0, test_share: 0.0}}",
            "teacher=reference",
            "engine={name: inline, chunk: 4}",
            "shard.utterances=6",
        ],
    )


def grow(folder: Path, last: int, ending: str = "") -> None:
    """A manifest of recordings 0 to `last`, of which those that are there stay; ids have an ending."""
    lines = []
    for number in range(last):
        path, text = folder / f"{number}.wav", TEXTS[number % len(TEXTS)]
        if not path.exists():
            path.write_bytes(codec.encode(speak(text, number)[0], "wav"))
        lines.append(
            json.dumps({"audio": path.name, "id": f"u{number}{ending}", "text": text, "speaker": f"s{number}"})
        )
    (folder / "manifest.jsonl").write_text("\n".join(lines))


def sharded(cfg: Config, *overrides: str) -> ShardFigures:
    cfg = config.changed(cfg, *overrides)
    index(cfg)
    label_utterances(cfg)
    filter_labels(cfg)
    return shard(cfg)


def rows_of(cfg: Config, figures: ShardFigures) -> list[Sample]:
    return list(tables.read(Store(cfg.work), f"shards/{figures.recipe}", Sample))


def stored(cfg: Config, figures: ShardFigures) -> dict[str, bytes]:
    folder = Path(cfg.work) / "shards" / figures.recipe
    others = ("_lease", manifest.NAME)  # a manifest has etags, which go by times
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(others)}


def audio_of(cfg: Config, figures: ShardFigures, folder: Path) -> int:
    """Utterances that a training reads."""
    prefix = workdir.prefix(figures.kind, figures.recipe)
    corpus = open_index(Store(cfg.work), prefix, folder, splits=("train",), encode=None, encoder="")
    batches = Batches(corpus, plan(corpus.durations_ms, None, cfg.plan, seed=0, epoch=0))
    steps = [batches[step] for step in range(len(batches))]
    assert not any(step.unread for step in steps)
    return sum(int((batch.weight_B > 0).sum()) for step in steps for batch in step.batches)


def test_old_shards_stay_and_the_new_ones_hold_what_is_new(cfg: Config, tmp_path: Path) -> None:
    grow(tmp_path, 12)
    first = sharded(cfg)
    before = stored(cfg, first)
    grow(tmp_path, 20)
    second = sharded(cfg)
    assert stored(cfg, first) == before
    assert second.recipe != first.recipe
    assert (first.utterances, second.utterances, first.generation, second.generation) == (12, 20, None, 2)
    rows = rows_of(cfg, second)
    assert sorted(row.id for row in rows) == sorted(f"u{number}" for number in range(20))
    assert {row.id for row in rows if row.tar is None} == {f"u{number}" for number in range(12, 20)}
    tars = list((Path(cfg.work) / "shards" / second.recipe).glob("*.tar"))
    assert len(tars) == 2
    assert audio_of(cfg, second, tmp_path / "index") == 20


def test_ids_that_look_like_those_of_cut_samples_are_ids(cfg: Config, tmp_path: Path) -> None:
    """`call#0-9500` is a part of `call`, but a manifest may name stretches in the same way."""
    grow(tmp_path, 12, "#0-1000")
    index(cfg)
    first = shard_unlabelled(cfg)
    remove(cfg, ["u3#0-1000"])
    assert removed_in(Store(cfg.work), first) == {"u3#0-1000"}
    second = shard_unlabelled(cfg)
    grow(tmp_path, 14, "#0-1000")
    index(cfg)
    third = shard_unlabelled(cfg)
    for figures, last in ((second, 12), (third, 14)):
        ids = sorted(row.id for row in rows_of(cfg, figures))
        assert ids == sorted(f"u{number}#0-1000" for number in range(last) if number != 3)
    clean(cfg, delete=True)
    for path in (Path(cfg.work) / "shards").rglob("*.tar"):
        assert b"u3#0-1000" not in path.read_bytes()


def test_a_third_generation_names_the_tars_of_the_first_and_the_work_folder_may_be_moved(
    cfg: Config, tmp_path: Path
) -> None:
    for last in (6, 12, 18):
        grow(tmp_path, last)
        figures = sharded(cfg)
    assert figures.generation == 3
    tars = {row.tar.split("/")[1] for row in rows_of(cfg, figures) if row.tar}
    assert len(tars) == 2
    assert figures.recipe not in tars
    moved = config.changed(cfg, f"work={tmp_path}/moved")
    Path(cfg.work).rename(moved.work)
    assert audio_of(moved, figures, tmp_path / "index") == 18
    mixed = config.changed(
        moved, f"work={tmp_path}/other", f"train.corpora=[{{work: {moved.work}, shards: {figures.recipe}}}]"
    )
    assert audio_of(mixed, labelled_shards(mixed), tmp_path / "index-mixed") == 18


def test_other_options_are_another_lineage(cfg: Config, tmp_path: Path) -> None:
    grow(tmp_path, 8)
    sharded(cfg)
    for override in ("filter.max_repeats=7", "shard.utterances=4"):
        figures = sharded(cfg, override)
        assert figures.generation is None
        assert not any(row.tar for row in rows_of(cfg, figures))


def test_an_unfinished_generation_goes_on_from_the_same_one(cfg: Config, tmp_path: Path) -> None:
    grow(tmp_path, 12)
    sharded(cfg)
    grow(tmp_path, 20)
    figures = sharded(cfg)
    whole = stored(cfg, figures)
    folder = Path(cfg.work) / "shards" / figures.recipe
    for name in ("_SUCCESS.json", sidecar_name(0), sidecar_name(2)):
        (folder / name).unlink()
    assert sharded(cfg) == figures
    assert stored(cfg, figures) == whole


def test_a_tar_of_which_little_is_kept_is_not_named(cfg: Config, tmp_path: Path) -> None:
    grow(tmp_path, 12)
    figures = sharded(cfg)
    store = Store(cfg.work)
    base = references.ShardSet(store, f"shards/{figures.recipe}", figures)
    [first, second] = list(base.utterances())
    chosen = generation.reusable(base, tables.IdSet([*first[:5], *second[:2]]))
    assert [(reference.index, int(np.sum(reference.is_kept_N))) for reference in chosen] == [(0, 5)]
    assert sorted(generation.ids(base, chosen)) == sorted(first[:5])


def test_shards_without_labels_grow_too(cfg: Config, tmp_path: Path) -> None:
    grow(tmp_path, 8)
    index(cfg)
    first = shard_unlabelled(cfg)
    assert shard_unlabelled(cfg) == first
    grow(tmp_path, 14)
    index(cfg)
    second = shard_unlabelled(cfg)
    assert (first.utterances, second.utterances, second.generation) == (8, 14, 2)
    assert second.recipe != first.recipe
    assert shard_unlabelled(cfg) == second


def test_a_broken_tar_of_an_earlier_generation_is_named_and_its_utterances_are_written_anew(
    cfg: Config, tmp_path: Path
) -> None:
    grow(tmp_path, 12)
    first = sharded(cfg)
    grow(tmp_path, 20)
    second = sharded(cfg)
    assert verify(cfg.work, cfg).broken == []
    tar = Path(cfg.work) / "shards" / first.recipe / "00001.tar"
    data = bytearray(tar.read_bytes())
    data[5000] ^= 1
    tar.write_bytes(data)
    broken = {row.path for row in verify(cfg.work, cfg).broken}
    assert broken == {f"shards/{first.recipe}/00001.tar", f"shards/{second.recipe}/00003.parquet"}
    result = verify(cfg.work, cfg, repair=True)
    assert (set(result.repaired), result.exit_code) == (broken, 0)
    assert verify(cfg.work, cfg).broken == []
    figures = shard(cfg)
    assert (figures.recipe, figures.utterances) == (second.recipe, 20)
    assert audio_of(cfg, figures, tmp_path / "index") == 20


def test_a_broken_mixture_is_written_again(cfg: Config, tmp_path: Path) -> None:
    grow(tmp_path, 12)
    sharded(cfg)
    mixed = config.changed(cfg, f"train.corpora=[{{work: {cfg.work}}}]")
    figures = labelled_shards(mixed)
    sidecar = Path(cfg.work) / "mixtures" / figures.recipe / sidecar_name(0)
    whole = sidecar.read_bytes()
    sidecar.write_bytes(whole[:-9])
    result = verify(cfg.work, cfg, repair=True)
    assert [row.path for row in result.broken] == [f"mixtures/{figures.recipe}/{sidecar_name(0)}"]
    assert labelled_shards(mixed) == figures
    assert sidecar.read_bytes() == whole


def test_a_corpus_of_a_mixture_is_its_newest_generation(cfg: Config, tmp_path: Path) -> None:
    for last in (6, 12):
        grow(tmp_path, last)
        figures = sharded(cfg)
    for named in ("", ", shards: reference"):
        corpora = f"train.corpora=[{{work: {cfg.work}{named}}}]"
        mixed = labelled_shards(config.changed(cfg, f"work={tmp_path}/other", corpora))
        assert [corpus["shards"] for corpus in mixed.corpora] == [figures.recipe]


def test_clean_keeps_what_the_next_training_and_the_next_generation_need(cfg: Config, tmp_path: Path) -> None:
    grow(tmp_path, 8)
    index(cfg)
    unlabelled = shard_unlabelled(cfg)
    human = sharded(cfg)
    echo = sharded(cfg, "teacher=echo")
    corpora = f"train.corpora=[{{work: {cfg.work}, shards: reference}}, {{work: {cfg.work}, shards: echo}}]"
    both = config.changed(cfg, "teacher=echo", corpora)
    grow(tmp_path, 12)
    index(cfg)
    clean(both, delete=True)
    for figures in (human, echo, unlabelled):
        assert rows_of(cfg, figures)
    assert labelled_shards(both).utterances == 8
    assert shard_unlabelled(cfg).generation == 2
