"""What a threshold keeps is told as the filter would keep it, and what is proposed keeps its promise."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.config import Filter
from voxstill.filtering import tuning
from voxstill.filtering.measures import Score
from voxstill.filtering.rules import Confidences, judge
from voxstill.storage import tables


def random_scores(num: int, *, knows: bool = True, seed: int = 0) -> Any:
    """Scores of labels of ten words; a teacher that `knows` is sure where it is right."""
    chance = random.Random(seed)
    rows = []
    for i in range(num):
        errors = chance.choices(range(11), [30, 5, 4, 3, 2, 2, 2, 2, 2, 2, 2])[0]
        sure = max(0.01, 1 - errors / 11 - 0.05 * chance.random()) if knows else chance.uniform(0.1, 1)
        rows.append(
            Score(
                utterance_id=str(i),
                split="train",
                duration_ms=4000,
                finished=True,
                characters=8 + 4 * (10 - errors),  # what is wrong is cut off
                words=10,
                longest_word=8,
                min_frames=10,
                repeats=1,
                compression_ratio=1.1,
                known_phrase=False,
                other_language=False,
                mean_logprob=math.log(sure),
                reference_words=10,
                errors=errors,
            )
        )
    return tables.table(rows, Score)


def tuned(scores: Any, cfg: Filter) -> tuning.TuneResult:
    return tuning.tune_thresholds(scores, cfg, Confidences(scores["mean_logprob"].to_numpy()))


def wer(scores: Any, kept_N: Any) -> float | None:
    words = scores["reference_words"].to_numpy()[kept_N].sum()
    return float(scores["errors"].to_numpy()[kept_N].sum() / words) if words else None


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 300), st.integers(0, 99), st.floats(0.3, 1), st.floats(0.5, 12))
def test_the_reported_figures_are_what_the_filter_does(num: int, seed: int, share: float, slowest: float) -> None:
    scores, cfg = random_scores(num, seed=seed), Filter(keep_share=share, min_chars_per_s=slowest)
    result = tuned(scores, cfg)
    kept_N = judge(scores, cfg) < 0
    assert result.as_set.kept == pytest.approx(kept_N.mean())
    assert result.as_set.wer == wer(scores, kept_N)
    changed = cfg.model_copy(update={name.removeprefix("filter."): v for name, v in result.proposed.items()})
    assert result.as_proposed.wer == wer(scores, judge(scores, changed) < 0)
    for option in result.options:
        for point in option.points:
            alone = Filter(**{option.option: point.value})
            assert point.effect.kept == pytest.approx((judge(scores, alone) < 0).mean())


def test_calibrated_confidence_is_cut_where_half_of_the_errors_are_left() -> None:
    scores = random_scores(1000)
    result = tuned(scores, Filter())
    assert result.wer == wer(scores, np.ones(1000, bool))
    share = result.proposed["filter.keep_share"]
    curve = dict(tuning.confidence_curve(result))
    assert 0.5 <= share < 1
    assert result.as_proposed.wer <= result.wer / 2
    assert list(curve) == sorted(curve)
    assert curve[max(curve)] == result.wer


def test_slow_labels_that_are_wrong_are_cut_by_their_slowness() -> None:
    result = tuned(random_scores(1000, knows=False), Filter())
    assert "filter.keep_share" not in result.proposed  # confidence says nothing
    threshold = result.proposed["filter.min_chars_per_s"]
    assert 2 < threshold <= 8  # below: half of the words are wrong, and more
    assert result.as_proposed.wer < result.wer


def test_a_teacher_without_confidence_has_no_curve() -> None:
    scores = random_scores(50)
    nothing = scores.set_column(scores.column_names.index("mean_logprob"), "mean_logprob", [[None] * 50]).cast(
        tables.schema(Score)
    )
    result = tuned(nothing, Filter(keep_share=0.5))
    assert tuning.confidence_curve(result) == []
    assert result.as_set.kept == 1


def test_an_informative_alignment_is_tightened_and_an_unknown_one_proposes_nothing() -> None:
    scores = random_scores(1000, knows=False)
    known = pa.array([None if i % 7 == 0 else -0.2 * errors for i, errors in enumerate(scores["errors"].to_pylist())])
    result = tuned(scores.set_column(scores.column_names.index("alignment"), "alignment", known), Filter())
    assert result.proposed["filter.min_alignment"] == pytest.approx(
        -0.8
    )  # below: half of the words are wrong, and more
    options = {row.option: row for row in result.options}
    assert options["max_disagreement"].points == []
    assert "filter.max_disagreement" not in result.proposed


def tied_scores(num_sure: int = 81, num_unsure: int = 87) -> Any:
    """Labels of a consensus of three: either all agree, which is right, or two of them, which is often wrong."""
    scores = random_scores(num_sure + num_unsure)
    logprobs = [0.0] * num_sure + [math.log(2 / 3)] * num_unsure
    errors = [0] * num_sure + [i % 3 for i in range(num_unsure)]
    for name, values in (("mean_logprob", logprobs), ("errors", errors)):
        at = scores.column_names.index(name)
        scores = scores.set_column(at, name, pa.array(values, scores.schema.field(name).type))
    return scores


def test_where_many_labels_are_equally_sure_their_confidences_are_tried_as_thresholds() -> None:
    scores = tied_scores()
    result = tuned(scores, Filter())
    assert {point.effect.kept for row in result.options if row.option == "keep_share" for point in row.points} == {1.0}
    (tried,) = [row for row in result.options if row.option == "min_confidence"]
    assert [(point.effect.kept, point.effect.wer) for point in tried.points] == [(81 / 168, 0.0)]
    assert result.proposed == {"filter.min_confidence": 1.0}
    assert (result.as_proposed.kept, result.as_proposed.wer) == (81 / 168, 0.0)
    assert tuning.confidence_curve(result) == [(81 / 168, 0.0), (1.0, result.wer)]
    assert "filter.min_confidence" in result.to_text()
    assert "48.2 % kept" in result.to_text()
    assert not tuned(scores, Filter(min_confidence=1.0)).proposed  # it is set


def test_where_confidences_differ_no_threshold_of_them_is_tried() -> None:
    assert "min_confidence" not in {row.option for row in tuned(random_scores(1000), Filter()).options}
