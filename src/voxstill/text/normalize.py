"""Text normalizers applied before scoring, and what counts as a word and as a character.

Every normalizer but Whisper's is idempotent, keeps the order of words and leaves one ASCII space between them. Those of
Whisper guarantee none of it: they are here so that figures can be compared with published ones.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable

from voxstill.core.errors import ConfigError
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_uri

_APOSTROPHES = dict.fromkeys(map(ord, "‘’ʼ´`＇"), "'")  # before NFKC, which turns ´ into a space and a mark
_OUTER_APOSTROPHE = re.compile(r"(?<![^\s'])'|'(?![^\s'])")
_ZERO_WIDTH_SPACE = "\u200b"  # a format character to Unicode, and the space between words to Thai and Khmer
_SPACELESS = (
    "\u0e00-\u0eff"  # Thai and Lao
    "\u1000-\u109f\uaa60-\uaa7f"  # Burmese
    "\u1780-\u17ff"  # Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_UNIT = re.compile(rf"[{_SPACELESS}]|[^\s{_SPACELESS}]+")
_IDEOGRAPHS = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_COMBINING = "\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef"  # voicing marks and variants of the character before
_IDEOGRAPH = re.compile(rf"[{_IDEOGRAPHS}][{_COMBINING}]*")
_MAX_MARKS, _LONG = 30, 4096
_TURKISH = {ord("I"): "ı", ord("İ"): "i"}
_ARABIC = {
    **dict.fromkeys([*range(0x64B, 0x660), 0x670, *range(0x6D6, 0x6DD), *range(0x6DF, 0x6E9), *range(0x6EA, 0x6EE)]),
    ord("ـ"): None,
    **dict.fromkeys(map(ord, "أإآٱ"), "ا"),
    ord("ى"): "ي",
}
"""Short vowels, which are mostly not written; the tatweel, which stretches words; letters with several forms."""


def words(text: str) -> list[str]:
    """Split `text` into words at Unicode spaces."""
    return text.split()


def characters(text: str) -> list[str]:
    """Split `text` into code points; one space between words counts as a character, as in jiwer and torchmetrics."""
    return list(" ".join(text.split()))


def units(text: str) -> list[str]:
    """Split `text` into words, but Han, kana, Thai, Lao, Khmer and Burmese, written without spaces, into characters.

    The script decides, not the language, so labels without a language and mixed texts are split correctly.
    """
    return text.split() if text.isascii() else _UNIT.findall(text)


def normalizer(name: str, language: str | None = None) -> Callable[[str], str]:
    """The normalizer called `name`; ConfigError if there is none.

    `language` (`en`, `pt-BR`) matters to `whisper` alone, which has rules for English and others for the rest.
    `whisper:FILE` reads the British spellings that belong to the English ones from a checkpoint's `normalizer.json`.
    """
    kind, _, spellings = name.partition(":")
    if kind == WHISPER:
        return _whisper(_primary_subtag(language) or "en", spellings)
    if name not in NORMALIZERS:
        raise ConfigError(
            f"unknown normalizer `{name}`",
            code="unknown-name",
            fix=f"use one of {', '.join([*NORMALIZERS, WHISPER])}, whisper:FILE",
        )
    return NORMALIZERS[name]


def name_for(language: str | None) -> str:
    """Name of the normalizer with the rules of a language: `basic` for most."""
    return _OF_LANGUAGE.get(_primary_subtag(language), "basic")


def _primary_subtag(language: str | None) -> str:
    """Primary subtag of a language code: `pt` of `pt-BR` and `pt_BR`."""
    return re.split("[-_]", language or "")[0].lower()


def none(text: str) -> str:
    """Only put one space between words."""
    return " ".join(text.split())


def basic(text: str) -> str:
    """Letters, digits and marks in NFKC, case-folded; apostrophes stay inside words, other signs become spaces.

    Marks stay because Hindi and Thai write vowels with them. Decimal digits of every script become 0 to 9.
    """
    return _until_stable(_fold, text)


def chinese(text: str) -> str:
    """`basic` with a space around each Han character and kana: a word error is a character error, and mixed text works.

    For Chinese and Japanese. Words of Thai, Lao, Khmer and Burmese stay as they are.
    """
    return _until_stable(lambda line: " ".join(_IDEOGRAPH.sub(r" \g<0> ", _fold(line)).split()), text)


def turkish(text: str) -> str:
    """`basic` for Turkish and Azerbaijani, where I is the capital of ı and İ that of i."""
    text = _stream_safe(text).translate(_APOSTROPHES)
    return basic(unicodedata.normalize("NFKC", text).translate(_TURKISH))


def arabic(text: str) -> str:
    """`basic` without short vowels and tatweel; the forms of alef become one letter, as do those of final ya."""
    return _until_stable(lambda line: _fold(_fold(line).translate(_ARABIC)), text)


WHISPER = "whisper"
"""Whisper's own rules; see `normalizer`."""
NORMALIZERS: dict[str, Callable[[str], str]] = {
    "none": none,
    "basic": basic,
    "zh": chinese,
    "tr": turkish,
    "ar": arabic,
}
_OF_LANGUAGE = {"zh": "zh", "yue": "zh", "ja": "zh", "tr": "tr", "az": "tr", "ar": "ar", "fa": "ar", "ur": "ar"}


