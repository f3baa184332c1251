"""Error rates on a terminal: percent, groups with the worst first, alignments, and what counted them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.scoring.figures import Stamp
from voxstill.scoring.words import Pair

ORDERED = "duration"
"""The property whose groups have an order of their own."""
_NOTHING = "***"


def ending(warnings: Sequence[str], stamp: Stamp) -> list[str]:
    """Format the warnings and the stamp, the last lines of every text."""
    versions = ", ".join(f"{name} {number}" for name, number in stamp.versions.items())
    by = f"normalizer {stamp.normalizer}; " if stamp.normalizer else ""
    return [*(f"warning: {one_line(warning)}" for warning in warnings), f"scored by {stamp.scorer}; {by}{versions}"]


def percent(rate: float | None) -> str:
    """Format a rate in percent; a dash for None."""
    return "–" if rate is None else f"{100 * rate:.2f} %"


def groups(by: str, rows: Mapping[str, Mapping[str, Any]], most: int) -> list[str]:
    """A line for each group of utterances, the worst first, at most so many."""
    if not rows:
        return [f"by {by}: no utterance has one"]
    rate = "wer" if "wer" in next(iter(rows.values())) else "cer"
    unit = "words" if rate == "wer" else "characters"
    names = list(rows)
    if by != ORDERED:
        names.sort(key=lambda name: (-(rows[name][rate] or 0), -rows[name]["errors"], name))
    shown = {name: one_line(name, MOST_NAME) for name in names[:most]}
    width = max(len(by), *map(display_width, shown.values()))
    lines = [title(by, len(shown), len(rows)), f"  {_padded(by, width)}{rate.upper():>10}{'errors':>9}{unit:>12}"]
    for name, text in shown.items():
        row = rows[name]
        lines.append(f"  {_padded(text, width)}{percent(row[rate]):>10}{row['errors']:>9,}{row[unit]:>12,}")
    return lines


def title(by: str, num_shown: int, num: int) -> str:
    """The line above groups, of which some may be left out."""
    return f"by {by}:" if num_shown == num else f"by {by}, the worst {num_shown:,} of {num:,}:"


def alignment(pairs: Sequence[Pair], columns: int = 100) -> list[str]:
    """A reference above its hypothesis, word below word, in lines of so many columns; errors are in capitals."""
    lines: list[str] = []
    top, bottom, used = "", "", 0
    for pair in pairs:
        ref, hyp = (_NOTHING if side is None else one_line(side, MOST_NAME) for side in pair)
        if pair[0] != pair[1]:
            ref, hyp = ref.upper(), hyp.upper()
        width = max(display_width(ref), display_width(hyp)) + 1
        if used and used + width > columns:
            lines += [f"  ref  {top.rstrip()}", f"  hyp  {bottom.rstrip()}"]
            top, bottom, used = "", "", 0
        top, bottom, used = top + _padded(ref, width), bottom + _padded(hyp, width), used + width
    return [*lines, f"  ref  {top.rstrip()}", f"  hyp  {bottom.rstrip()}"]


def display_width(text: str) -> int:
    """Columns that a text takes on a terminal: two for each wide character, none for a mark."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))
