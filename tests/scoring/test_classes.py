from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.scoring.classes import ClassificationFigures, confusions, score

pairs = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcde")), max_size=60)


@given(pairs)
def test_counts_add_up_and_rates_are_their_quotients(rows: list[tuple[str, str]]) -> None:
    result = score(rows)
    counted = {(ref, hyp): count for ref, row in result.confusion.items() for hyp, count in row.items()}
    assert counted == Counter(rows)
    assert sum(figures.count for figures in result.per_class.values()) == len(rows)
    assert list(result.per_class) == sorted({name for pair in rows for name in pair})
    for name, figures in result.per_class.items():
        hits = counted.get((name, name), 0)
        num_hypotheses = sum(count for (_, hyp), count in counted.items() if hyp == name)
        assert figures.recall == (hits / figures.count if figures.count else None)
        assert figures.precision == (hits / num_hypotheses if num_hypotheses else None)
        if figures.recall and figures.precision:
            assert figures.f1 == pytest.approx(
                2 * figures.recall * figures.precision / (figures.recall + figures.precision)
            )
        else:
            assert figures.f1 == 0
    if rows:
        assert result.accuracy == sum(ref == hyp for ref, hyp in rows) / len(rows)
        assert result.macro_f1 == pytest.approx(
            sum(figures.f1 for figures in result.per_class.values()) / len(result.per_class)
        )


@given(pairs)
def test_swapping_both_sides_swaps_precision_and_recall(rows: list[tuple[str, str]]) -> None:
    original, swapped = score(rows), score([(hyp, ref) for ref, hyp in rows])
    assert (original.accuracy, original.macro_f1) == (swapped.accuracy, swapped.macro_f1)
    for name, figures in original.per_class.items():
        assert (figures.precision, figures.recall) == (
            swapped.per_class[name].recall,
            swapped.per_class[name].precision,
        )


def test_undefined_rates_are_none_and_wrong_predictions_are_zero() -> None:
    assert score([]) == ClassificationFigures(accuracy=None, macro_f1=None, per_class={}, confusion={})
    per_class = score([("dog", "cat"), ("cat", "cat"), ("cat", "bird")]).per_class
    never_predicted, only_predicted = per_class["dog"], per_class["bird"]
    assert (never_predicted.precision, never_predicted.recall, never_predicted.f1, never_predicted.count) == (
        None,
        0.0,
        0.0,
        1,
    )
    assert (only_predicted.precision, only_predicted.recall, only_predicted.f1, only_predicted.count) == (
        0.0,
        None,
        0.0,
        0,
    )


def test_the_commonest_mistakes_come_first() -> None:
    rows = [("a", "b")] * 2 + [("b", "a")] * 3 + [("a", "a")] * 9 + [("a", "c")] * 2
    assert confusions(score(rows).confusion, 2) == [("b", "a", 3), ("a", "b", 2)]
