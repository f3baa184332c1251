"""Tables: rows of every kind round-trip, equal rows are equal bytes, and a torn part is an error that names it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import DataError
from voxstill.core.records import Label, Recording, Utterance, UtteranceInfo, Verdict, Word
from voxstill.filtering.measures import Score
from voxstill.storage import tables
from voxstill.storage.store import Store

_numbers = itertools.count()
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
whole = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
words = st.builds(Word, text=texts, start_ms=whole, end_ms=whole, prob=st.none() | floats)
maybe = st.none() | texts
ROWS: dict[Any, Any] = {
    Recording: st.builds(
        Recording,
        id=texts,
        uri=texts,
        etag=maybe,
        num_bytes=whole,
        codec=maybe,
        rate_hz=st.none() | whole,
        num_channels=st.none() | whole,
        duration_ms=st.none() | whole,
        error=maybe,
    ),
    Utterance: st.builds(
        Utterance,
        id=texts,
        recording_id=texts,
        uri=texts,
        channel=st.none() | whole,
        end_ms=whole,
        split=st.sampled_from(["train", "dev", "test"]),
        info=st.builds(UtteranceInfo, speaker=maybe, dialect=maybe),
        text=maybe,
    ),
    Label: st.builds(
        Label,
        utterance_id=texts,
        recipe=texts,
        teacher=texts,
        text=texts,
        mean_logprob=st.none() | floats,
        finish=st.sampled_from(["stop", "length", "failed"]),
        words=st.lists(words, max_size=3).map(tuple),
        error=maybe,
    ),
    Verdict: st.builds(
        Verdict,
        utterance_id=texts,
        recipe=texts,
        kept=st.booleans(),
        reason=maybe,
    ),
    Score: st.builds(
        Score,
        utterance_id=texts,
        split=st.sampled_from(["train", "dev", "test"]),
        compression_ratio=floats,
        **dict.fromkeys(
            ("duration_ms", "characters", "words", "longest_word", "min_frames", "repeats"), st.integers(0, 2**40)
        ),
        mean_logprob=st.none() | floats,
        reference_words=st.none() | whole,
        errors=st.none() | whole,
    ),
}


@pytest.mark.parametrize("kind", list(ROWS), ids=lambda kind: kind.__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_round_trip_and_equal_rows_give_equal_bytes(kind: Any, data: st.DataObject) -> None:
    rows = data.draw(st.lists(ROWS[kind], max_size=5))
    written = tables.to_parquet(rows, kind)
    assert tables.from_parquet(written, kind) == rows
    assert tables.to_parquet(list(rows), kind) == written


LABEL = Label(utterance_id="u", recipe="r", teacher="t", text="one", words=(Word(text="one", start_ms=0, end_ms=9),))


def test_a_part_cut_anywhere_is_a_data_error_that_names_it() -> None:
    whole_part = tables.to_parquet([LABEL] * 3, Label)
    for length in range(0, len(whole_part), 37):
        with pytest.raises(DataError, match="labels/x") as caught:
            tables.from_parquet(whole_part[:length], Label, "labels/x")
        assert caught.value.why
        assert caught.value.fix


def test_a_table_of_another_kind_is_a_data_error() -> None:
    with pytest.raises(DataError, match="Verdict"):
        tables.from_parquet(tables.to_parquet([LABEL], Label), Verdict)


def test_a_column_that_must_be_there_cannot_be_null() -> None:
    schema = tables.schema(Label)
    assert not schema.field("text").nullable
    assert schema.field("mean_logprob").nullable
    assert schema.field("words").type.value_type.field("prob").nullable


def test_a_table_is_its_parts_in_the_order_of_their_names_and_nothing_else() -> None:
    store = Store(f"memory://test-tables-{next(_numbers)}")
    for name, ids in (("b", ["3"]), ("a", ["1", "2"])):
        rows = [Label(utterance_id=id_, recipe="r", teacher="t") for id_ in ids]
        store.create(f"labels/r/{name}.parquet", tables.to_parquet(rows, Label))
    store.write_json(f"labels/r/{tables.SUCCESS}", {})
    assert tables.parts(store, "labels/r") == ["labels/r/a.parquet", "labels/r/b.parquet"]
    assert [row.utterance_id for row in tables.read(store, "labels/r", Label)] == ["1", "2", "3"]
    assert list(tables.read(store, "labels/none", Label)) == []


@given(st.sets(st.text(max_size=5)), st.text(max_size=5))
def test_a_compact_set_of_ids_answers_like_a_set(ids: set[str], other: str) -> None:
    compact = tables.IdSet(ids)
    assert all(id_ in compact for id_ in ids)
    assert (other in compact) == (other in ids)


def test_a_listing_changes_with_what_is_added_or_taken_and_with_nothing_else(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.create("t/1.parquet", b"1")
    one = tables.parts_hash(store, "t")
    store.create("t/_SUCCESS.json", b"{}")
    assert tables.parts_hash(store, "t") == one
    store.create("t/2.parquet", b"22")
    assert tables.parts_hash(store, "t") != one
    (tmp_path / "t/2.parquet").unlink()
    assert tables.parts_hash(store, "t") == one


def test_a_noun_within_a_noun_gives_its_fields_as_columns_in_its_place() -> None:
    names = tables.schema(Utterance).names
    info = ["language", "speaker", "dialect", "dataset"]
    assert names[names.index("split") :] == ["split", *info, "text", "gain_db", "weight", "supervised", "words"]
    row = Utterance(id="a", recording_id="a", uri="a", end_ms=1, info=UtteranceInfo(speaker="ann", dataset="d"))
    assert tables.to_columns(row)["speaker"] == "ann"
    assert tables.from_columns(tables.to_columns(row), Utterance) == row
    names = ["id", "recording_id", "uri", "end_ms", "speaker"]
    [part] = tables.from_parquet(tables.to_parquet([row], Utterance), Utterance, names=names)
    assert part == Utterance(id="a", recording_id="a", uri="a", end_ms=1, info=UtteranceInfo(speaker="ann"))
