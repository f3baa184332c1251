"""Judgements on disk: damage is named, and joining parts takes nothing from a reader."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from voxstill.core.errors import DataError, VoxstillError
from voxstill.pipeline.check_files import file_faults
from voxstill.storage import corrections, tables
from voxstill.storage.corrections import Correction
from voxstill.storage.store import Store

NUM = 70


@pytest.fixture
def work(tmp_path: Path) -> Store:
    """A folder with a part for each of many judgements."""
    work = Store(str(tmp_path))
    for number in range(NUM):
        append(work, number)
    return work


def append(work: Store, number: int) -> None:
    row = Correction(
        utterance_id=f"u{number}",
        audio="0" * 16,
        judgement="corrected",
        label="what they sad",
        text="what they said",
        time=f"2026-01-01T{number:06}",
        judge="ada",
    )
    corrections.append(work, [row])


def test_a_part_that_was_changed_is_named_and_never_read(work: Store) -> None:
    key = tables.parts(work, corrections.PREFIX)[3]
    [row] = corrections.read(work, key)
    other = Correction(**{**tables.to_columns(row), "text": "what nobody said"})  # type: ignore[arg-type]
    work.replace(key, tables.to_parquet([other], Correction))
    with pytest.raises(DataError, match="is damaged"):
        corrections.latest(work)
    num, faults = file_faults(work)
    assert num == NUM
    assert faults.keys() == {key}


@pytest.mark.parametrize("place", range(5, 2000, 97))
def test_a_flipped_bit_changes_no_judgement(work: Store, place: int) -> None:
    key = tables.parts(work, corrections.PREFIX)[0]
    known = corrections.latest(work)
    data = bytearray(work.read(key))
    data[place % len(data)] ^= 4
    work.replace(key, bytes(data))
    try:
        assert corrections.latest(work) == known
    except VoxstillError:
        assert file_faults(work)[1].keys() == {key}


def test_joined_parts_have_the_same_judgements_and_a_reader_beside_it_sees_all(work: Store) -> None:
    known = corrections.latest(work)
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.extend(len(corrections.latest(work)) for _ in range(20)))
    reader.start()
    corrections.compact(work)
    reader.join()
    assert len(tables.parts(work, corrections.PREFIX)) == 1
    assert corrections.latest(work) == known
    assert seen == [NUM] * 20


def test_rows_that_an_interruption_left_twice_are_one_again(work: Store) -> None:
    rows = [row for key in tables.parts(work, corrections.PREFIX) for row in corrections.read(work, key)]
    corrections.append(work, rows)
    corrections.compact(work)
    [key] = tables.parts(work, corrections.PREFIX)
    assert len(corrections.read(work, key)) == NUM


def test_an_erasure_goes_on_behind_a_damaged_part_and_names_it(work: Store) -> None:
    first, *_, last = tables.parts(work, corrections.PREFIX)
    [row] = corrections.read(work, last)
    work.replace(first, b"no parquet")
    with pytest.raises(DataError, match="is damaged"):
        corrections.erase(work, [row.utterance_id])
    assert last not in tables.parts(work, corrections.PREFIX)
