"""Assignment to shards: each utterance once, well mixed, within limits."""

from __future__ import annotations

from collections import Counter
from itertools import count, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill import engine
from voxstill.core.config import Engine, Shard
from voxstill.core.errors import DataError
from voxstill.core.records import Label, Utterance, UtteranceInfo, Verdict, Word, fingerprint
from voxstill.sharding import assign
from voxstill.storage import join, tables
from voxstill.storage.store import Store

WINDOW = 12
_numbers = count()


def label(utterance_id: str, text: str) -> Label:
    words = (Word(text=text, start_ms=0, end_ms=50),)
    return Label(utterance_id=utterance_id, recipe="r", teacher="echo@1", text=text, words=words, language="en")


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
            Utterance(
                id=f"u{i}",
                recording_id=f"r{i}",
                uri="",
                end_ms=ms,
                split=split,  # type: ignore[arg-type]
                info=UtteranceInfo(speaker=speaker),
            )
        )
    return parts


def surveyed(
    parts: list[list[Utterance]], dropped: frozenset[str] = frozenset()
) -> tuple[Store, assign.KeptUtterances]:
    work = Store(f"memory://test-shard-{next(_numbers)}")
    for number, rows in enumerate(parts):
        judged = [Verdict(utterance_id=row.id, recipe="v", kept=row.id not in dropped) for row in rows]
        work.create(f"u/{number}.parquet", tables.to_parquet(rows, Utterance))
        work.create(f"v/{number + 7}.parquet", tables.to_parquet(judged, Verdict))
    joined = join.parts(work, "u", "l", Engine(chunk=4))
    return work, assign.survey(work, joined, assign.kept_ids(work, "v"))


def named(
    parts: list[list[Utterance]], kept: assign.KeptUtterances, planned: list[list[np.ndarray]]
) -> list[list[str]]:
    """The ids in each shard."""
    places = [
        [(kept.part_N[place], kept.row_N[place]) for place in shard_K] for window in planned for shard_K in window
    ]
    return [[parts[part][row].id for part, row in members] for members in places]


@settings(max_examples=30, deadline=None)
@given(tables_of(), st.integers(1, 20), st.integers(1, 5), st.integers(0, 3), st.sampled_from([1, WINDOW, 60]))
def test_every_utterance_that_is_kept_is_in_one_shard_of_its_split_within_the_limits(
    parts: list[list[Utterance]], most: int, max_mb: int, seed: int, window: int
) -> None:
    cfg = Shard(utterances=most, max_mb=max_mb)
    by_id = {row.id: row for part in parts for row in part}
    dropped = frozenset(id_ for id_ in by_id if id_.endswith("3"))
    _, kept = surveyed(parts, dropped)
    planned = named(parts, kept, assign.assign(kept, cfg, seed, window))
    assert Counter(id_ for ids in planned for id_ in ids) == Counter(by_id.keys() - dropped)
    for ids in planned:
        members = [by_id[id_] for id_ in ids]
        assert len({member.split for member in members}) == 1
        assert 0 < len(members) <= most
        assert len(members) == 1 or sum(member.duration_ms * 32 for member in members) <= max_mb * 1_000_000


