from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import DataError
from voxstill.scoring import verification
from voxstill.scoring.verification import eer, eer_threshold, min_dcf, trials


@st.composite
def judged(draw: st.DrawFn) -> tuple[list[int], list[bool]]:
    """Scores with many ties, and trials of both kinds."""
    rows = draw(st.lists(st.tuples(st.integers(-6, 6), st.booleans()), max_size=40))
    rows = draw(st.permutations([*rows, (draw(st.integers(-6, 6)), True), (draw(st.integers(-6, 6)), False)]))
    return [score for score, _ in rows], [same for _, same in rows]


def rates(scores: list[int], same: list[bool]) -> list[tuple[Fraction, Fraction]]:
    """Misses and false alarms at every threshold, counted one trial at a time."""
    points = []
    for threshold in [*sorted(set(scores)), max(scores) + 1]:
        misses = sum(score < threshold for score, is_same in zip(scores, same, strict=True) if is_same)
        alarms = sum(score >= threshold for score, is_same in zip(scores, same, strict=True) if not is_same)
        points.append((Fraction(misses, sum(same)), Fraction(alarms, len(same) - sum(same))))
    return points


@given(judged())
def test_the_equal_error_rate_is_where_the_roc_curve_is_cut(rows: tuple[list[int], list[bool]]) -> None:
    for (miss, alarm), (next_miss, next_alarm) in itertools.pairwise(rates(*rows)):
        if miss <= alarm and next_miss >= next_alarm:
            gap, next_gap = alarm - miss, next_miss - next_alarm
            along = gap / (gap + next_gap) if gap + next_gap else Fraction(0)
            assert eer(*rows) == pytest.approx(float(miss + along * (next_miss - miss)), abs=1e-12)
            return
    raise AssertionError("every curve is cut")


@given(judged())
def test_at_the_threshold_misses_and_false_alarms_are_nearest_to_equal(rows: tuple[list[int], list[bool]]) -> None:
    scores, same = rows
    threshold = eer_threshold(scores, same)

    def gap(at: float) -> Fraction:
        misses = sum(score < at for score, is_same in zip(scores, same, strict=True) if is_same)
        alarms = sum(score >= at for score, is_same in zip(scores, same, strict=True) if not is_same)
        return abs(Fraction(misses, sum(same)) - Fraction(alarms, len(same) - sum(same)))

    between = [(low + high) / 2 for low, high in itertools.pairwise(sorted(set(scores)))] or [float(scores[0])]
    assert threshold in between
    assert gap(threshold) == min(map(gap, between))


@given(judged(), st.sampled_from([0.01, 0.05, 0.5, 0.9]), st.sampled_from([1.0, 10.0]))
def test_the_least_cost_is_that_of_the_best_threshold(
    rows: tuple[list[int], list[bool]], prior: float, miss_cost: float
) -> None:
    costs = [miss_cost * prior * miss + (1 - prior) * alarm for miss, alarm in rates(*rows)]
    cost = min_dcf(*rows, prior=prior, miss_cost=miss_cost)
    assert cost == pytest.approx(float(min(costs)) / min(miss_cost * prior, 1 - prior), abs=1e-12)
    assert cost <= 1 + 1e-12


@given(judged())
def test_only_the_order_of_scores_matters(rows: tuple[list[int], list[bool]]) -> None:
    scores, same = rows
    for moved in (np.exp(scores), np.array(scores) ** 3 - 7.0, np.where(np.array(scores) > 5, np.inf, scores)):
        assert (eer(moved, same), min_dcf(moved, same)) == (eer(scores, same), min_dcf(scores, same))


def test_separable_scores_have_no_errors_and_equal_ones_have_half() -> None:
    same = [True, True, False, False]
    assert (eer([3, 2, 1, 0], same), min_dcf([3, 2, 1, 0], same)) == (0, 0)
    assert (eer([1, 1, 1, 1], same), min_dcf([1, 1, 1, 1], same)) == (0.5, 1)
    assert eer([0, 1, 2, 3], same) == 1


def test_trials_of_one_kind_or_without_a_score_are_refused() -> None:
    with pytest.raises(DataError, match="cannot be verified"):
        eer([1.0, 2.0], [True, True])
    with pytest.raises(DataError, match="cannot be verified"):
        min_dcf([], [])
    with pytest.raises(DataError, match="not a number"):
        eer([1.0, float("nan")], [True, False])


@given(st.lists(st.sampled_from(["ann", "bob", "cleo", None]), max_size=12))
def test_every_pair_of_known_speakers_is_tried_once(speakers: list[str | None]) -> None:
    result = trials(speakers)
    pairs = list(zip(result.first_N.tolist(), result.second_N.tolist(), strict=True))
    indices = [place for place, speaker in enumerate(speakers) if speaker is not None]
    assert pairs == list(itertools.combinations(indices, 2))
    assert result.same_N.tolist() == [speakers[first] == speakers[second] for first, second in pairs]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["ann", "bob", None]), min_size=2, max_size=12), st.integers(0, 5))
def test_all_pairs_of_known_speakers_are_compared_once(speakers: list[str | None], seed: int) -> None:
    embedding_ND = np.random.default_rng(seed).normal(size=(len(speakers), 3)).astype(np.float32)
    score_N, same_N = verification.compare(embedding_ND, speakers, seed)
    first_N, second_N, expected_N = verification.trials(speakers)
    assert np.array_equal(same_N, expected_N)
    assert np.allclose(score_N, (embedding_ND[first_N] * embedding_ND[second_N]).sum(1), atol=1e-5)


def test_of_many_utterances_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MOST_COMPARED", 5)
    embedding_ND = np.eye(20, dtype=np.float32)
    speakers = [f"s{i % 3}" for i in range(20)]
    one, two, other = (verification.compare(embedding_ND, speakers, seed) for seed in (0, 0, 1))
    assert len(one[0]) == 10
    assert np.array_equal(one[1], two[1])
    assert len(other[0]) == 10
