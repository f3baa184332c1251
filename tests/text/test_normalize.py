from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.errors import ConfigError
from voxstill.text.normalize import NORMALIZERS, basic, characters, normalizer, units, words


@pytest.mark.parametrize("name", NORMALIZERS)
@given(text=st.text())
def test_normalising_twice_changes_nothing_more(name: str, text: str) -> None:
    once = normalizer(name)(text)
    assert normalizer(name)(once) == once
    assert once == " ".join(words(once))


@given(st.text())
def test_basic_makes_unicode_forms_and_cases_alike(text: str) -> None:
    assert basic(unicodedata.normalize("NFD", text)) == basic(unicodedata.normalize("NFC", text))
    assert all(unicodedata.category(char)[0] in "LMN" or char in "' " for char in basic(text))


@pytest.mark.parametrize(
    ("written", "alike"),
    [
        ("  Hello,\tWORLD!\u3000Again ", "hello world again"),
        ("Don’t 'quote' the dogs' rock 'n' roll", "don't quote the dogs rock n roll"),
        ("it´s it`s it＇s itʼs", "it's it's it's it's"),
        ("well-known under_score 3.5 €", "well known under score 3 5"),
        ("Straße ﬁn Ⅻ", "strasse fin xii"),
        ("co\u00adoperate", "cooperate"),
        ("नमस्ते, दुनिया।", "नमस्ते दुनिया"),
        ("สวัสดี\u200bครับ", "สวัสดี ครับ"),
        ("''--''", ""),
        ("Привет, мир", "привет мир"),
    ],
)
def test_basic_keeps_what_is_heard(written: str, alike: str) -> None:
    assert basic(written) == alike


def test_an_unknown_normalizer_is_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match="no normalizer `english`"):
        normalizer("english")


def test_words_and_characters_know_every_unicode_space() -> None:
    assert words(" a\u3000b\u00a0c\td ") == ["a", "b", "c", "d"]
    assert characters(" ab \u2003 c ") == ["a", "b", " ", "c"]
    assert characters("") == []


def test_scripts_without_spaces_are_counted_by_the_character() -> None:
    assert units("好的 okay 先生") == ["好", "的", "okay", "先", "生"]
    assert units("カタカナ") == list("カタカナ")
    assert units("नमस्ते दुनिया") == ["नमस्ते", "दुनिया"]
    assert units("안녕 하세요") == ["안녕", "하세요"]


@given(st.text())
def test_units_lose_nothing_but_spaces(text: str) -> None:
    assert "".join(units(text)) == "".join(text.split())
