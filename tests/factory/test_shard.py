"""Sharding: each utterance once, well mixed, within limits, and whole again after any crash."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import count, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill import tables
from voxstill.audio import codec
from voxstill.config import Shard
from voxstill.errors import DataError, StorageError
from voxstill.factory import engine, join, shard
from voxstill.records import Label, Utterance, Verdict, Word, fingerprint
from voxstill.shards import Sample
from voxstill.store import Store, read_uri

WINDOW = 12


@st.composite
def tables_of(draw: st.DrawFn) -> list[list[Utterance]]:
    """Parts of a table of utterances."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["train", "dev", "test"]),
                st.sampled_from([None, "ann", "ben", "cem", "dee"]),
                st.integers(1, 60_000),
                st.integers(0, 4),
            ),
            max_size=60,
        )
    )
    parts: list[list[Utterance]] = [[] for _ in range(5)]
    for i, (split, speaker, ms, part) in enumerate(rows):
        parts[part].append(
            Utterance(id=f"u{i}", recording_id=f"r{i}", uri="", end_ms=ms, split=split, speaker=speaker)  # type: ignore[arg-type]
        )
    return parts


def surveyed(parts: list[list[Utterance]], dropped: frozenset[str] = frozenset()) -> tuple[Store, shard.Corpus]:
    work = Store(f"memory://test-shard-{next(_numbers)}")
    for number, rows in enumerate(parts):
        judged = [Verdict(utterance_id=each.id, recipe="v", kept=each.id not in dropped) for each in rows]
        work.create(f"u/{number}.parquet", tables.to_parquet(rows, Utterance))
        work.create(f"v/{number + 7}.parquet", tables.to_parquet(judged, Verdict))
    return work, shard.survey(work, join.parts(work, "u", "l", 4), "v")


def named(parts: list[list[Utterance]], corpus: shard.Corpus, planned: list[list[np.ndarray]]) -> list[list[str]]:
    """The ids in each shard."""
    places = [
        [(corpus.part_N[place], corpus.row_N[place]) for place in shard_K] for window in planned for shard_K in window
    ]
    return [[parts[part][row].id for part, row in members] for members in places]


_numbers = count()


@settings(max_examples=60, deadline=None)
@given(tables_of(), st.integers(1, 20), st.integers(1, 5), st.integers(0, 3), st.sampled_from([1, WINDOW, 60]))
def test_every_utterance_that_is_kept_is_in_one_shard_of_its_split_within_the_limits(
    parts: list[list[Utterance]], most: int, max_mb: int, seed: int, window: int
) -> None:
    cfg = Shard(utterances=most, max_mb=max_mb)
    by_id = {each.id: each for part in parts for each in part}
    dropped = frozenset(id_ for id_ in by_id if id_.endswith("3"))
    _, corpus = surveyed(parts, dropped)
    planned = named(parts, corpus, shard.assign(corpus, cfg, seed, window))
    assert Counter(id_ for ids in planned for id_ in ids) == Counter(by_id.keys() - dropped)
    for ids in planned:
        members = [by_id[id_] for id_ in ids]
        assert len({each.split for each in members}) == 1
        assert 0 < len(members) <= most
        assert len(members) == 1 or sum(each.duration_ms * 32 for each in members) <= max_mb * 1_000_000


