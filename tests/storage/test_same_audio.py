"""Labels are compared with the utterances they are joined to: once for each state of both tables."""

from __future__ import annotations

import contextlib
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.config import Engine
from voxstill.core.errors import DataError
from voxstill.core.records import Label, Utterance, text_hash
from voxstill.storage import join, same_audio, tables
from voxstill.storage.store import Store

_numbers = count()


def labelled(work: Store, utterances: list[Utterance]) -> None:
    rows = [Label(utterance_id=row.id, recipe="l", teacher="t", audio=row.audio) for row in utterances]
    work.create(f"labels/l/{next(_numbers)}.parquet", tables.to_parquet(rows, Label))


def test_a_table_of_the_same_names_and_sizes_is_not_taken_for_the_same(store: Store) -> None:
    of_channel = [Utterance(id="u", recording_id="r", uri="", channel=i, end_ms=500) for i in range(2)]
    key, listings = "utterances/a/0.parquet", []
    for row in of_channel:
        store.replace(key, tables.to_parquet([row], Utterance))
        listings.append(tables.parts_hash(store, "utterances/a"))
        if not row.channel:
            same_audio.begin(store, "utterances/a", "labels/l")
            labelled(store, [row])
    assert listings[0] == listings[1]
    with pytest.raises(DataError, match="different audio"):
        same_audio.check(store, "utterances/a", "labels/l")


AUDIO = st.fixed_dictionaries(
    {
        "recording_id": st.sampled_from(["r", "s"]),
        "channel": st.sampled_from([None, 0, 1]),
        "start_ms": st.integers(0, 1),
        "end_ms": st.integers(2, 3),
    }
)
TABLE = st.dictionaries(st.integers(0, 6), AUDIO, min_size=1)


@settings(max_examples=40, deadline=None)
@given(TABLE, TABLE, st.booleans())
def test_whatever_is_joined_is_of_one_audio(
    first: dict[int, dict[str, object]], second: dict[int, dict[str, object]], are_equal: bool
) -> None:
    work = Store(f"memory://test-same-audio-{next(_numbers)}")
    if are_equal:
        second |= {id_: audio for id_, audio in first.items() if id_ in second}
    tables_of = {}
    for name, rows in (("a", first), ("b", second)):
        tables_of[name] = [Utterance(id=f"u{id_}", uri="", **audio) for id_, audio in rows.items()]  # type: ignore[arg-type]
        work.create(f"utterances/{name}/0.parquet", tables.to_parquet(tables_of[name], Utterance))
    same_audio.begin(work, "utterances/a", "labels/l")
    labelled(work, tables_of["a"])
    join.parts(work, "utterances/a", "labels/l", Engine())
    differ = [id_ for id_ in first if id_ in second and first[id_] != second[id_]]
    if differ:
        for refused in (same_audio.begin, same_audio.check, lambda *names: join.parts(*names, Engine())):
            with pytest.raises(DataError, match=f"^error: {len(differ)} labels in "):
                refused(work, "utterances/b", "labels/l")
        return
    same_audio.begin(work, "utterances/b", "labels/l")
    labelled(work, [row for row in tables_of["b"] if int(row.id[1:]) not in first])
    for name, rows in tables_of.items():
        parts = join.parts(work, f"utterances/{name}", "labels/l", Engine())
        ((utterances, labels),) = join.columns(work, parts)
        places = join.rows_of(utterances["id"].to_pylist(), labels["utterance_id"].to_pylist())
        assert [labels["audio"][place].as_py() for place in places if place is not None] == [row.audio for row in rows]


@pytest.mark.parametrize("is_shown", [False, True])
def test_another_text_is_another_label_where_the_teacher_was_shown_it(is_shown: bool) -> None:
    work = Store(f"memory://test-same-audio-{next(_numbers)}")
    before, after = (Utterance(id="u", recording_id="r", uri="", end_ms=100, text=text) for text in ("one", "two"))
    for name, row in (("a", before), ("b", after)):
        work.create(f"utterances/{name}/0.parquet", tables.to_parquet([row], Utterance))
    same_audio.begin(work, "utterances/a", "labels/l")
    audio = text_hash(before.audio, before.text) if is_shown else before.audio
    label = Label(utterance_id="u", recipe="l", teacher="t", audio=audio)
    work.create("labels/l/0.parquet", tables.to_parquet([label], Label))
    with pytest.raises(DataError) if is_shown else contextlib.nullcontext():
        same_audio.begin(work, "utterances/b", "labels/l")
    same_audio.compare(work, "utterances/a", "labels/l")
