from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voxstill.core.records import Utterance
from voxstill.evaluation import teacher


def utterances(num: int) -> list[Utterance]:
    return [Utterance(id=f"u{i:04}", recording_id="r", uri="", end_ms=1000) for i in range(num)]


@given(st.integers(0, 300), st.integers(1, 200), st.integers(0, 99))
def test_the_sample_is_drawn_by_the_seed_and_bounded(num: int, most: int, seed: int) -> None:
    judged = utterances(num)
    drawn = teacher.sample(judged, most, seed)
    assert len(drawn) == min(num, most)
    assert [row for row in judged if row in drawn] == drawn == teacher.sample(judged[::-1], most, seed)


def test_another_seed_draws_another_sample() -> None:
    judged = utterances(300)
    assert teacher.sample(judged, 100, 0) != teacher.sample(judged, 100, 1)