@settings(max_examples=40, deadline=None)
@given(tables_of(), st.integers(0, 3), st.randoms())
def test_a_corpus_of_one_window_has_the_same_shards_however_its_table_is_cut_and_ordered(
    parts: list[list[Utterance]], seed: int, random: Random
) -> None:
    rows = [each for part in parts for each in part]
    random.shuffle(rows)
    anew = [rows[: len(rows) // 3], rows[len(rows) // 3 :]]
    cfg = Shard(utterances=7)
    one, other = (
        named(cut, corpus, shard.assign(corpus, cfg, seed)) for cut in (parts, anew) for _, corpus in [surveyed(cut)]
    )
    assert one == other


@settings(max_examples=40, deadline=None)
@given(tables_of(), st.integers(0, 3), st.randoms())
def test_windows_depend_on_the_seed_and_not_on_the_order_within_parts_and_hold_whole_parts(
    parts: list[list[Utterance]], seed: int, random: Random
) -> None:
    _, corpus = surveyed(parts)
    planned = shard.assign(corpus, Shard(), seed, WINDOW)
    for part in range(len(parts)):
        for split in range(3):
            there = {
                number
                for number, window in enumerate(planned)
                for place in np.concatenate(window)
                if (corpus.part_N[place], corpus.split_N[place]) == (part, split)
            }
            assert len(there) <= 1
    anew = [random.sample(rows, len(rows)) for rows in parts]
    _, again = surveyed(anew)
    assert named(anew, again, shard.assign(again, Shard(), seed, WINDOW)) == named(parts, corpus, planned)


def test_a_window_is_at_most_a_part_larger_than_asked_for() -> None:
    num = 5000
    corpus = shard.Corpus(
        part_N=np.repeat(np.arange(100, dtype=np.int32), 50),
        row_N=np.tile(np.arange(50, dtype=np.int32), 100),
        split_N=np.zeros(num, np.int8),
        voice_N=np.arange(num, dtype=np.uint64),
        duration_ms_N=np.full(num, 1000),
    )
    windows = [np.concatenate(window) for window in shard.assign(corpus, Shard(), 0, window=1000)]
    assert len(windows) == 5
    assert max(map(len, windows)) < 1000 + 50
    assert sorted(np.concatenate(windows)) == list(range(num))


def test_shards_are_those_of_the_first_release_for_the_same_seed() -> None:
    chance = Random(5)
    corpus = [
        Utterance(
            id=fingerprint(i),
            recording_id=f"r{i // 3}",
            uri="",
            end_ms=chance.randint(500, 20_000),
            split=chance.choice(["train"] * 8 + ["dev", "test"]),  # type: ignore[arg-type]
            speaker=chance.choice([None, "", *"abcdefgh"]),
            dataset=chance.choice([None, "x", "y"]),
        )
        for i in range(700)
    ]
    parts = [corpus[:300], corpus[300:]]
    _, columns = surveyed(parts)
    for seed, known in ((0, "d5763d94f41ffaa2"), (1, "bad381f6b67a035f"), (7, "b8b5c89007026b54")):
        planned = shard.assign(columns, Shard(utterances=40, max_mb=10), seed)
        assert fingerprint(named(parts, columns, planned)) == known


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(5, 40), min_size=4, max_size=12), st.integers(0, 1000))
def test_neighbours_differ_where_no_speaker_has_more_than_three_in_ten(sizes: list[int], seed: int) -> None:
    group_N = np.repeat(np.arange(len(sizes)), sizes)
    if max(sizes) > 0.3 * len(group_N):
        return
    order_N = shard.spread(group_N, np.random.default_rng(seed))
    assert sorted(order_N) == list(range(len(group_N)))
    assert all(one != two for one, two in pairwise(group_N[order_N]))


def test_each_speaker_is_spread_evenly_over_the_whole_corpus() -> None:
    group_N = np.repeat(np.arange(20), 100)
    thirds = np.array_split(group_N[shard.spread(group_N, np.random.default_rng(0))], 3)
    for third in thirds:
        assert np.abs(np.bincount(third, minlength=20) - 33.3).max() < 2


def test_another_seed_is_another_order() -> None:
    parts = [[Utterance(id=f"{i}", recording_id=f"{i}", uri="", end_ms=1000) for i in range(50)]]
    _, corpus = surveyed(parts)
    one, other = (named(parts, corpus, shard.assign(corpus, Shard(), seed)) for seed in (0, 1))
    assert one != other