def _until_stable(rule: Callable[[str], str], text: str) -> str:
    """Apply a rule until the text no longer changes: case folding can undo NFKC and the reverse."""
    text = _stream_safe(text)
    while (changed := rule(text)) != text:
        text = changed
    return text


def _stream_safe(text: str) -> str:
    """Leave out what follows the thirtieth combining mark in a row: no language writes so many.

    Sorting them takes quadratic time (Unicode Standard Annex 15, section 13). Texts in which that is no time stay as
    they are.
    """
    if len(text) < _LONG or text.isascii():
        return text
    kept, num_marks = [], 0
    for char in text:
        num_marks = num_marks + 1 if unicodedata.combining(char) else 0
        if num_marks <= _MAX_MARKS:
            kept.append(char)
    return "".join(kept)


def _whisper(language: str, spellings: str) -> Callable[[str], str]:
    """Radford et al. 2022, appendix C, as transformers has it."""
    words = _spellings(spellings)  # which takes no libraries
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

    others = BasicTextNormalizer()
    rules = EnglishTextNormalizer(words) if language == "en" else others

    def normalized(text: str) -> str:
        try:
            return " ".join(str(rules(_stream_safe(text))).split())
        except ValueError:  # Python takes no number of more than 4,300 digits, and these rules read numbers
            return " ".join(str(others(_stream_safe(text))).split())

    return normalized


def _spellings(uri: str) -> dict[str, str]:
    try:
        spellings = json.loads(read_uri(uri)) if uri else {}
    except (ValueError, RecursionError) as error:
        spellings, why = None, str(error)
    else:
        why = "it is not a mapping of words to words"
    is_of_words = isinstance(spellings, dict) and all(isinstance(word, str) for word in spellings.values())
    if spellings is None or not is_of_words:
        raise ConfigError(
            f"`{redact_uri(uri)}` contains no spellings",
            code="unreadable-file",
            why=why,
            fix="give the `normalizer.json` of a Whisper checkpoint",
        )
    return spellings


def _fold(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES))
    text = text.casefold().translate(_SIGNS)
    if "'" in text:
        text = _OUTER_APOSTROPHE.sub(" ", text)
    text = " ".join(text.split())
    return text if text.isascii() else unicodedata.normalize("NFC", text)


class _Signs(dict[int, str]):
    """Replacement of each code point, filled in on first use."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)[0]
        if char.isdecimal():
            self[code] = str(unicodedata.decimal(char))
        elif kind in "LMN" or char == "'":
            self[code] = char
        elif kind in "PSZ" or char.isspace() or char == _ZERO_WIDTH_SPACE:
            self[code] = " "
        else:  # controls, joiners, soft hyphens: not pronounced
            self[code] = ""
        return self[code]


_SIGNS = _Signs(_APOSTROPHES)
