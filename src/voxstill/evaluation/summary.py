"""The text of an evaluation for people: rates in percent, groups with the worst first, alignments on request."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from voxstill.evaluation.score import ending, percent
from voxstill.scoring.figures import Stamp
from voxstill.scoring.words import Pair

MOST_GROUPS = 10
"""Of speakers and other properties; the JSON and the report have all."""
ORDERED = "duration"
"""The property whose groups have an order of their own."""
_NOTHING = "***"


def text_of(figures: Mapping[str, Any], by: Sequence[str], most: int = MOST_GROUPS) -> str:
    """The figures of recognition, classification or speaker verification, with groups by some properties."""
    lines = _recognition(figures) if "wer" in figures else _classification(figures)
    lines += [
        f"{figures['rtfx']:,.0f} times real time, {figures['parameters'] / 1e6:,.2f} million parameters",
    ]
    for name in by:
        lines += ["", *groups(name, figures.get(f"by_{name}") or {}, most)]
    stamp = Stamp(scorer=figures["scorer"], normalizer=figures["normalizer"], versions=figures["versions"])
    return "\n".join([*lines, "", *ending(figures["warnings"], stamp)])


def _recognition(figures: Mapping[str, Any]) -> list[str]:
    lines = [
        f"WER  {percent(figures['wer']):>9}{_span(figures)}",
        f"CER  {percent(figures['cer']):>9}",
        f"{figures['errors']:,} errors in {figures['words']:,} words: {figures['substitutions']:,} substitutions,"
        f" {figures['insertions']:,} insertions, {figures['deletions']:,} deletions;"
        f" {figures['utterances']:,} utterances",
    ]
    hourly = figures["words_per_hour_of_silence"]
    return lines if hourly is None else [*lines, f"{hourly:,.0f} words in an hour of silence"]


def _classification(figures: Mapping[str, Any]) -> list[str]:
    lines = [f"{figures['utterances']:,} utterances"]
    if figures["accuracy"] is not None:
        lines = [
            f"accuracy  {percent(figures['accuracy']):>9}{_span(figures)}",
            f"macro F1  {percent(figures['macro_f1']):>9}",
            *lines,
        ]
    if figures.get("eer") is not None:
        trials = f"{figures['trials']:,} trials"
        lines = [f"EER       {percent(figures['eer']):>9}  minDCF {figures['min_dcf']:.3f}, {trials}", *lines]
    if figures["unknown"]:
        lines.append(f"{figures['unknown']:,} utterances are of classes that were never learnt")
    rows = {name: row["f1"] for name, row in figures["classes"].items() if row["f1"] is not None}
    worst = sorted(rows, key=lambda name: (rows[name], name))[:MOST_GROUPS]
    if worst:
        width = max(len("class"), *map(len, worst))
        lines += ["", _title("class", len(worst), len(rows)), f"  {'class':<{width}}{'F1':>10}"]
        lines += [f"  {name:<{width}}{percent(rows[name]):>10}" for name in worst]
    return lines


def _span(figures: Mapping[str, Any]) -> str:
    span = figures["interval"]
    if span is None:
        return ""
    return f"  (95 % of draws of {figures['interval_over']}: {percent(span[0])} to {percent(span[1])})"


def groups(by: str, rows: Mapping[str, Mapping[str, Any]], most: int) -> list[str]:
    """A line for each group of utterances, the worst first, at most so many."""
    if not rows:
        return [f"by {by}: no utterance has one"]
    rate = "wer" if "wer" in next(iter(rows.values())) else "cer"
    unit = "words" if rate == "wer" else "characters"
    names = list(rows)
    if by != ORDERED:
        names.sort(key=lambda name: (-(rows[name][rate] or 0), -rows[name]["errors"], name))
    shown = names[:most]
    width = max(len(by), *map(display_width, shown))
    lines = [_title(by, len(shown), len(rows)), f"  {_padded(by, width)}{rate.upper():>10}{'errors':>9}{unit:>12}"]
    for name in shown:
        row = rows[name]
        lines.append(f"  {_padded(name, width)}{percent(row[rate]):>10}{row['errors']:>9,}{row[unit]:>12,}")
    return lines


def _title(by: str, num_shown: int, num: int) -> str:
    return f"by {by}:" if num_shown == num else f"by {by}, the worst {num_shown:,} of {num:,}:"


def alignment(pairs: Sequence[Pair], columns: int = 100) -> list[str]:
    """A reference above its hypothesis, word below word, in lines of so many columns; errors are in capitals."""
    lines: list[str] = []
    top, bottom, used = "", "", 0
    for pair in pairs:
        ref, hyp = (_NOTHING if side is None else side.upper() if pair[0] != pair[1] else side for side in pair)
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