@settings(max_examples=40, deadline=None)
@given(tables_of(), st.integers(1, 9), st.integers(1, 9), st.sets(st.integers(0, 5)))
def test_a_job_holds_the_utterances_of_its_shard_and_their_labels_whatever_the_chunks_of_labels(
    parts: list[list[Utterance]], labelled: int, read: int, there: set[int]
) -> None:
    work, corpus = surveyed(parts)
    for rows in parts:
        for chunk in engine.chunks_of(rows, labelled, lambda each: each.id):
            work.create(
                f"l/{chunk.id}.parquet", tables.to_parquet([heard(each.id, each.id) for each in chunk.items], Label)
            )
    windows = shard.assign(corpus, Shard(utterances=4), 0, WINDOW)
    planned = named(parts, corpus, windows)
    by_id = {each.id: each for part in parts for each in part}
    found = list(shard.jobs(work, join.parts(work, "u", "l", read), corpus, windows, there))
    assert [job.index for job in found] == [index for index in range(len(planned)) if index not in there]
    for job in found:
        assert tables.from_parquet(job.utterances, Utterance) == [by_id[id_] for id_ in planned[job.index]]
        assert tables.from_parquet(job.labels, Label) == [heard(id_, id_) for id_ in planned[job.index]]


def test_a_label_that_was_removed_is_an_error_that_names_its_utterance() -> None:
    work, corpus = surveyed([[Utterance(id="a", recording_id="a", uri="", end_ms=500)]])
    with pytest.raises(DataError, match="`a` was kept and has no label"):
        list(shard.jobs(work, join.parts(work, "u", "l", 4), corpus, shard.assign(corpus, Shard(), 0), ()))


def tone(num_samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9000, 9000, num_samples).astype(np.int16)


def recording(folder: Path, name: str, num_samples: int, seed: int = 0) -> str:
    path = folder / name
    path.write_bytes(codec.encode(tone(num_samples, seed), "wav"))
    return str(path)


def heard(utterance_id: str, text: str) -> Label:
    words = (Word(text=text, start_ms=0, end_ms=50),)
    return Label(utterance_id=utterance_id, recipe="r", teacher="echo@1", text=text, words=words, language="en")


@pytest.mark.parametrize("form", ["flac", "wav"])
def test_what_is_written_is_the_audio_and_the_label_to_the_bit(tmp_path: Path, form: str) -> None:
    uri = recording(tmp_path, "long.wav", 16_000)
    first = Utterance(id="x/1", recording_id="r", uri=uri, start_ms=0, end_ms=300, text="hidden", speaker="ann")
    second = Utterance(id="x/2", recording_id="r", uri=uri, start_ms=300, end_ms=1000, text="one", split="test")
    store, cfg = Store(str(tmp_path / "work")), Shard(format=form)  # type: ignore[arg-type]
    labels = {"x/1": heard("x/1", "won")}
    counts = [shard.write_shard(store, "s", i, [each], labels, cfg=cfg) for i, each in enumerate((first, second))]
    assert [(each.utterances, each.duration_ms, each.dropped) for each in counts] == [(1, 300, {}), (1, 700, {})]
    rows = [tables.from_parquet(store.read(f"s/0000{i}.parquet"), Sample)[0] for i in range(2)]
    assert rows[0].text == "won"
    assert rows[0].words == labels["x/1"].words
    assert (rows[0].reference, rows[0].speaker, rows[0].teacher, rows[0].language) == (None, "ann", "echo@1", "en")
    assert (rows[1].text, rows[1].reference, rows[1].split) == ("", "one", "test")
    for i, (row, start, end) in enumerate(zip(rows, (0, 4800), (4800, 16_000), strict=True)):
        samples_T = codec.decode(read_uri(f"{store.root}/s/0000{i}.tar#{row.offset}+{row.num_bytes}")).samples_T
        assert np.array_equal(samples_T, tone(16_000)[start:end])
        assert row.num_samples == end - start


