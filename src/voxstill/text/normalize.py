"""What is made alike before words are compared, and what a word and a character are.

Every normalizer of ours is idempotent, keeps the order of words and leaves one ASCII space between them. Whisper's are
not ours and promise none of it: they are here so that figures can be held against those that others publish.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable

from voxstill.errors import ConfigError
from voxstill.fetch import read_uri

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
_BELONGS = "\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef"  # voicing marks and variants of the character before
_IDEOGRAPH = re.compile(rf"[{_IDEOGRAPHS}][{_BELONGS}]*")
_TURKISH = {ord("I"): "ı", ord("İ"): "i"}
_ARABIC = {
    **dict.fromkeys([*range(0x64B, 0x660), 0x670, *range(0x6D6, 0x6DD), *range(0x6DF, 0x6E9), *range(0x6EA, 0x6EE)]),
    ord("ـ"): None,
    **dict.fromkeys(map(ord, "أإآٱ"), "ا"),
    ord("ى"): "ي",
}
"""Vowels that are mostly not written, the stroke that stretches words, and letters that are written in several ways."""


def words(text: str) -> list[str]:
    """The words of `text`: what stands between Unicode spaces."""
    return text.split()


def characters(text: str) -> list[str]:
    """The code points of `text`, with one space between words counted as a character, as jiwer and torchmetrics do."""
    return list(" ".join(text.split()))


def units(text: str) -> list[str]:
    """The words of `text`, but single characters of scripts written without spaces (Han, kana, Thai and its kin).

    The script decides and not the language, so labels without a language and mixed texts come out right.
    """
    return text.split() if text.isascii() else _UNIT.findall(text)


def normalizer(name: str, language: str | None = None) -> Callable[[str], str]:
    """The normalizer called `name`; ConfigError where there is none.

    `language` (`en`, `pt-BR`) matters to `whisper` alone, which has rules for English and others for the rest.
    `whisper:FILE` reads the British spellings that belong to the English ones from a checkpoint's `normalizer.json`.
    """
    kind, _, spellings = name.partition(":")
    if kind == WHISPER:
        return _whisper(_main(language) or "en", spellings)
    if name not in NORMALIZERS:
        raise ConfigError(
            f"there is no normalizer `{name}`", fix=f"take one of {', '.join([*NORMALIZERS, WHISPER])}, whisper:FILE"
        )
    return NORMALIZERS[name]


def name_for(language: str | None) -> str:
    """The normalizer that has the rules of a language: `basic` for most."""
    return _OF_LANGUAGE.get(_main(language), "basic")


def _main(language: str | None) -> str:
    """`pt` of `pt-BR` and `pt_BR`."""
    return re.split("[-_]", language or "")[0].lower()


def none(text: str) -> str:
    """The text as it is, with one space between words."""
    return " ".join(text.split())


def basic(text: str) -> str:
    """Letters, digits and marks in NFKC, case folded; apostrophes stay inside words, other signs become spaces.

    Marks stay because Hindi and Thai write vowels with them. Decimal digits of every script become 0 to 9.
    """
    return _settled(_fold, text)


def chinese(text: str) -> str:
    """`basic` with a space around each Han character and kana: a word error is a character error, and mixed text works.

    For Chinese and Japanese. Thai and its kin keep their words.
    """
    return _settled(lambda each: " ".join(_IDEOGRAPH.sub(r" \g<0> ", _fold(each)).split()), text)


def turkish(text: str) -> str:
    """`basic` with the two letters i of Turkish and Azerbaijani kept apart: I is the capital of ı, and İ that of i."""
    return basic(unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).translate(_TURKISH))


def arabic(text: str) -> str:
    """`basic` without short vowels and stretching; the forms of alef are one letter, and so are those of final ya."""
    return _settled(lambda each: _fold(_fold(each).translate(_ARABIC)), text)


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


def _settled(rule: Callable[[str], str], text: str) -> str:
    """What a rule leaves alone: case folding can undo NFKC and the other way round; two passes at most, often."""
    while (changed := rule(text)) != text:
        text = changed
    return text


def _whisper(language: str, spellings: str) -> Callable[[str], str]:
    """Radford et al. 2022, appendix C, as transformers has it."""
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

    rules = EnglishTextNormalizer(_spellings(spellings)) if language == "en" else BasicTextNormalizer()
    return lambda text: " ".join(str(rules(text)).split())


def _spellings(uri: str) -> dict[str, str]:
    found = json.loads(read_uri(uri)) if uri else {}
    if not isinstance(found, dict):
        raise ConfigError(f"`{uri}` holds no spellings", fix="name the `normalizer.json` of a Whisper checkpoint")
    return found


def _fold(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES))
    text = text.casefold().translate(_SIGNS)
    if "'" in text:
        text = _OUTER_APOSTROPHE.sub(" ", text)
    text = " ".join(text.split())
    return text if text.isascii() else unicodedata.normalize("NFC", text)


class _Signs(dict[int, str]):
    """What becomes of each code point, looked up once."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)[0]
        if char.isdecimal():
            self[code] = str(unicodedata.decimal(char))
        elif kind in "LMN" or char == "'":
            self[code] = char
        elif kind in "PSZ" or char.isspace() or char == _ZERO_WIDTH_SPACE:
            self[code] = " "
        else:  # controls, joiners, soft hyphens: nothing one hears
            self[code] = ""
        return self[code]


_SIGNS = _Signs(_APOSTROPHES)
