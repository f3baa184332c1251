from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from voxstill.text.languages import code_of


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *[(name, "en") for name in ("en", "EN", " en ", "en-US", "en_GB", "english", "English", "eng")],
        *[
            (name, "zh")
            for name in ("zh", "zh-CN", "zh_Hans", "cmn", "zho", "chi", "mandarin", "Chinese", "cmn-Hans-CN")
        ],
        *[("nob", "no"), ("nb-NO", "no"), ("nn", "nn"), ("yue", "yue"), ("Cantonese", "yue"), ("fil", "tl")],
        *[("iw", "he"), ("jv", "jw"), ("ger", "de"), ("haitian creole", "ht"), ("arb", "ar"), ("Swahili", "sw")],
        *[(name, None) for name in ("", "  ", "-", "klingon", "und", "mul", "xx", "en,de", "xho")],
    ],
)
def test_codes_and_names_are_the_code_that_whisper_knows(name: str, code: str | None) -> None:
    assert code_of(name, LANGUAGES) == code


def test_a_region_counts_where_the_model_knows_it_and_its_own_spelling_comes_back() -> None:
    assert code_of("pt-br", ("pt", "pt-BR")) == "pt-BR"
    assert code_of("pt-PT", ("pt", "pt-BR")) == "pt"
    assert code_of("jw", ("jv",)) == code_of("javanese", ("jv",)) == "jv"
    assert code_of("de", ("zh", "en")) is None


@given(st.sampled_from(sorted(LANGUAGES)), st.sampled_from(["", "-XX", "_Latn", "-Latn-XX"]))
def test_each_code_stands_for_itself_in_whatever_region(code: str, region: str) -> None:
    assert code_of(f"{code}{region}".upper(), LANGUAGES) == code


@given(st.sampled_from(sorted(TO_LANGUAGE_CODE)))
def test_each_name_that_whisper_has_stands_for_its_code(name: str) -> None:
    assert code_of(name.title(), LANGUAGES) == TO_LANGUAGE_CODE[name]


@given(st.text(), st.sets(st.text(min_size=1)))
def test_whatever_is_written_the_answer_is_known_or_none(name: str, known: set[str]) -> None:
    assert code_of(name, known) in {None, *known}
