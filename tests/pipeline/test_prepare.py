"""filter and shard as commands: what they tell, and what they leave behind when they are ended or hindered."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forked import command, forked
from voxstill import engine
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import DataError, StorageError
from voxstill.core.records import ErrorCounts, Label, Utterance, UtteranceInfo, Verdict
from voxstill.filtering.measures import PHRASES, Phrases, Score, measure
from voxstill.filtering.rules import NAMES, count_reasons, judge
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import recipes
from voxstill.pipeline import shard as sharding
from voxstill.scoring import words
from voxstill.storage import manifest, shard_format, tables
from voxstill.storage.store import Store
from voxstill.text.normalize import basic

WORDS = ("one", "two", "three", "four", "five")
_numbers = count()


def settings_of(work: str, chunk: int = 4, **more: Any) -> dict[str, Any]:
    tree = {
        "work": work,
        "engine": {"name": "inline", "chunk": chunk},
        "teacher": {"name": "echo"},
        "filter": {"keep_share": 0.7},
    }
    return tree | more


def config(work: str, chunk: int = 4, **more: Any) -> Config:
    return Config.model_validate(settings_of(work, chunk, **more))


def corpus(num: int, seed: int = 0, uri: str = "") -> list[tuple[Utterance, Label | None]]:
    chance = random.Random(seed)
    rows = []
    for i in range(num):
        text = " ".join(chance.choices(WORDS, k=chance.randint(1, 5)))
        utterance = Utterance(
            id=f"u{i}",
            recording_id=f"r{i}",
            uri=uri.format(i),
            end_ms=chance.randint(800, 1500),
            split=chance.choice(["train", "train", "dev", "test"]),  # type: ignore[arg-type]
            info=UtteranceInfo(speaker=chance.choice("abc")),
            text=chance.choice([None, text]),
        )
        label = Label(
            utterance_id=utterance.id,
            recipe="",
            teacher="echo@1",
            text=chance.choice([text, "one two", ""]),
            mean_logprob=chance.choice([None, -chance.random(), -0.5]),
        )
        rows.append((utterance, chance.choice([label, label, label, None])))
    return rows


def write_tables(cfg: Config, rows: list[tuple[Utterance, Label | None]], size: int) -> None:
    """Utterances and labels as `index` and `label` leave them, `size` utterances in a part."""
    work, recipe, task = Store(cfg.work), utterances_recipe(cfg), label.task(cfg.teacher)
    for number, chunk in enumerate(engine.chunks_of(rows, size, lambda row: row[0].id)):
        utterances = [utterance for utterance, _ in chunk.items]
        work.create(f"utterances/{recipe}/{number:03}.parquet", tables.to_parquet(utterances, Utterance))
        labels = [
            dataclasses.replace(label_row, recipe=task.recipe) for _, label_row in chunk.items if label_row is not None
        ]
        for part in engine.chunks_of(labels, cfg.engine.chunk, lambda row: row.utterance_id):
            work.create(f"{task.prefix}/{part.id}.parquet", tables.to_parquet(part.items, Label))
    work.write_json(f"utterances/{recipe}/{tables.SUCCESS}", {"recipe": recipe, "utterances": len(rows), "hours": 1.0})
    finish_labels(cfg)


def finish_labels(cfg: Config) -> None:
    work, task = Store(cfg.work), label.task(cfg.teacher)
    figures = {
        "recipe": task.recipe,
        "teacher": task.name,
        "sha256": "0",
        "listing": tables.parts_hash(work, task.prefix),
    }
    work.write_json(f"{task.prefix}/{tables.SUCCESS}", figures)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 60), st.integers(0, 99), st.integers(1, 30), st.integers(1, 9), st.integers(1, 9))
def test_every_label_is_judged_once_as_if_all_were_judged_together_whatever_the_chunks(
    num: int, seed: int, size: int, label_chunk: int, read: int
) -> None:
    rows, work = corpus(num, seed), f"memory://test-prepare-{next(_numbers)}"
    write_tables(config(work, label_chunk), rows, size)
    cfg = config(work, read)
    figures = filtering.filter_labels(cfg)
    known = [(utterance, label) for utterance, label in rows if label is not None and utterance.split != "test"]
    durations_ms = {utterance.id: utterance.duration_ms for utterance, _ in rows}
    phrases = Phrases(PHRASES)
    first_N = judge(tables.table([measure(label, utterance, phrases) for utterance, label in known], Score), cfg.filter)
    verdicts = [
        Verdict(utterance_id=utterance.id, recipe=figures.recipe, kept=i < 0, reason=NAMES[i] if i >= 0 else None)
        for (utterance, _), i in zip(known, first_N.tolist(), strict=True)
    ]
    assert list(tables.read(Store(work), f"verdicts/{figures.recipe}", Verdict)) == unordered(verdicts)
    kept = {verdict.utterance_id for verdict in verdicts if verdict.kept}
    assert figures.judged == len(verdicts)
    assert figures.kept_utterances == len(kept)
    assert figures.kept == (len(kept) / len(verdicts) if verdicts else 0)
    assert figures.kept_hours == sum(durations_ms[id_] for id_ in kept) / 3_600_000
    assert figures.reasons == count_reasons(first_N)
    pairs = {
        utterance.id: (basic(utterance.text), basic(label.text))
        for utterance, label in known
        if utterance.text is not None
    }
    if pairs:
        assert figures.wer_before == rate(pairs.values())
        assert figures.wer_after == rate(pair for id_, pair in pairs.items() if id_ in kept)
    else:
        assert "wer_before" not in figures.to_dict()


def unordered(verdicts: list[Verdict]) -> Any:
    """Equal to the same verdicts in any order."""

    class Same(list[Verdict]):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, list) and sorted(self, key=str) == sorted(other, key=str)

        __hash__ = None  # type: ignore[assignment]

    return Same(verdicts)


def rate(pairs: Any) -> float | None:
    return ErrorCounts.sum(words.count(ref.split(), hyp.split()) for ref, hyp in pairs).rate


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Of every file, but for what a killed process had only begun to write, which nobody reads, and for the accounts,
    which have times."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    paths = (path for path in files if "#" not in path.name and path.name != manifest.NAME)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_filter_that_was_killed_goes_on_and_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    rows = corpus(400)
    for name in ("calm", "struck"):
        folder = tmp_path / name
        folder.mkdir()
        tree = settings_of(str(folder / "work"))
        (folder / "config.yaml").write_text(json.dumps(tree))
        write_tables(Config.model_validate(tree), rows, 2)
    filtering.filter_labels(config(str(tmp_path / "calm/work")))
    num = len(list(tmp_path.glob("calm/work/scores/*/*.parquet")))
    struck = tmp_path / "struck"
    arguments = ("filter", struck / "work", "--config", struck / "config.yaml")
    written: dict[str, int] = {}
    for target in (1, 4):
        with forked(command, arguments, log=tmp_path / "log") as child:
            while len(list(struck.glob("work/scores/*/*.parquet"))) < target and child.is_alive():
                time.sleep(0.002)
        assert child.exitcode == -signal.SIGKILL
        times = {path.name: path.stat().st_mtime_ns for path in struck.glob("work/scores/*/*.parquet")}
        assert written.items() <= times.items()
        assert target <= len(times) < num
        written = times
    filtering.filter_labels(config(str(struck / "work")))
    for table in ("scores", "verdicts"):
        assert bytes_of(struck / "work" / table) == bytes_of(tmp_path / "calm/work" / table)
    assert len(list(struck.glob("work/scores/*/*.parquet"))) == num
    times = {path.name: path.stat().st_mtime_ns for path in struck.glob("work/scores/*/*.parquet")}
    assert written.items() <= times.items()


def test_filtering_and_sharding_under_ray_give_the_bytes_of_inline(tmp_path: Path) -> None:
    rows = [(utterance, label) for utterance, label in corpus(40, uri=str(tmp_path / "{}.wav"))]
    voices(tmp_path, rows)
    for name in ("inline", "ray"):
        cfg = config(str(tmp_path / name), engine={"name": name, "chunk": 4, "workers": 1}, shard={"utterances": 5})
        write_tables(cfg, rows, 10)
        filtering.filter_labels(cfg)
        sharding.shard(cfg)
    engine.shutdown()
    for table in ("scores", "verdicts", "shards"):
        assert bytes_of(tmp_path / "ray" / table) == bytes_of(tmp_path / "inline" / table)


def test_labels_that_were_added_since_they_were_finished_are_not_filtered_silently(tmp_path: Path) -> None:
    cfg = config(str(tmp_path))
    write_tables(cfg, corpus(20), 10)
    task = label.task(cfg.teacher)
    more = [Label(utterance_id="u0", recipe=task.recipe, teacher=task.name)]
    Store(cfg.work).create(f"{task.prefix}/more.parquet", tables.to_parquet(more, Label))
    with pytest.raises(DataError, match="not finished"):
        filtering.filter_labels(cfg)
    finish_labels(cfg)
    assert filtering.filter_labels(cfg).judged > 0


def test_a_torn_part_is_a_data_error_that_names_it(tmp_path: Path) -> None:
    cfg = config(str(tmp_path))
    write_tables(cfg, corpus(20), 10)
    torn = sorted(tmp_path.glob("utterances/*/*.parquet"))[1]
    torn.write_bytes(torn.read_bytes()[:-3])
    with pytest.raises(DataError, match=torn.name):
        filtering.filter_labels(cfg)


def voices(folder: Path, rows: list[tuple[Utterance, Any]]) -> None:
    """A recording for each utterance."""
    for number, (utterance, _) in enumerate(rows):
        noise_T = np.random.default_rng(number).integers(-9000, 9000, utterance.end_ms * 16).astype(np.int16)
        (folder / f"{number}.wav").write_bytes(codec.encode(noise_T, "wav"))


def test_storage_that_fails_ends_shard_with_its_error_and_nothing_is_lost_when_it_is_back(tmp_path: Path) -> None:
    rows = corpus(40, uri=str(tmp_path / "{}.wav"))
    voices(tmp_path, rows)
    sharded = {"utterances": 5}
    calm, struck = (config(str(tmp_path / name), shard=sharded) for name in ("calm", "struck"))
    for cfg in (calm, struck):
        write_tables(cfg, rows, 10)
        filtering.filter_labels(cfg)
    figures = sharding.shard(calm)
    whole = pa.concat_tables(shard_format.sidecars(Store(calm.work), f"shards/{figures.recipe}"))
    (member,) = whole.slice(figures.utterances // 2, 1)["id"]
    lost = tmp_path / f"{member.as_py()[1:]}.wav"
    lost.rename(tmp_path / "away")
    with pytest.raises(StorageError, match=r"shard \d cannot be written") as caught:
        sharding.shard(struck)
    assert str(lost) in caught.value.why
    written = bytes_of(tmp_path / "struck/shards")
    assert written
    assert not any(name.endswith(tables.SUCCESS) for name in written)
    (tmp_path / "away").rename(lost)
    assert sharding.shard(struck) == figures
    assert figures.dropped == {}
    assert figures.utterances == filtering.filter_labels(calm).kept_utterances
    whole = bytes_of(tmp_path / "struck/shards")
    assert whole == bytes_of(tmp_path / "calm/shards")
    assert written.items() <= whole.items()


def test_a_shard_lists_what_it_dropped_also_when_it_was_written_before(tmp_path: Path) -> None:
    rows = corpus(30, uri=str(tmp_path / "{}.wav"))
    voices(tmp_path, rows)
    cfg = config(str(tmp_path / "work"), shard={"utterances": 5})
    write_tables(cfg, rows, 10)
    kept = filtering.filter_labels(cfg).kept_utterances
    for number in range(0, 30, 3):
        (tmp_path / f"{number}.wav").write_text("no audio")
    figures = sharding.shard(cfg)
    num_dropped = sum(figures.dropped.values())
    assert 0 < num_dropped == kept - figures.utterances
    (tmp_path / "work/shards" / figures.recipe / tables.SUCCESS).unlink()
    again = sharding.shard(cfg)
    assert sum(again.dropped.values()) == num_dropped
    assert dataclasses.replace(again, dropped=figures.dropped) == figures


def test_shards_without_labels_hold_every_utterance_and_no_student_takes_them_for_labelled(tmp_path: Path) -> None:
    rows = corpus(30, uri=str(tmp_path / "{}.wav"))
    voices(tmp_path, rows)
    cfg = config(str(tmp_path / "work"), shard={"utterances": 10})
    write_tables(cfg, rows, 10)
    figures = sharding.audio_shards(cfg)  # there are none yet, so they are made
    whole = pa.concat_tables(shard_format.sidecars(Store(cfg.work), f"shards/{figures.recipe}"))
    listened = [utterance for utterance, _ in rows if utterance.split != "test"]
    assert sorted(whole["id"].to_pylist()) == sorted(utterance.id for utterance in listened)
    assert set(whole["text"].to_pylist()) == {""}
    assert sharding.audio_shards(cfg) == figures
    filtering.filter_labels(cfg)
    with pytest.raises(DataError, match="no labels"):
        recipes.finished_shards(cfg)
    labelled = sharding.shard(cfg)
    assert recipes.finished_shards(cfg) == labelled
    assert sharding.audio_shards(cfg) == figures


def test_verdicts_of_an_earlier_release_are_counted_by_the_names_of_today() -> None:
    cfg = config(f"memory://test-prepare-{next(_numbers)}")
    write_tables(cfg, corpus(20), 5)
    figures = filtering.filter_labels(cfg)
    old = {"hallucination": "made_up", "high_compression": "too_regular"}
    reasons = {old.get(name, name): num for name, num in figures.reasons.items()}
    key = f"verdicts/{figures.recipe}/{tables.SUCCESS}"
    Store(cfg.work).replace(key, json.dumps(figures.to_dict() | {"reasons": reasons}).encode())
    Store(cfg.work).delete(f"verdicts/{figures.recipe}/{manifest.NAME}")  # earlier releases wrote none
    assert filtering.filter_labels(cfg) == figures
