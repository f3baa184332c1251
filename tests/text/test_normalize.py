from __future__ import annotations

import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import ConfigError
from voxstill.text.normalize import NORMALIZERS, basic, characters, name_for, normalizer, units, words


@pytest.mark.parametrize("name", NORMALIZERS)
@settings(deadline=None)
@given(text=st.text())
def test_normalising_twice_changes_nothing_more(name: str, text: str) -> None:
    once = normalizer(name)(text)
    assert normalizer(name)(once) == once
    assert once == " ".join(words(once))


@settings(deadline=None)
@given(st.text())
def test_basic_removes_differences_of_unicode_form_and_case(text: str) -> None:
    assert basic(unicodedata.normalize("NFD", text)) == basic(unicodedata.normalize("NFC", text))
    assert all(unicodedata.category(char)[0] in "LMN" or char in "' " for char in basic(text))


@pytest.mark.parametrize(
    ("written", "normalized"),
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
        ("१२ ٣٤ １２ x²", "12 34 12 x2"),
    ],
)
def test_basic_keeps_what_is_pronounced(written: str, normalized: str) -> None:
    assert basic(written) == normalized


def test_an_unknown_normalizer_is_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match="unknown normalizer `english`"):
        normalizer("english")


@pytest.mark.parametrize("name", [name for name in NORMALIZERS if name != "none"])
@settings(deadline=None)
@given(text=st.text(st.characters(categories=["Lo", "Lm", "Mn", "Mc"], min_codepoint=0x900, max_codepoint=0xEFF)))
def test_no_word_of_hindi_or_thai_is_broken(name: str, text: str) -> None:
    assert len(normalizer(name)(text).split()) <= 1
    assert normalizer(name)(text) == basic(text)


@pytest.mark.parametrize("name", NORMALIZERS)
@settings(deadline=None)
@given(parts=st.lists(st.text()), space=st.sampled_from("\u3000\u00a0\t\n\u2003\u2028\x1c"))
def test_any_space_of_unicode_is_a_space(name: str, parts: list[str], space: str) -> None:
    assert normalizer(name)(space.join(parts)) == normalizer(name)(" ".join(parts))


@pytest.mark.parametrize(
    ("language", "name", "written", "normalized"),
    [
        ("zh", "zh", "我有2台MacBook。", "我 有 2 台 macbook"),
        ("ja-JP", "zh", "カタカナとひらがな", "カ タ カ ナ と ひ ら が な"),
        ("tr_TR", "tr", "Işık İstanbul", "ışık istanbul"),
        ("ar", "ar", "السَّلَامُ عَلَيْكُمْ أحمـــد إلى", "السلام عليكم احمد الي"),
        ("fa", "ar", "۱۲", "12"),
        ("en", "basic", "I'm 3", "i'm 3"),
        (None, "basic", "Işık", "işık"),
    ],
)
def test_a_language_has_its_rules(language: str | None, name: str, written: str, normalized: str) -> None:
    assert name_for(language) == name
    assert normalizer(name)(written) == normalized


def test_rules_of_whisper_are_those_of_transformers(tmp_path: Path) -> None:
    assert normalizer("whisper")("Mr. Smith's twenty-one, um, colours!") == "mister smith is 21 colours"
    (tmp_path / "normalizer.json").write_text('{"colours": "colors"}')
    assert normalizer(f"whisper:{tmp_path}/normalizer.json", "en-GB")("Colours!") == "colors"
    assert normalizer("whisper", "de")("Grüße, [Musik] Welt!") == "grüße welt"


def test_whisper_is_the_exception_that_the_document_names() -> None:
    english, hindi = normalizer("whisper"), normalizer("whisper", "hi")
    assert english("um um") == ""
    assert len(hindi("नमस्ते दुनिया").split()) > 2


def test_words_and_characters_know_every_unicode_space() -> None:
    assert words(" a\u3000b\u00a0c\td ") == ["a", "b", "c", "d"]
    assert characters(" ab \u2003 c ") == ["a", "b", " ", "c"]
    assert characters("") == []


def test_scripts_without_spaces_are_counted_by_the_character() -> None:
    assert units("好的 okay 先生") == ["好", "的", "okay", "先", "生"]
    assert units("カタカナ") == list("カタカナ")
    assert units("नमस्ते दुनिया") == ["नमस्ते", "दुनिया"]
    assert units("안녕 하세요") == ["안녕", "하세요"]


@settings(deadline=None)
@given(st.text())
def test_units_lose_nothing_but_spaces(text: str) -> None:
    assert "".join(units(text)) == "".join(text.split())


@pytest.mark.parametrize("name", ["basic", "zh", "tr", "ar"])
def test_a_text_of_combining_marks_takes_no_quadratic_time(name: str) -> None:
    """200,000 marks took more than 150 s."""
    text = "a" + "\u0315\u0300" * 100_000 + "b"
    start = time.process_time()
    normalized = normalizer(name)(text)
    assert time.process_time() - start < 5
    assert normalizer(name)(normalized) == normalized
    assert len(normalized) < 100
