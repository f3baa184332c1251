"""Utterances meet their labels, in whatever chunks these were made."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.records import Label, Utterance
from voxstill.storage import join, tables
from voxstill.storage.store import Store

_numbers = count()


def utterance(number: int) -> Utterance:
    return Utterance(id=f"u{number}", recording_id="r", uri="", end_ms=500)


def label(id_: str, text: str = "") -> Label:
    return Label(utterance_id=id_, recipe="r", teacher="t", text=text)


def write_labels(work: Store, labels: list[Label], size: int) -> None:
    for chunk in engine.chunks_of(labels, size, lambda row: row.utterance_id):
        work.create(f"l/{chunk.id}.parquet", tables.to_parquet(chunk.items, Label))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=5), st.integers(1, 9), st.integers(1, 9), st.sets(st.integers(0, 40)))
def test_every_label_is_found_with_its_utterance_whatever_the_chunks(
    sizes: list[int], label_chunk: int, read: int, unlabelled: set[int]
) -> None:
    work = Store(f"memory://test-join-{next(_numbers)}")
    first, known = 0, []
    for number, size in enumerate(sizes):
        rows = [utterance(first + i) for i in range(size)]
        first += size
        work.create(f"u/{number}.parquet", tables.to_parquet(rows, Utterance))
        labels = [label(row.id, row.id) for row in rows if int(row.id[1:]) not in unlabelled]
        known += [transcription.utterance_id for transcription in labels]
        write_labels(work, labels, label_chunk)
    write_labels(work, [label(f"another cut {i}") for i in range(5)], 2)
    parts = join.parts(work, "u", "l", Engine(chunk=read))
    assert [part.utterances for part in parts] == tables.parts(work, "u")
    assert parts == join.parts(work, "u", "l", Engine(chunk=label_chunk))
    texts = []
    for utterances, labels_there in join.columns(work, parts, ("id",), ("utterance_id", "text")):
        rows_of = join.rows_of(utterances["id"].to_pylist(), labels_there["utterance_id"].to_pylist())
        texts += [labels_there["text"][row].as_py() for row in rows_of if row is not None]
    assert texts == known


def test_of_two_labels_of_one_utterance_the_same_counts_whatever_the_chunks() -> None:
    work = Store(f"memory://test-join-{next(_numbers)}")
    rows = [utterance(i) for i in range(6)]
    work.create("u/0.parquet", tables.to_parquet(rows, Utterance))
    for size in (2, 3, 5):
        write_labels(work, [label(row.id, f"of {size}") for row in rows], size)
    counted = set()
    for size in range(1, 8):
        ((_, labels),) = join.columns(
            work, join.parts(work, "u", "l", Engine(chunk=size)), ("id",), ("utterance_id", "text")
        )
        first = join.rows_of([row.id for row in rows], labels["utterance_id"].to_pylist())
        counted.add(tuple(labels["text"][row].as_py() for row in first if row is not None))
    assert len(counted) == 1


def test_a_pair_has_the_name_of_its_utterances() -> None:
    assert join.Part("x/u.parquet", ("l/a.parquet", "l/b.parquet")).name == "u"