@settings(max_examples=20, deadline=None)
@given(tables_of(), st.integers(0, 3), st.randoms())
def test_a_corpus_of_one_window_has_the_same_shards_however_its_table_is_cut_and_ordered(
    parts: list[list[Utterance]], seed: int, random: Random
) -> None:
    rows = [row for part in parts for row in part]
    random.shuffle(rows)
    anew = [rows[: len(rows) // 3], rows[len(rows) // 3 :]]
    cfg = Shard(utterances=7)
    one, other = (
        named(cut, kept, assign.assign(kept, cfg, seed)) for cut in (parts, anew) for _, kept in [surveyed(cut)]
    )
    assert one == other


@settings(max_examples=20, deadline=None)
@given(tables_of(), st.integers(0, 3), st.randoms())
def test_windows_depend_on_the_seed_and_not_on_the_order_within_parts_and_hold_whole_parts(
    parts: list[list[Utterance]], seed: int, random: Random
) -> None:
    _, kept = surveyed(parts)
    planned = assign.assign(kept, Shard(), seed, WINDOW)
    for part in range(len(parts)):
        for split in range(3):
            there = {
                number
                for number, window in enumerate(planned)
                for place in np.concatenate(window)
                if (kept.part_N[place], kept.split_N[place]) == (part, split)
            }
            assert len(there) <= 1
    anew = [random.sample(rows, len(rows)) for rows in parts]
    _, again = surveyed(anew)
    assert named(anew, again, assign.assign(again, Shard(), seed, WINDOW)) == named(parts, kept, planned)


def test_a_window_is_at_most_a_part_larger_than_asked_for() -> None:
    num = 5000
    kept = assign.KeptUtterances(
        part_N=np.repeat(np.arange(100, dtype=np.int32), 50),
        row_N=np.tile(np.arange(50, dtype=np.int32), 100),
        split_N=np.zeros(num, np.int8),
        speaker_N=np.arange(num, dtype=np.uint64),
        duration_ms_N=np.full(num, 1000),
    )
    windows = [np.concatenate(window) for window in assign.assign(kept, Shard(), 0, window=1000)]
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
            info=UtteranceInfo(speaker=chance.choice([None, "", *"abcdefgh"]), dataset=chance.choice([None, "x", "y"])),
        )
        for i in range(700)
    ]
    parts = [corpus[:300], corpus[300:]]
    _, columns = surveyed(parts)
    for seed, known in ((0, "d5763d94f41ffaa2"), (1, "bad381f6b67a035f"), (7, "b8b5c89007026b54")):
        planned = assign.assign(columns, Shard(utterances=40, max_mb=10), seed)
        assert fingerprint(named(parts, columns, planned)) == known


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(5, 40), min_size=4, max_size=12), st.integers(0, 1000))
def test_neighbours_differ_where_no_speaker_has_more_than_three_in_ten(sizes: list[int], seed: int) -> None:
    group_N = np.repeat(np.arange(len(sizes)), sizes)
    if max(sizes) > 0.3 * len(group_N):
        return
    order_N = assign.spread(group_N, np.random.default_rng(seed))
    assert sorted(order_N) == list(range(len(group_N)))
    assert all(one != two for one, two in pairwise(group_N[order_N]))


def test_each_speaker_is_spread_evenly_over_the_whole_corpus() -> None:
    group_N = np.repeat(np.arange(20), 100)
    thirds = np.array_split(group_N[assign.spread(group_N, np.random.default_rng(0))], 3)
    for third in thirds:
        assert np.abs(np.bincount(third, minlength=20) - 33.3).max() < 2


def test_another_seed_is_another_order() -> None:
    parts = [[Utterance(id=f"{i}", recording_id=f"{i}", uri="", end_ms=1000) for i in range(50)]]
    _, kept = surveyed(parts)
    one, other = (named(parts, kept, assign.assign(kept, Shard(), seed)) for seed in (0, 1))
    assert one != other


@settings(max_examples=20, deadline=None)
@given(tables_of(), st.integers(1, 9), st.integers(1, 9), st.sets(st.integers(0, 5)))
def test_a_job_holds_the_utterances_of_its_shard_and_their_labels_whatever_the_chunks_of_labels(
    parts: list[list[Utterance]], labelled: int, read: int, there: set[int]
) -> None:
    work, kept = surveyed(parts)
    for rows in parts:
        for chunk in engine.chunks_of(rows, labelled, lambda utterance: utterance.id):
            work.create(
                f"l/{chunk.id}.parquet", tables.to_parquet([label(item.id, item.id) for item in chunk.items], Label)
            )
    windows = assign.assign(kept, Shard(utterances=4), 0, WINDOW)
    planned = named(parts, kept, windows)
    by_id = {row.id: row for part in parts for row in part}
    jobs = list(assign.jobs(work, join.parts(work, "u", "l", Engine(chunk=read)), kept, windows, there))
    assert [job.index for job in jobs] == [index for index in range(len(planned)) if index not in there]
    for job in jobs:
        assert tables.from_parquet(job.utterances, Utterance) == [by_id[id_] for id_ in planned[job.index]]
        assert tables.from_parquet(job.labels, Label) == [label(id_, id_) for id_ in planned[job.index]]


def test_a_label_that_was_removed_is_an_error_that_names_its_utterance() -> None:
    work, kept = surveyed([[Utterance(id="a", recording_id="a", uri="", end_ms=500)]])
    with pytest.raises(DataError, match="`a` was kept and has no label"):
        list(assign.jobs(work, join.parts(work, "u", "l", Engine(chunk=4)), kept, assign.assign(kept, Shard(), 0), ()))
