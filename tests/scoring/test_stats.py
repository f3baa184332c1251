from __future__ import annotations

import itertools
import operator
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.records import ErrorCounts
from voxstill.scoring.stats import Blocks, blocks, interval, paired_test
from voxstill.scoring.words import Scored

counts = st.builds(
    ErrorCounts,
    hits=st.integers(0, 20),
    substitutions=st.integers(0, 5),
    insertions=st.integers(0, 5),
    deletions=st.integers(0, 5),
)


def row(id_: str, errors: int) -> Scored:
    return Scored(id=id_, words=ErrorCounts(hits=10 - errors, substitutions=errors), characters=ErrorCounts())


@settings(deadline=None)
@given(st.lists(counts, min_size=1, max_size=12), st.integers(0, 9))
def test_the_interval_lies_between_the_best_and_the_worst_block(counts: list[ErrorCounts], seed: int) -> None:
    result = interval(counts, 200, seed)
    if not ErrorCounts.sum(counts).reference:
        assert result is None
        return
    assert result is not None
    low, high = result
    assert 0 <= low <= high
    if all(block.reference for block in counts):
        rates = [block.rate or 0.0 for block in counts]
        assert min(rates) - 1e-9 <= low <= high <= max(rates) + 1e-9
    assert result == interval(counts, 200, seed)


def test_equal_blocks_have_an_interval_of_zero_width_and_different_ones_do_not() -> None:
    assert interval([ErrorCounts(hits=8, substitutions=2)] * 20, 500, 0) == (0.2, 0.2)
    low, high = interval([ErrorCounts(hits=10)] * 10 + [ErrorCounts(substitutions=10)] * 10, 1000, 0) or (0, 0)
    assert low == pytest.approx(0.3, abs=0.06)  # binomial: 0.5 +- 1.96 * sqrt(0.25 / 20)
    assert high == pytest.approx(0.7, abs=0.06)


def test_no_words_have_no_interval() -> None:
    assert interval([], 100, 0) is None
    assert interval([ErrorCounts(insertions=3)], 100, 0) is None


def test_speakers_are_drawn_where_there_are_two() -> None:
    rows = [row("1", 1), row("2", 2), row("3", 3), row("4", 4)]
    result = blocks(rows, {"1": "ann", "2": "bob", "3": "ann", "4": None})
    assert result.unit == "speakers"
    assert sorted(block.errors for block in result.counts) == [2, 4, 4]


def test_utterances_are_drawn_and_named_where_there_are_fewer_than_two_speakers() -> None:
    rows = [row("1", 1), row("2", 2)]
    assert blocks(rows, {"1": "ann", "2": "ann"}).unit == "utterances"
    assert blocks(rows, {}).unit == "utterances"
    assert len(blocks(rows, {}).counts) == 2


def test_a_thousand_draws_of_ten_thousand_take_about_a_second() -> None:
    counts = [ErrorCounts(hits=i % 20, substitutions=i % 3) for i in range(10_000)]
    began = time.process_time()  # others may have the processor too
    interval(counts, 1000, 0)
    assert time.process_time() - began < 5


def of_utterances(counts: list[ErrorCounts]) -> Blocks:
    return Blocks(unit="utterances", counts=tuple(counts))


def test_swapping_the_two_turns_the_difference_and_keeps_p() -> None:
    one = of_utterances([ErrorCounts(hits=10 - i % 3, substitutions=i % 3) for i in range(40)])
    two = of_utterances([ErrorCounts(hits=10 - i % 4, substitutions=i % 4) for i in range(40)])
    first, second = paired_test(one, two, 2000, 0), paired_test(two, one, 2000, 0)
    assert first is not None
    assert second is not None
    assert first.difference == -second.difference > 0
    assert first.p == second.p
    assert first.interval[0] <= first.difference <= first.interval[1]
    assert first.interval == tuple(-bound for bound in reversed(second.interval))


def judged(words: int, substitutions: int, insertions: int) -> ErrorCounts:
    substitutions = min(words, substitutions)
    return ErrorCounts(hits=words - substitutions, substitutions=substitutions, insertions=insertions)


@st.composite
def pairs_of_counts(draw: st.DrawFn) -> tuple[list[ErrorCounts], list[ErrorCounts]]:
    """Counts of two systems on the same blocks, of which some have no words; more of them than are enumerated."""
    errors = st.integers(0, 6)
    rows = draw(st.lists(st.tuples(st.integers(0, 9), errors, errors, errors, errors), min_size=1, max_size=24))
    return [judged(n, sub, ins) for n, sub, ins, _, _ in rows], [judged(n, sub, ins) for n, _, _, sub, ins in rows]


@settings(deadline=None)
@given(pairs_of_counts(), st.integers(0, 9))
def test_of_any_two_systems_swapping_turns_the_difference_and_an_equal_one_has_none(
    pair: tuple[list[ErrorCounts], list[ErrorCounts]], seed: int
) -> None:
    one, two = map(of_utterances, pair)
    first, second = paired_test(one, two, 200, seed), paired_test(two, one, 200, seed)
    assert first == paired_test(one, two, 200, seed)
    if first is None:
        assert second is None
        assert not ErrorCounts.sum(pair[0]).reference
        return
    assert second is not None
    assert (first.difference, first.p, first.exact) == (-second.difference, second.p, second.exact)
    assert first.interval == pytest.approx([-bound for bound in reversed(second.interval)])
    same = paired_test(one, one, 200, seed)
    assert same is not None
    assert (same.difference, same.interval, same.p) == (0.0, (0.0, 0.0), 1.0)


@settings(deadline=None)
@given(st.lists(st.tuples(counts, st.integers(0, 9)), min_size=1, max_size=9))
def test_p_of_few_blocks_is_the_share_of_all_ways_to_swap(rows: list[tuple[ErrorCounts, int]]) -> None:
    one, two = [counts for counts, _ in rows], [ErrorCounts(insertions=errors) for _, errors in rows]
    result = paired_test(of_utterances(one), of_utterances(two), 100, 0)
    if not ErrorCounts.sum(one).reference:
        assert result is None
        return
    gaps = [b.errors - a.errors for a, b in zip(one, two, strict=True)]
    sums = [sum(map(operator.mul, gaps, signs)) for signs in itertools.product((1, -1), repeat=len(gaps))]
    assert result is not None
    assert result.exact
    assert result.p == pytest.approx(sum(abs(total) >= abs(sum(gaps)) for total in sums) / len(sums))


def test_equal_systems_seldom_differ_and_unequal_ones_do() -> None:
    chance = np.random.default_rng(0)

    def drawn(rate: float) -> Blocks:
        return of_utterances(
            [ErrorCounts(hits=100 - int(k), substitutions=int(k)) for k in chance.binomial(100, rate, 30)]
        )

    p_of_equal = [result.p for i in range(200) if (result := paired_test(drawn(0.2), drawn(0.2), 500, i))]
    assert 0.01 <= np.mean([p <= 0.05 for p in p_of_equal]) <= 0.1  # 0.05 and its binomial spread
    unlike = paired_test(drawn(0.2), drawn(0.25), 500, 0)
    assert unlike is not None
    assert not unlike.exact
    assert unlike.p < 0.01
    assert unlike.p >= 1 / 501
