from __future__ import annotations

import pytest

from voxstill.core.records import ErrorCounts
from voxstill.scoring import words
from voxstill.scoring.checks import check_words, errors_in_silence, is_spaceless, line_shift

TEXTS = ["one two three", "four five", "six", "seven eight nine ten", "eleven", "twelve"]


def warnings(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(check_words(pairs, words.wer(pairs)))


def test_hypotheses_shifted_by_a_line_are_detected_either_way() -> None:
    late = list(zip(TEXTS, ["", *TEXTS], strict=False))
    early = list(zip(TEXTS, [*TEXTS[1:], ""], strict=True))
    assert line_shift(late) == -1
    assert line_shift(early) == 1
    assert "shifted by one line" in warnings(late)
    assert "before its own" in warnings(late)
    assert "after its own" in warnings(early)


def test_merely_bad_hypotheses_are_not_called_shifted() -> None:
    assert line_shift([(text, "nothing of that") for text in TEXTS]) == 0
    assert line_shift([(text, text) for text in TEXTS]) == 0
    assert line_shift([("a", "b"), ("b", "a")]) == 0
    assert "shifted" not in warnings([(text, "nothing of that") for text in TEXTS])


def test_rates_that_cannot_be_are_explained() -> None:
    assert "same file" in warnings([(text, text) for text in TEXTS])
    assert "more errors than words" in warnings([("one", "two three four")])
    assert "no words" in warnings([("", "two")])
    assert "are empty" in warnings([("one two", ""), ("three", "three")])
    assert warnings([(text, text.replace("o", "u")) for text in TEXTS]) == ""


def test_words_in_silence_are_counted_by_the_hour() -> None:
    nothing, made_up, spoken = ErrorCounts(), ErrorCounts(insertions=3), ErrorCounts(hits=1, insertions=5)
    result = errors_in_silence([(nothing, 1_800_000), (made_up, 1_800_000), (spoken, 5)])
    assert (result.utterances, result.words, result.hours, result.words_per_hour) == (2, 3, 1.0, 3.0)
    assert errors_in_silence([(made_up, None), (made_up, 1000)]).words_per_hour is None
    assert errors_in_silence([(spoken, 5)]).words_per_hour is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("打开电灯", True),
        ("打开 电灯", False),  # segmented into words
        ("東京タワーへ行きます", True),
        ("สวัสดีครับ", True),
        ("สวัสดี ครับ", False),
        ("Donaudampfschifffahrt", False),
    ],
)
def test_words_as_long_as_sentences_are_told_from_words(text: str, expected: bool) -> None:
    assert is_spaceless([text] * 3) is expected