def test_audio_that_is_not_what_it_was_is_a_counted_reason(tmp_path: Path) -> None:
    good = recording(tmp_path, "good.wav", 8000)
    (tmp_path / "text.wav").write_text("these are words")
    (tmp_path / "zeros.wav").write_bytes(codec.encode(np.zeros(8000, np.int16), "wav"))
    (tmp_path / "half.wav").write_bytes(codec.encode(np.concatenate([tone(4000), np.zeros(4000, np.int16)]), "wav"))
    utterances = [
        Utterance(id="good", recording_id="1", uri=good, end_ms=500),
        Utterance(id="text", recording_id="3", uri=str(tmp_path / "text.wav"), end_ms=500),
        Utterance(id="short", recording_id="1", uri=good, end_ms=900),
        Utterance(id="zeros", recording_id="4", uri=str(tmp_path / "zeros.wav"), end_ms=500),
        Utterance(id="half", recording_id="5", uri=str(tmp_path / "half.wav"), start_ms=250, end_ms=500),
        Utterance(id="channel", recording_id="1", uri=good, end_ms=500, channel=3),
    ]
    store = Store(str(tmp_path / "work"))
    written = shard.write_shard(store, "s", 0, utterances, {}, cfg=Shard())
    assert written.utterances == 1
    assert written.dropped["shorter than when it was indexed"] == 1
    assert written.dropped["silent"] == 2
    assert sum(written.dropped.values()) == 5
    again = shard.write_shard(store, "s", 0, utterances, {}, cfg=Shard())
    assert (again.utterances, sum(again.dropped.values())) == (1, 5)
    assert (again.duration_ms, again.num_bytes) == (written.duration_ms, written.num_bytes)
    assert shard.written(store, "s") == {0}


def test_audio_that_storage_does_not_give_fails_the_shard_and_drops_nothing(tmp_path: Path) -> None:
    utterances = [
        Utterance(id="a", recording_id="a", uri=recording(tmp_path, "a.wav", 8000), end_ms=500),
        Utterance(id="b", recording_id="b", uri=str(tmp_path / "b.wav"), end_ms=500),
    ]
    store = Store(str(tmp_path / "work"))
    with pytest.raises(StorageError, match=r"b\.wav"):
        shard.write_shard(store, "s", 0, utterances, {}, cfg=Shard())
    assert not list(store.list("s"))
    recording(tmp_path, "b.wav", 8000)  # it is back
    assert shard.write_shard(store, "s", 0, utterances, {}, cfg=Shard()).utterances == 2


def test_a_crash_between_tar_and_sidecar_leaves_nothing_behind(tmp_path: Path) -> None:
    uri = recording(tmp_path, "a.wav", 8000)
    utterances = [Utterance(id="a", recording_id="a", uri=uri, end_ms=500)]
    store, other = Store(str(tmp_path / "work")), Store(str(tmp_path / "other"))
    store.create("s/00000.tar", b"half a tar")
    for each in (store, other):
        shard.write_shard(each, "s", 0, utterances, {}, cfg=Shard())
    for name in ("00000.tar", "00000.parquet"):
        assert store.read(f"s/{name}") == other.read(f"s/{name}")


def test_a_shard_that_is_there_is_never_written_again(tmp_path: Path) -> None:
    uri = recording(tmp_path, "a.wav", 8000)
    utterances = [Utterance(id="a", recording_id="a", uri=uri, end_ms=500)]
    store = Store(str(tmp_path / "work"))
    first = shard.write_shard(store, "s", 0, utterances, {"a": heard("a", "one")}, cfg=Shard())
    before = {each.key: store.read(each.key) for each in store.list("s")}
    second = shard.write_shard(store, "s", 0, utterances, {"a": heard("a", "two")}, cfg=Shard())
    assert {each.key: store.read(each.key) for each in store.list("s")} == before
    assert dataclasses.replace(second, index=0) == first
