from __future__ import annotations

import dataclasses

import pytest

from voxstill.evaluation.against_teacher import AgainstTeacher

BETTER = AgainstTeacher(
    difference=-0.168, interval=(-0.191, -0.142), p=1 / 1001, surely=True, units=24, over="speakers"
)


def test_the_line_has_difference_interval_p_and_what_was_drawn() -> None:
    assert BETTER.to_text() == "student - teacher: -16.8 points of WER (-19.1 to -14.2), p < 0.001, over 24 speakers"
    unsure = dataclasses.replace(BETTER, difference=0.004, interval=(-0.01, 0.021), p=0.4312, surely=False)
    assert unsure.to_text() == "student - teacher: +0.4 points of WER (-1.0 to +2.1), p = 0.43, over 24 speakers"


def test_the_line_says_that_no_speakers_are_known() -> None:
    line = dataclasses.replace(BETTER, units=1200, over="utterances").to_text()
    assert line.endswith(", over 1,200 utterances (no speakers are known)")


def test_of_one_speaker_there_is_no_interval() -> None:
    one = dataclasses.replace(BETTER, interval=None, p=None, surely=False, units=1)
    assert one.to_text() == (
        "student - teacher: -16.8 points of WER; there is no interval, as all utterances are of one speaker"
    )


@pytest.mark.parametrize("p", [0.0010, 0.05, 1.0])
def test_p_is_said_from_a_thousandth_on(p: float) -> None:
    assert f"p = {p:.2g}" in dataclasses.replace(BETTER, p=p).to_text()
