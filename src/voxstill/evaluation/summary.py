"""The text of an evaluation for people: rates in percent, groups with the worst first, alignments on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.evaluation.results import Corpus, decoding
from voxstill.evaluation.tables import ending, groups, percent, title
from voxstill.evaluation.tuning import Tuning
from voxstill.scoring.figures import Stamp

MOST_GROUPS = 10
"""Of speakers and other properties; the JSON and the report have all."""


def text_of(figures: Mapping[str, Any], by: Sequence[str], most: int = MOST_GROUPS) -> str:
    """The figures of recognition, classification or speaker verification, with groups by some properties."""
    lines = [_head(figures), *(_recognition(figures) if "wer" in figures else _classification(figures))]
    lines += [
        f"{figures['rtfx']:,.0f} times real time, {figures['parameters'] / 1e6:,.2f} million parameters",
    ]
    for name in by:
        lines += ["", *groups(name, figures.get(f"by_{name}") or {}, most)]
    stamp = Stamp(scorer=figures["scorer"], normalizer=figures["normalizer"], versions=figures["versions"])
    return "\n".join([*lines, "", *ending(figures["warnings"], stamp)])


def _head(figures: Mapping[str, Any]) -> str:
    """What was judged, on what and how."""
    corpus = Corpus.from_dict(figures["corpus"])
    how = decoding(figures)
    return f"{figures['model']} on {figures['split']} of {corpus.work}{f', {how}' if how else ''}"


def _recognition(figures: Mapping[str, Any]) -> list[str]:
    lines = [
        f"WER  {percent(figures['wer']):>9}{_span(figures)}",
        f"CER  {percent(figures['cer']):>9}",
        f"{figures['errors']:,} errors in {figures['words']:,} words: {figures['substitutions']:,} substitutions,"
        f" {figures['insertions']:,} insertions, {figures['deletions']:,} deletions;"
        f" {figures['utterances']:,} utterances",
    ]
    if "tuning" in figures:
        lines.append(f"tuning  {Tuning.from_dict(figures['tuning']).to_text()}")
    hourly = figures["words_per_hour_of_silence"]
    return lines if hourly is None else [*lines, f"{hourly:,.0f} words per hour of silence"]


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
        lines.append(f"{figures['unknown']:,} utterances are of classes that were not in training")
    rows = {name: row["f1"] for name, row in figures["classes"].items() if row["f1"] is not None}
    worst = sorted(rows, key=lambda name: (rows[name], name))[:MOST_GROUPS]
    if worst:
        shown = {name: one_line(name, MOST_NAME) for name in worst}
        width = max(len("class"), *map(len, shown.values()))
        lines += ["", title("class", len(worst), len(rows)), f"  {'class':<{width}}{'F1':>10}"]
        lines += [f"  {text:<{width}}{percent(rows[name]):>10}" for name, text in shown.items()]
    return lines


def _span(figures: Mapping[str, Any]) -> str:
    span = figures["interval"]
    if span is None:
        return ""
    return f"  (95 % of draws of {figures['interval_over']}: {percent(span[0])} to {percent(span[1])})"
