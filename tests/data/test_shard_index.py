"""The index of shards: what was written comes back row by row, from files that are opened and not read."""

from __future__ import annotations

import dataclasses
import io
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import ConfigError, StorageError
from voxstill.core.records import UtteranceInfo, Word
from voxstill.data.shard_index import LossWeights, ShardIndex, open_index
from voxstill.storage import shard_format, tables
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

WORDS = st.lists(st.builds(Word, text=st.text(max_size=3), start_ms=st.integers(0, 9), end_ms=st.integers(9, 99)))
SAMPLES = st.lists(
    st.builds(
        Sample,
        split=st.sampled_from(["train", "dev"]),
        id=st.text(max_size=12),
        duration_ms=st.integers(1, 40_000),
        num_samples=st.integers(1, 640_000),
        text=st.text(max_size=20),
        words=WORDS.map(tuple),
        info=st.builds(
            UtteranceInfo, dataset=st.sampled_from([None, "books", "街"]), dialect=st.sampled_from([None, "north"])
        ),
        weight=st.sampled_from([0.0, 0.5, 1.0]),
    ),
    max_size=12,
)


def encode(text: str, words: Sequence[Word]) -> tuple[list[int], list[tuple[int, int]]]:
    """Letters as tokens; the first word's time for all."""
    span = (words[0].start_ms, words[0].end_ms) if words else (-1, -1)
    return [ord(letter) for letter in text], [span] * len(text)


def write(root: Path, parts: Sequence[Sequence[Sample]]) -> tuple[Store, list[list[Sample]]]:
    store, written = Store(str(root)), []
    for index, samples in enumerate(parts):
        rows = shard_format.write(io.BytesIO(), ((sample, b"audio") for sample in samples))
        store.create(f"s/{shard_format.sidecar_name(index)}", tables.to_parquet(rows, Sample))
        written.append(rows)
    shard_format.finish(store, "s", ShardFigures(shards=len(parts), utterances=sum(map(len, parts))))
    return store, written


def open_(store: Store, folder: Path, encoder: str = "letters") -> ShardIndex:
    return open_index(store, "s", folder, splits=("train",), encode=encode, encoder=encoder)


@settings(max_examples=60, deadline=None)
@given(st.lists(SAMPLES, max_size=3))
def test_every_row_of_the_split_comes_back_whole_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[Sample]]
) -> None:
    root = tmp_path_factory.mktemp("corpus")
    store, written = write(root, parts)
    corpus = open_(store, root / "kept")
    rows = [(index, row) for index, part in enumerate(written) for row in part if row.split == "train"]
    assert len(corpus) == len(rows)
    for i, (index, row) in enumerate(rows):
        tokens_U, times_U2 = corpus.tokens_of(i)
        ids, spans = encode(row.text, row.words)
        assert (corpus.id_of(i), corpus.text_of(i)) == (row.id, row.text)
        assert (corpus.shard[i], corpus.offset[i], corpus.num_bytes[i]) == (index, row.offset, row.num_bytes)
        assert (corpus.durations_ms[i], corpus.num_samples[i]) == (row.duration_ms, row.num_samples)
        assert corpus.weight[i] == np.float32(row.weight)
        assert (tokens_U.tolist(), times_U2.tolist()) == (ids, [list(span) for span in spans])
        assert corpus.num_tokens[i] == len(row.text)
        assert corpus.equal_neighbours[i] == sum(
            letter == next_letter for letter, next_letter in zip(row.text, row.text[1:], strict=False)
        )


def test_a_kept_index_is_opened_without_the_sidecars(tmp_path: Path) -> None:
    store, _ = write(tmp_path, [[Sample(id="a", duration_ms=5, num_samples=80, text="ab")]])
    first = open_(store, tmp_path / "kept")
    (tmp_path / "s/00000.parquet").unlink()
    again = open_(store, tmp_path / "kept")
    assert again.text_of(0) == first.text_of(0) == "ab"
    elsewhere: ShardIndex = pickle.loads(pickle.dumps(again))
    assert elsewhere.tokens_of(0)[0].tolist() == [97, 98]
    with pytest.raises(StorageError):
        open_(store, tmp_path / "kept", encoder="other letters")
    assert len(list((tmp_path / "kept").iterdir())) == 1  # what could not be made is not left


def test_an_index_half_written_by_a_dead_process_is_not_used(tmp_path: Path) -> None:
    store, _ = write(tmp_path, [[Sample(id="a", duration_ms=5, num_samples=80, text="ab")]])
    open_(store, tmp_path / "kept")
    (place,) = (tmp_path / "kept").iterdir()
    place.rename(tmp_path / "kept/.new-dead")
    (tmp_path / "kept/.new-dead/about.json").unlink()
    assert open_(store, tmp_path / "kept").text_of(0) == "ab"


