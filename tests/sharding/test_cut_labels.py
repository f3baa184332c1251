"""Long labels are cut at pauses into shorter samples: no word is lost, and each is where it was said."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import manifests
from voxstill.audio import codec
from voxstill.core.config import Config, Shard
from voxstill.core.errors import ConfigError
from voxstill.core.records import Label, Utterance, Word
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard
from voxstill.sharding import cut_labels, write
from voxstill.sharding.cut_labels import MARGIN_MS, cut_words, shorten
from voxstill.storage import tables
from voxstill.storage.fetch import read_uri
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

WORDS = st.lists(st.tuples(st.integers(-300, 3_000), st.integers(0, 2_000)), min_size=1, max_size=30)


def spoken(pauses_and_lengths: list[tuple[int, int]]) -> tuple[Word, ...]:
    """Words after pauses, which are negative where words overlap, as teachers say of some."""
    words, at = [], 0
    for number, (pause, length) in enumerate(pauses_and_lengths):
        start = max(0, at + pause)
        words.append(Word(text=f"w{number}", start_ms=start, end_ms=start + length, prob=0.5))
        at = start + length
    return tuple(words)


def labelled(timed_words: tuple[Word, ...], **changes: object) -> tuple[Utterance, dict[str, Label]]:
    duration_ms = max(word.end_ms for word in timed_words) + 200
    utterance = Utterance(id="a b", recording_id="r", uri="x", start_ms=5_000, end_ms=5_000 + duration_ms)
    label = Label(
        utterance_id="a b", recipe="r", teacher="t", text=" ".join(word.text for word in timed_words), words=timed_words
    )
    return utterance, {"a b": dataclasses.replace(label, **changes)}  # type: ignore[arg-type]


@given(WORDS, st.integers(500, 12_000))
def test_no_word_is_lost_and_every_part_is_short_enough(spec: list[tuple[int, int]], max_ms: int) -> None:
    utterance, labels = labelled(spoken(spec))
    shorter = shorten([utterance], labels, max_ms)
    texts = [shorter.labels[part.id].text for part in shorter.utterances]
    assert " ".join(texts) == labels["a b"].text
    assert sum(shorter.uncut.values()) == sum(part.duration_ms > max_ms for part in shorter.utterances)
    placed = [
        (part.start_ms + word.start_ms, part.start_ms + word.end_ms, word.text, word.prob)
        for part in shorter.utterances
        for word in shorter.labels[part.id].words
    ]
    whole = labels["a b"].words
    assert placed == [(5_000 + word.start_ms, 5_000 + word.end_ms, word.text, word.prob) for word in whole]
    assert {shorter.cut_from.get(part.id, part.id) for part in shorter.utterances} == {"a b"}
    assert len({part.id for part in shorter.utterances}) == len(shorter.utterances)
    for part in shorter.utterances:
        words = shorter.labels[part.id].words
        assert all(0 <= word.start_ms <= word.end_ms <= part.duration_ms for word in words)
        assert " ".join(word.text for word in words) == shorter.labels[part.id].text
    edges = [edge for part in shorter.utterances for edge in (part.start_ms, part.end_ms)]
    assert edges == sorted(edges)
    assert utterance.start_ms <= edges[0]
    assert edges[-1] <= utterance.end_ms


@given(WORDS, st.integers(500, 12_000))
def test_only_pauses_beyond_the_margins_are_left_out(spec: list[tuple[int, int]], max_ms: int) -> None:
    words = spoken([(abs(pause), length) for pause, length in spec])
    spans = cut_words(words, words[-1].end_ms + 200, max_ms)
    for first, last, start, end in spans:
        assert start == 0 if words[first].start_ms == 0 else start <= words[first].start_ms
        assert words[first].start_ms - start <= MARGIN_MS
        assert words[last - 1].end_ms <= end <= words[last - 1].end_ms + MARGIN_MS
    for (_, _, _, before), (first, _, after, _) in itertools.pairwise(spans):
        if words[first].start_ms - words[first - 1].end_ms <= 2 * MARGIN_MS:
            assert before == after


def test_a_label_is_cut_at_its_longest_pauses() -> None:
    words = spoken([(100, 3_000), (900, 3_000), (50, 3_000), (50, 3_000), (1_200, 3_000), (20, 3_000)])
    spans = cut_words(words, 21_000, 11_000)
    assert [(first, last) for first, last, _, _ in spans] == [(0, 1), (1, 4), (4, 6)]


@pytest.mark.parametrize(
    ("changes", "split", "reason"),
    [
        ({"words": ()}, "train", cut_labels.NO_WORDS),
        ({"text": "w0 and w1"}, "train", cut_labels.OTHER_WORDS),
        ({}, "dev", cut_labels.HUMAN_TEXT),
        ({"words": spoken([(0, 100), (0, 4_000)])}, "train", cut_labels.LONG_WORD),
    ],
)
def test_what_cannot_be_cut_stays_whole_and_is_counted(changes: dict[str, object], split: str, reason: str) -> None:
    utterance, labels = labelled(spoken([(100, 2_000), (900, 2_000)]), **changes)
    utterance = dataclasses.replace(utterance, split=split, text="w0 w1")  # type: ignore[arg-type]
    shorter = shorten([utterance], labels, 3_000)
    assert list(shorter.utterances) == [utterance]
    assert shorter.labels == labels
    assert shorter.uncut == {reason: 1}


def test_a_token_of_two_words_is_not_divided() -> None:
    words = spoken([(0, 2_000), (100, 2_000), (300, 2_000), (10, 1_000)])
    words = tuple(
        dataclasses.replace(word, text=text) for word, text in zip(words, ["a", "well", "-known", "b"], strict=True)
    )
    utterance, labels = labelled(words, text="a well-known  b")
    shorter = shorten([utterance], labels, 5_000)
    assert [shorter.labels[part.id].text for part in shorter.utterances] == ["a", "well-known", "b"]
    assert [len(shorter.labels[part.id].words) for part in shorter.utterances] == [1, 2, 1]


def test_short_labels_and_all_without_a_limit_are_left_as_they_are() -> None:
    utterance, labels = labelled(spoken([(100, 2_000), (900, 2_000)]))
    assert list(shorten([utterance], labels, 10_000).utterances) == [utterance]
    assert shorten([utterance], {}, None).utterances == [utterance]


def test_shards_hold_the_parts_with_their_audio_and_again_the_same_counts(tmp_path: Path) -> None:
    audio_T = np.random.default_rng(0).integers(-9000, 9000, 16_000 * 10).astype(np.int16)
    path = tmp_path / "a.wav"
    path.write_bytes(codec.encode(audio_T, "wav"))
    utterance, labels = labelled(spoken([(0, 2_000), (400, 2_000), (0, 2_000), (600, 2_000)]))
    utterance = dataclasses.replace(utterance, uri=str(path), start_ms=500, end_ms=9_700)
    whole = dataclasses.replace(utterance, id="whole", start_ms=0)
    store, cfg = Store(str(tmp_path / "work")), Shard(max_ms=5_000)
    first = write.write_shard(store, "s", 0, [utterance, whole], labels, cfg=cfg)
    rows = tables.from_parquet(store.read("s/00000.parquet"), Sample)
    assert [(row.id, row.text, row.duration_ms) for row in rows] == [
        ("a b#0-2200", "w0", 2_200),
        ("a b#2200-6700", "w1 w2", 4_500),
        ("a b#6700-9200", "w3", 2_500),
        ("whole", "", 9_700),
    ]
    for row, start in zip(rows, (500, 2_700, 7_200), strict=False):
        samples_T = codec.decode(read_uri(f"{store.root}/s/00000.tar#{row.offset}+{row.num_bytes}")).samples_T
        assert np.array_equal(samples_T, audio_T[start * 16 : (start + row.duration_ms) * 16])
    assert (first.utterances, first.dropped, first.uncut) == (4, {}, {cut_labels.NO_WORDS: 1})
    again = write.write_shard(store, "s", 0, [utterance, whole], labels, cfg=cfg)
    assert (again.utterances, again.dropped, sum(again.uncut.values())) == (4, {}, 1)


def test_audio_that_stays_in_place_is_not_cut() -> None:
    with pytest.raises(ConfigError, match=r"shard\.max_ms"):
        Config.model_validate({"shard": {"max_ms": 5_000, "format": "in_place"}})


def test_a_work_is_sharded_into_shorter_samples_and_its_figures_say_so(tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    rows = []
    for number, split in enumerate(["train", "train", "dev"]):
        (tmp_path / f"audio/{number}.wav").write_bytes(manifests.wav(300 + number, 6))
        rows.append({"audio": f"{number}.wav", "text": "one two three four five six", "split": split})
    manifest = tmp_path / "audio/manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "work": str(tmp_path / "work"),
        "source": {"uri": str(manifest)},
        "engine": {"name": "inline"},
        "teacher": {"name": "echo"},
    }
    cfg = Config.model_validate({**tree, "shard": {"max_ms": 2_500}})
    index(cfg)
    label_utterances(cfg)
    filter_labels(cfg)
    figures = shard(cfg)
    assert (figures.utterances, figures.dropped, figures.uncut) == (7, {}, {cut_labels.HUMAN_TEXT: 1})
    texts = [row.text for row in tables.read(Store(cfg.work), "shards", Sample) if row.split == "train"]
    assert sorted(texts) == sorted(["one two", "three four", "five six"] * 2)
    whole = shard(Config.model_validate(tree))
    assert (whole.utterances, whole.uncut) == (3, None)
