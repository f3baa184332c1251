"""Sharding: each utterance once, well mixed, within limits, and whole again after any crash."""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill import tables
from voxstill.audio import codec
from voxstill.config import Shard
from voxstill.errors import StorageError
from voxstill.factory import shard
from voxstill.records import Label, Utterance, Word
from voxstill.shards import Sample
from voxstill.store import Store


@st.composite
def corpora(draw: st.DrawFn) -> list[Utterance]:
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["train", "dev", "test"]),
                st.sampled_from([None, "ann", "ben", "cem", "dee"]),
                st.integers(1, 60_000),
            ),
            max_size=60,
        )
    )
    return [
        Utterance(id=f"u{i}", recording_id=f"r{i}", uri="", end_ms=ms, split=split, speaker=speaker)  # type: ignore[arg-type]
        for i, (split, speaker, ms) in enumerate(rows)
    ]


@settings(max_examples=60, deadline=None)
@given(corpora(), st.integers(1, 20), st.integers(1, 5), st.integers(0, 3), st.randoms())
def test_every_utterance_is_in_one_shard_of_its_split_within_the_limits_whatever_the_order_given(
    corpus: list[Utterance], most: int, max_mb: int, seed: int, random: object
) -> None:
    cfg = Shard(utterances=most, max_mb=max_mb)
    planned = shard.assign(corpus, cfg, seed)
    assert Counter(each.id for part in planned for each in part) == Counter(each.id for each in corpus)
    for part in planned:
        assert len({each.split for each in part}) == 1
        assert 0 < len(part) <= most
        assert len(part) == 1 or sum(each.duration_ms * 32 for each in part) <= max_mb * 1_000_000
    shuffled = list(corpus)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert shard.assign(shuffled, cfg, seed) == planned


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
    corpus = [Utterance(id=f"{i}", recording_id=f"{i}", uri="", end_ms=1000) for i in range(50)]
    assert shard.assign(corpus, Shard(), 0) != shard.assign(corpus, Shard(), 1)


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
        samples_T = codec.decode(store.read_range(f"s/0000{i}.tar", row.offset, row.num_bytes)).samples_T
        assert np.array_equal(samples_T, tone(16_000)[start:end])
        assert row.num_samples == end - start


def test_audio_that_is_not_what_it_was_is_a_counted_reason(tmp_path: Path) -> None:
    good = recording(tmp_path, "good.wav", 8000)
    (tmp_path / "text.wav").write_text("these are words")
    (tmp_path / "zeros.wav").write_bytes(codec.encode(np.zeros(8000, np.int16), "wav"))
    (tmp_path / "half.wav").write_bytes(codec.encode(np.concatenate([tone(4000), np.zeros(4000, np.int16)]), "wav"))
    utterances = [
        Utterance(id="good", recording_id="1", uri=good, end_ms=500),
        Utterance(id="gone", recording_id="2", uri=str(tmp_path / "gone.wav"), end_ms=500),
        Utterance(id="text", recording_id="3", uri=str(tmp_path / "text.wav"), end_ms=500),
        Utterance(id="short", recording_id="1", uri=good, end_ms=900),
        Utterance(id="zeros", recording_id="4", uri=str(tmp_path / "zeros.wav"), end_ms=500),
        Utterance(id="half", recording_id="5", uri=str(tmp_path / "half.wav"), start_ms=250, end_ms=500),
        Utterance(id="channel", recording_id="1", uri=good, end_ms=500, channel=3),
    ]
    store = Store(str(tmp_path / "work"))
    written = shard.write_shard(store, "s", 0, utterances, {}, cfg=Shard())
    assert written.utterances == 1
    assert set(written.dropped) == {"gone", "text", "short", "zeros", "half", "channel"}
    assert written.dropped["short"] == "shorter than when it was indexed"
    assert written.dropped["half"] == "silent"
    again = shard.write_shard(store, "s", 0, utterances, {}, cfg=Shard())
    assert (again.utterances, set(again.dropped)) == (1, set(written.dropped))
    assert pickle.loads(pickle.dumps(written)) == written


def test_storage_that_is_away_is_an_error_and_not_an_empty_shard(tmp_path: Path) -> None:
    utterances = [Utterance(id="a", recording_id="a", uri=str(tmp_path / "a.wav"), end_ms=500)]
    store = Store(str(tmp_path / "work"))
    with pytest.raises(StorageError):
        shard.write_shard(store, "s", 0, utterances, {}, cfg=Shard())
    assert not list(store.list("s"))


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