ELSEWHERE = """
import sys
sys.path.insert(0, {tests!r})
from test_shard_index import Path, Store, open_
print(open_(Store({root!r}), Path({root!r}) / "kept").text_of(499))
"""


def test_many_processes_may_open_it_at_the_same_time(tmp_path: Path) -> None:
    samples = [Sample(id=str(i), duration_ms=5, num_samples=80, text=f"text {i}") for i in range(500)]
    write(tmp_path, [samples])
    code = ELSEWHERE.format(tests=str(Path(__file__).parent), root=str(tmp_path))
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in started] == ["text 499\n"] * 3
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_the_weight_of_a_dialect_is_the_same_in_another_process(tmp_path: Path) -> None:
    dialects = ["north", None, "south", "north"]
    row = Sample(id="a", split="train", duration_ms=10, num_samples=160, text="a")
    samples = [
        dataclasses.replace(row, id=str(i), info=UtteranceInfo(dialect=name), weight=0.5)
        for i, name in enumerate(dialects)
    ]
    store, _ = write(tmp_path, [samples])

    def weights(**dialect_weights: float) -> list[float]:
        corpus = open_index(
            *(store, "s", tmp_path / "kept"),
            splits=("train",),
            encode=None,
            encoder="none",
            weights=LossWeights(dialects=dialect_weights),
        )
        again: ShardIndex = pickle.loads(pickle.dumps(corpus))
        assert again.weight.tolist() == corpus.weight.tolist()
        by_id = {corpus.id_of(i): float(corpus.weight[i]) for i in range(len(corpus))}
        return [by_id[str(i)] for i in range(len(dialects))]

    assert weights() == [0.5] * 4
    assert weights(north=3, south=0) == [1.5, 0.5, 0.0, 1.5]
    with pytest.raises(ConfigError, match=r"train\.dialect_weights"):
        weights(west=1)


def test_weights_of_data_sets_and_classes_are_multiplied(tmp_path: Path) -> None:
    row = Sample(id="a", split="train", duration_ms=10, num_samples=160)
    facts = [("human", "yes"), ("human", "yes"), ("pseudo", "yes"), ("pseudo", "no"), ("pseudo", "")]
    samples = [
        dataclasses.replace(row, id=str(i), info=UtteranceInfo(dataset=dataset), text=text, weight=2.0)
        for i, (dataset, text) in enumerate(facts)
    ]
    names = ["no", "yes"]
    store, _ = write(tmp_path, [samples])

    def weights(**weights: Any) -> list[float]:
        corpus = open_index(
            *(store, "s", tmp_path / "kept"),
            splits=("train",),
            encode=lambda text, words: ([names.index(text)], [(-1, -1)]) if text else ([], []),
            encoder="classes",
            weights=LossWeights(class_names=names, **weights),
        )
        assert pickle.loads(pickle.dumps(corpus)).weight.tolist() == corpus.weight.tolist()
        by_id = {corpus.id_of(i): float(corpus.weight[i]) for i in range(len(corpus))}
        return [by_id[str(i)] for i in range(len(facts))]

    assert weights(datasets={"pseudo": 0.5}) == [2, 2, 1, 1, 1]
    assert weights(classes={"no": 3.0}) == [2, 2, 2, 6, 2]
    # four have a class, of two classes: each class counts as two utterances
    assert weights(classes="balanced") == pytest.approx([4 / 3, 4 / 3, 4 / 3, 4, 2])
    assert weights(classes="balanced", datasets={"pseudo": 0.5}) == pytest.approx([4 / 3, 4 / 3, 2 / 3, 2, 1])
    with pytest.raises(ConfigError, match=r"train\.class_weights"):
        weights(classes={"maybe": 2.0})
    with pytest.raises(ConfigError, match=r"train\.dataset_weights"):
        weights(datasets={"none": 2.0})
    with pytest.raises(ConfigError, match="1e\\+38"):
        weights(datasets={"pseudo": 1e38})


def test_an_index_with_a_flipped_bit_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sample = Sample(
        split="train", id="a", duration_ms=9, num_samples=144, text="ab", words=(Word(text="a", start_ms=1, end_ms=2),)
    )
    store, _ = write(tmp_path, [[sample]])
    open_(store, tmp_path / "kept")
    [index] = (tmp_path / "kept").iterdir()
    files = {path: path.read_bytes() for path in sorted(index.iterdir()) if path.stat().st_size}
    for path, whole in files.items():
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        caplog.clear()
        assert open_(store, tmp_path / "kept").text_of(0) == "ab"
        assert "is made again" in caplog.text, path.name
        assert {path: path.read_bytes() for path in files} == files
    for path in files:  # as of a process that was killed while it removed them
        for other in files:
            if other != path:
                other.unlink()
        assert open_(store, tmp_path / "kept").text_of(0) == "ab", path.name
    assert [folder.name for folder in (tmp_path / "kept").iterdir()] == [index.name]
