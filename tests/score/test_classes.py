from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.score.classes import Classes, confusions, score

pairs = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcde")), max_size=60)


@given(pairs)
def test_counts_add_up_and_rates_are_their_quotients(rows: list[tuple[str, str]]) -> None:
    found = score(rows)
    counted = {(ref, hyp): count for ref, row in found.confusion.items() for hyp, count in row.items()}
    assert counted == Counter(rows)
    assert sum(each.count for each in found.per_class.values()) == len(rows)
    assert list(found.per_class) == sorted({name for pair in rows for name in pair})
    for name, each in found.per_class.items():
        hits = counted.get((name, name), 0)
        said = sum(count for (_, hyp), count in counted.items() if hyp == name)
        assert each.recall == (hits / each.count if each.count else None)
        assert each.precision == (hits / said if said else None)
        if each.recall and each.precision:
            assert each.f1 == pytest.approx(2 * each.recall * each.precision / (each.recall + each.precision))
        else:
            assert each.f1 == 0
    if rows:
        assert found.accuracy == sum(ref == hyp for ref, hyp in rows) / len(rows)
        assert found.macro_f1 == pytest.approx(sum(each.f1 for each in found.per_class.values()) / len(found.per_class))


@given(pairs)
def test_swapping_both_sides_swaps_precision_and_recall(rows: list[tuple[str, str]]) -> None:
    one, other = score(rows), score([(hyp, ref) for ref, hyp in rows])
    assert (one.accuracy, one.macro_f1) == (other.accuracy, other.macro_f1)
    for name, each in one.per_class.items():
        assert (each.precision, each.recall) == (other.per_class[name].recall, other.per_class[name].precision)


def test_what_nothing_tells_is_none_and_what_is_wrong_is_zero() -> None:
    assert score([]) == Classes(accuracy=None, macro_f1=None, per_class={}, confusion={})
    found = score([("dog", "cat"), ("cat", "cat"), ("cat", "bird")]).per_class
    never_said, only_said = found["dog"], found["bird"]
    assert (never_said.precision, never_said.recall, never_said.f1, never_said.count) == (None, 0.0, 0.0, 1)
    assert (only_said.precision, only_said.recall, only_said.f1, only_said.count) == (0.0, None, 0.0, 0)


def test_the_commonest_mistakes_come_first() -> None:
    rows = [("a", "b")] * 2 + [("b", "a")] * 3 + [("a", "a")] * 9 + [("a", "c")] * 2
    assert confusions(score(rows).confusion, 2) == [("b", "a", 3), ("a", "b", 2)]
