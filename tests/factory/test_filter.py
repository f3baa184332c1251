from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.config import Filter
from voxstill.errors import DataError
from voxstill.factory.filter import RULES, judge, reasons
from voxstill.records import Label, Verdict

WORDS = [f"{a}{b}" for a in ("al", "be", "cor", "dun", "ek") for b in ("ra", "tis", "mon", "vel", "y")]


def label(text: str, id_: str = "u", **more: object) -> Label:
    return Label(utterance_id=id_, recipe="r", teacher="t", text=text, **more)  # type: ignore[arg-type]


def verdict(text: str, duration_ms: int = 3000, cfg: Filter | None = None, **more: object) -> Verdict:
    (found,) = judge([label(text, **more)], {"u": duration_ms}, cfg or Filter(), "v")
    return found


@pytest.mark.parametrize(
    ("text", "duration_ms", "more", "reason"),
    [
        ("turn on the light", 2000, {}, None),
        ("half a sen", 2000, {"finish": "length"}, "failed"),
        ("", 2000, {"error": "no output", "finish": "failed"}, "failed"),
        ("", 2000, {}, "empty"),
        (" ... ♪ ", 2000, {}, "empty"),
        ("yes", 20_000, {}, "too_slow"),
        ("all of this was said in half a second", 500, {}, "too_fast"),
        ("no no no no", 2000, {}, None),
        ("No, no. NO! no no", 2000, {}, "repeated"),
        ("and then we go and then we go and then we go and then we go and then we go", 6000, {}, "repeated"),
        ("thank you for watching the video today " * 8, 20_000, {}, "too_regular"),
        ("a b c d e f g h i j", 700, {}, "too_many_words"),
    ],
)
def test_each_rule_finds_its_fault(text: str, duration_ms: int, more: dict[str, object], reason: str | None) -> None:
    found = verdict(text, duration_ms, **more)
    assert (found.reason, found.kept) == (reason, reason is None)
    assert {"chars_per_s", "repeats", "compression_ratio", "words_per_frame"} <= set(found.measures)


def test_a_rule_has_a_sentence_and_nothing_else_gives_reasons() -> None:
    assert set(RULES) == {name for name, (_, why) in RULES.items() if why and "\n" not in why}
    assert reasons([]) == dict.fromkeys(RULES, 0)


@pytest.mark.parametrize("text", ["nine nine nine nine", "one two one two one two", "ha", "zero oh seven oh oh seven"])
def test_short_texts_do_not_fall_for_compressing_well(text: str) -> None:
    assert verdict(text, cfg=Filter(max_compression_ratio=0.1)).kept


def test_a_hindi_text_compresses_no_better_than_the_same_letters_in_latin() -> None:
    latin = " ".join(random.Random(0).sample(WORDS, k=25))
    hindi = latin.translate({ord(c): 0x905 + i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")})
    assert verdict(hindi, 30_000).measures["compression_ratio"] == pytest.approx(
        verdict(latin, 30_000).measures["compression_ratio"], rel=0.02
    )
    assert verdict(hindi, 30_000).kept


def test_scripts_without_spaces_are_judged_by_the_character() -> None:
    assert verdict("今天天气很好我们去公园吧", 3000, language="zh").kept
    assert verdict("谢谢谢谢谢谢谢谢谢谢", 3000).reason == "repeated"
    assert verdict("今天天气很好我们去公园吧", 700).reason == "too_many_words"


def test_ctc_needs_a_frame_more_between_equal_words() -> None:
    assert verdict("a b a b", 4 * 80).kept
    assert verdict("a a b b", 5 * 80).reason == "too_many_words"
    assert verdict("a a b b", 6 * 80).kept


def sure(*probs: float | None) -> list[Label]:
    return [
        label("some words here", str(i), mean_logprob=None if prob is None else math.log(prob))
        for i, prob in enumerate(probs)
    ]


def kept(labels: list[Label], cfg: Filter) -> list[int]:
    found = judge(labels, dict.fromkeys((each.utterance_id for each in labels), 2000), cfg, "v")
    assert all(each.reason in (None, "low_confidence") for each in found)
    return [i for i, each in enumerate(found) if each.kept]


def test_the_surest_share_is_kept_and_unknown_confidence_always() -> None:
    labels = sure(0.9, 0.1, None, 0.5, 0.7, 0.3)
    assert kept(labels, Filter(keep_share=0.6)) == [0, 2, 3, 4]
    assert kept(labels, Filter(min_confidence=0.4)) == [0, 2, 3, 4]
    assert kept(labels, Filter()) == [0, 1, 2, 3, 4, 5]
    assert kept([label("some words here", mean_logprob=math.nan)], Filter(keep_share=0.1)) == [0]


def test_equal_confidence_stands_or_falls_together() -> None:
    assert kept(sure(0.5, 0.5, 0.5, 0.5), Filter(keep_share=0.5)) == [0, 1, 2, 3]
    assert kept(sure(0.9, 0.5, 0.5, 0.5), Filter(keep_share=0.25)) == [0]
    assert kept(sure(0.9, 0.5, 0.5, 0.5), Filter(keep_share=0.5)) == [0, 1, 2, 3]


@given(
    probs=st.lists(st.floats(0.01, 1), min_size=1, max_size=40, unique_by=math.log),
    share=st.floats(0.01, 1),
    order=st.randoms(use_true_random=False),
)
def test_the_share_kept_is_the_share_asked_for_in_any_order(
    probs: list[float], share: float, order: random.Random
) -> None:
    labels = sure(*probs)
    survivors = {labels[i].utterance_id for i in kept(labels, Filter(keep_share=share))}
    assert len(survivors) == math.ceil(share * len(probs) - 1e-9)
    order.shuffle(labels)
    assert {labels[i].utterance_id for i in kept(labels, Filter(keep_share=share))} == survivors


@given(st.text(), st.integers(1, 60_000), st.none() | st.floats(max_value=0))
def test_every_label_gets_a_verdict_with_finite_measures(text: str, duration_ms: int, logprob: float | None) -> None:
    found = verdict(text, duration_ms, mean_logprob=logprob)
    assert found.kept is (found.reason is None)
    assert all(math.isfinite(value) for value in found.measures.values())
    assert found.reason is None or found.reason in RULES


def test_a_label_of_nothing_known_is_an_error_that_says_so() -> None:
    with pytest.raises(DataError, match="belongs to no known utterance"):
        judge([label("hello")], {}, Filter(), "v")


def test_a_hundred_thousand_labels_take_seconds() -> None:
    chance = random.Random(1)
    labels = [
        label(" ".join(chance.choices(WORDS, k=12)), str(i), mean_logprob=-chance.random()) for i in range(20_000)
    ]
    began = time.perf_counter()
    found = judge(labels, dict.fromkeys(map(str, range(20_000)), 6000), Filter(keep_share=0.5), "v")
    assert time.perf_counter() - began < 10
    assert sum(each.kept for each in found) == pytest.approx(10_000, rel=0.02)
