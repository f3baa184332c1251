from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from engine_works import (
    ONE_STAGE,
    TWO_STAGES,
    FunctionWork,
    WorkWithoutFigures,
    aside,
    flat,
    plain,
    run,
    slowly_but_for_hangs,
)
from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.errors import StorageError
from voxstill.core.records import Label
from voxstill.engine import Chunk, Stage, chunks_of
from voxstill.storage import tables


def test_inline_and_ray_give_the_same_bytes(ray: Any) -> None:
    def bytes_of(name: str) -> dict[str, bytes]:
        committed, summary = run(chunks_of([*range(50), "raise", *range(51, 90)], 8, str), TWO_STAGES, name=name)
        assert (summary.num_items, summary.num_skipped) == (90, 1)
        return {
            key: tables.to_parquet([Label(utterance_id=row, recipe="r", teacher="t") for row in rows], Label)
            for key, rows in committed.items()
        }

    assert bytes_of("ray") == bytes_of("inline")


def test_a_model_without_figures_fails_no_item(ray: Any) -> None:
    stages = (Stage(name="work", work=WorkWithoutFigures(), workers=1),)
    committed, summary = run(chunks_of(range(4), 2, str), stages)
    assert (sorted(flat(committed)), summary.num_retries) == ([0, 1, 2, 3], 0)


def test_arrays_reach_the_next_stage_without_a_copy(ray: Any) -> None:
    def big() -> Any:
        return lambda items, _: np.zeros(1_000_000, np.int16)

    def look() -> Any:
        return lambda items, array: [(bool(array.flags.owndata), bool(array.flags.writeable))]

    committed, _ = run(
        [Chunk("c", (0,))],
        (Stage(name="a", work=FunctionWork(big), workers=1), Stage(name="b", work=FunctionWork(look), workers=1)),
    )
    assert flat(committed) == [(False, False)]


@pytest.mark.parametrize("calls", [1, 3])
def test_an_item_that_raises_kills_or_hangs_is_one_row_with_its_reason(ray: Any, calls: int) -> None:
    items = [0, 1, "raise", 3, 4, "die", 6, 7, "hang", 9, 10]
    committed, summary = run(
        chunks_of(items, 2, str),
        (Stage(name="work", work=FunctionWork(lambda: plain), workers=2, calls=calls),),
        lease_s=3.0,
        attempts=1,
    )
    rows = {row.split(":")[0]: row for row in flat(committed)}
    assert sorted(rows) == sorted(
        [*(f"ok {i}" for i in (0, 1, 3, 4, 6, 7, 9, 10)), "aside raise", "aside die", "aside hang"]
    )
    assert "this item is bad" in rows["aside raise"]
    assert "its worker died" in rows["aside die"]
    assert "time limit of 3 s" in rows["aside hang"]
    assert (summary.num_skipped, summary.num_items) == (3, 11)
    assert [row.split(":")[0].split()[-1] for part in chunks_of(items, 2, str) for row in committed[part.id]] == [
        str(item) for item in items
    ]


def test_chunks_queued_behind_a_deadly_one_are_not_charged(ray: Any) -> None:
    items = [0, 1, "die", *range(3, 12)]
    committed, summary = run(chunks_of(items, 1, str), ONE_STAGE, attempts=1, in_flight=4)
    assert Counter(row.split()[0] for row in flat(committed)) == {"ok": 11, "aside": 1}
    assert summary.num_restarts == 2  # once to learn that somebody is deadly, once to learn who


def test_a_call_that_hangs_beside_working_ones_is_detected(ray: Any) -> None:
    items = ["hang", *range(40)]
    stage = Stage(name="work", work=FunctionWork(lambda: slowly_but_for_hangs), workers=1, calls=2)
    committed, summary = run(chunks_of(items, 1, str), (stage,), lease_s=3.0, attempts=1)
    assert Counter(row.split()[0] for row in flat(committed)) == {"ok": 40, "aside": 1}
    assert summary.num_restarts == 2


def test_a_chunk_too_large_for_a_slow_work_is_halved_and_not_tried_again_whole(ray: Any) -> None:
    def slow() -> Any:
        def work(items: Sequence[Any], _: Any) -> list[str]:
            time.sleep(600 if len(items) > 2 else 0)
            return [f"ok {item}" for item in items]

        return work

    stage = Stage(name="work", work=FunctionWork(slow), workers=1)
    committed, summary = run(chunks_of(range(4), 4, str), (stage,), lease_s=4.0, attempts=3)
    assert flat(committed) == [f"ok {i}" for i in range(4)]
    assert summary.num_restarts == 1


def test_no_more_chunks_are_in_flight_than_the_limit(ray: Any) -> None:
    started, committed, most = [0], [0], [0]
    lock = threading.Lock()

    def source() -> Iterator[Chunk]:
        for chunk in chunks_of(range(80), 2, str):
            with lock:
                started[0] += 1
                most[0] = max(most[0], started[0] - committed[0])
            yield chunk

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        time.sleep(0.05)
        with lock:
            committed[0] += 1

    engine.run(source(), TWO_STAGES, commit, aside, Engine(in_flight=2))
    assert committed == [40]
    assert 4 < most[0] <= 2 * 4


def test_a_commit_that_fails_ends_the_run_with_its_error(ray: Any) -> None:
    def commit(chunk: Chunk, rows: list[Any]) -> None:
        raise StorageError("the disk is full")

    with pytest.raises(StorageError, match="disk is full"):
        engine.run(chunks_of(range(30), 1, str), ONE_STAGE, commit, aside, Engine())


def test_an_answer_that_cannot_be_pickled_is_a_row_with_a_reason(ray: Any) -> None:
    def make() -> Any:
        return lambda items, _: [threading.Lock() if item == 2 else f"ok {item}" for item in items]

    committed, _ = run(chunks_of(range(4), 4, str), (Stage(name="work", work=FunctionWork(make), workers=1),))
    assert [row[:7] for row in flat(committed)] == ["ok 0", "ok 1", "aside 2", "ok 3"]
    assert "cannot pickle" in flat(committed)[2]
