from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.scoring import words
from voxstill.scoring.rover import RecognizerOutput, rover
from voxstill.text.normalize import basic

TEXT = st.lists(st.sampled_from(["turn", "on", "the", "light", "radio"]), max_size=8).map(" ".join)


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["turn on the light", "turn of the light", "turn on a light please"], "turn on the light"),
        (["Turn on, the light.", "", ""], ""),
        (["the light", "Turn on the light", "turn on the lights"], "Turn on the light"),
        (["one", "two"], "one"),
        (["今天天气好", "今天气好", "今天天气好吗"], "今天天气好"),
        (["ไทย ok", "ไทย ok", "ok"], "ไทย ok"),
        (["don't stop", "dont stop", "don't stop"], "don't stop"),
    ],
)
def test_most_votes_win_and_the_first_of_equals(texts: list[str], wanted: str) -> None:
    assert rover([RecognizerOutput(text) for text in texts]).text == wanted


def test_a_confident_recogniser_outvotes_one_without_confidence_but_not_two() -> None:
    assert rover([RecognizerOutput("x", 0.1), RecognizerOutput("y", 0.9)]).text == "y"
    assert rover([RecognizerOutput("x", 0.1), RecognizerOutput("y", 0.9), RecognizerOutput("x", 0.1)]).text == "x"


@given(TEXT, st.integers(1, 4))
def test_equal_hypotheses_have_full_agreement(text: str, num: int) -> None:
    result = rover([RecognizerOutput(text)] * num)
    assert (result.text, result.agreement) == (text, 1.0)


@given(TEXT, TEXT, st.floats(0, 1) | st.none())
def test_two_of_three_decide_wherever_the_third_stands(text: str, minority: str, confidence: float | None) -> None:
    for texts in ([text, text, minority], [text, minority, text]):
        assert rover([RecognizerOutput(hypothesis, confidence) for hypothesis in texts]).text == text


@given(st.lists(st.tuples(st.text(max_size=30), st.none() | st.floats(0, 1)), min_size=1, max_size=4))
def test_every_word_of_a_consensus_is_in_one_of_the_hypotheses(hypotheses: list[tuple[str, float | None]]) -> None:
    result = rover([RecognizerOutput(*hypothesis) for hypothesis in hypotheses])
    assert 0 < result.agreement <= 1
    spoken = {word for text, _ in hypotheses for word in basic(text).split()}
    assert set("".join(basic(result.text).split())) <= set("".join(spoken))


def test_no_hypotheses_are_refused() -> None:
    with pytest.raises(ValueError, match="no hypotheses"):
        rover([])


def test_three_that_err_by_themselves_are_better_together_than_the_best_of_them() -> None:
    chance = random.Random(0)
    vocabulary = [f"w{i}" for i in range(200)]

    def recognized(words: list[str], share: float) -> str:
        kept = [word if chance.random() > share else chance.choice([*vocabulary, ""]) for word in words]
        return " ".join(word for word in kept if word)

    texts = [chance.choices(vocabulary, k=chance.randint(1, 15)) for _ in range(300)]
    hypotheses_of_system = [[recognized(text, share) for text in texts] for share in (0.15, 0.2, 0.25)]
    voted = [
        rover([RecognizerOutput(hypothesis) for hypothesis in hypotheses]).text
        for hypotheses in zip(*hypotheses_of_system, strict=True)
    ]
    rates = [
        words.wer(zip(map(" ".join, texts), hypotheses, strict=True)).rate
        for hypotheses in (*hypotheses_of_system, voted)
    ]
    assert rates[-1] < 0.6 * min(rates[:-1])
