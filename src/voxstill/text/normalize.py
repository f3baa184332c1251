"""What is made alike before words are compared, and what a word and a character are.

Every normalizer is idempotent, keeps the order of words and leaves one ASCII space between them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from voxstill.errors import ConfigError

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


def normalizer(name: str) -> Callable[[str], str]:
    """The normalizer called `name`; ConfigError where there is none."""
    if name not in NORMALIZERS:
        raise ConfigError(f"there is no normalizer `{name}`", fix=f"take one of {', '.join(NORMALIZERS)}")
    return NORMALIZERS[name]


def none(text: str) -> str:
    """The text as it is, with one space between words."""
    return " ".join(text.split())


def basic(text: str) -> str:
    """Letters, digits and marks in NFKC, case folded; apostrophes stay inside words, other signs become spaces.

    Marks stay because Hindi and Thai write vowels with them.
    """
    while (
        folded := _fold(text)
    ) != text:  # case folding can undo NFKC and the other way round: two passes at most, often
        text = folded
    return text


NORMALIZERS: dict[str, Callable[[str], str]] = {"none": none, "basic": basic}


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
        if kind in "LMN" or char == "'":
            self[code] = char
        elif kind in "PSZ" or char.isspace() or char == _ZERO_WIDTH_SPACE:
            self[code] = " "
        else:  # controls, joiners, soft hyphens: nothing one hears
            self[code] = ""
        return self[code]


_SIGNS = _Signs(_APOSTROPHES)
