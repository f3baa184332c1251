from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_works import (
    ONE_STAGE,
    FunctionWork,
    WorkWithoutFigures,
    aside,
    flat,
    plain,
    run,
)
from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.errors import VoxstillError
from voxstill.core.metrics.figures import Summary
from voxstill.engine import Chunk, Stage, chunks_of
from voxstill.engine.retry import FAIL_FAST_ITEMS, Failure, FailureKind, RetryTracker


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 59), max_size=12), st.integers(1, 20), st.integers(1, 4))
def test_only_the_bad_items_are_set_aside_and_rows_keep_their_places(bad: set[int], size: int, attempts: int) -> None:
    def work(items: Sequence[int], _: Any) -> list[str]:
        if wrong := bad.intersection(items):
            raise ValueError(f"bad {sorted(wrong)}")
        return [f"ok {item}" for item in items]

    stages = (Stage(name="work", work=FunctionWork(lambda: work), workers=1),)
    committed, summary = run(chunks_of(range(60), size, str), stages, name="inline", attempts=attempts)
    expected = [f"aside {i}: ValueError: bad [{i}]" if i in bad else f"ok {i}" for i in range(60)]
    assert flat(committed) == expected
    assert (summary.num_items, summary.num_skipped) == (60, len(bad))


def test_a_work_that_gives_too_few_rows_is_a_failure_of_its_items() -> None:
    stages = (
        Stage(name="work", work=FunctionWork(lambda: lambda items, _: [1] * (len(items) - (0 in items))), workers=1),
    )
    committed, _ = run(chunks_of(range(4), 4, str), stages, name="inline")
    assert flat(committed) == ["aside 0: the last stage returned 0 rows for 1 items", 1, 1, 1]


def test_a_model_without_figures_fails_no_item() -> None:
    stages = (Stage(name="work", work=WorkWithoutFigures(), workers=1),)
    committed, summary = run(chunks_of(range(4), 2, str), stages, name="inline")
    assert (flat(committed), summary.num_retries) == ([0, 1, 2, 3], 0)


def test_a_teacher_that_fails_on_everything_is_an_error_and_not_a_table_of_failures() -> None:
    stages = (Stage(name="work", work=FunctionWork(lambda: plain), workers=1),)
    with pytest.raises(VoxstillError, match="items all failed") as caught:
        run([Chunk("c", ("raise",) * 40)], stages, name="inline")
    assert caught.value.why == "ValueError: this item is bad"


def test_where_every_item_outlives_its_lease_the_error_names_the_option() -> None:
    tracker = RetryTracker(attempts=1, fail=aside, meter=None)
    timed_out = Failure(FailureKind.TIMED_OUT, "no answer within the time limit of 1 s, `engine.lease_s`")
    parts = [tracker.open_chunk(Chunk(str(number), (number,))) for number in range(FAIL_FAST_ITEMS)]
    for part in parts[:-1]:
        assert tracker.record_failure(part, timed_out) == []
    with pytest.raises(VoxstillError, match="items all failed") as caught:
        tracker.record_failure(parts[-1], timed_out)
    assert caught.value.fix == "a single item takes longer than that: raise `engine.lease_s`"


def test_nothing_to_do_builds_no_worker() -> None:
    def make() -> Any:
        raise AssertionError

    _, summary = run([], (Stage(name="work", work=FunctionWork(make), workers=1),), name="ray")
    assert summary.num_chunks == 0


def test_progress_counts_items_that_are_safe() -> None:
    num_safe: list[int] = []

    class Meter:
        def follow(self, summary: Callable[[], Summary]) -> None:
            assert summary().num_items == 0

        def update(self, summary: Summary) -> None:
            num_safe.append(summary.num_items)

    engine.run(chunks_of(range(10), 4, str), ONE_STAGE, lambda *_: None, aside, Engine(name="inline"), Meter())
    assert num_safe == [4, 8, 10]
