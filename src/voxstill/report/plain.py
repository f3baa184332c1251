"""The same facts as the page for machines and for other pages: JSON, and a short text in Markdown.

What has a file of its own is left out: audio, the alignments of all utterances, the rows of `metrics.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from voxstill.report.html import ROLES, Facts, System, figure, magnitude, number, percent

_OWN_FILES = ("utterances", "metrics")


def as_json(facts: Facts | Mapping[str, Any]) -> str:
    """The facts as one object, a rate a share (0.25 is 25 %); equal facts give equal text."""
    kept = {name: value for name, value in facts.items() if name not in _OWN_FILES}
    return json.dumps(_without_audio(kept), ensure_ascii=False, indent=1) + "\n"


def markdown(facts: Facts | Mapping[str, Any]) -> str:
    """The facts as tables of Markdown; what comes from data cannot become markup."""
    parts = [f"# {_plain(facts.get('title', 'Report'))}"]
    if facts.get("about"):
        parts.append(_plain(facts["about"]))
    if systems := cast("Sequence[System]", facts.get("systems", ())):
        rows = [
            [
                *(each["role"], each["name"], percent(each["wer"]), _interval(each), percent(each.get("cer"))),
                *(magnitude(each.get("parameters")), number(each.get("rtfx"))),
            ]
            for each in systems
        ]
        names = ("", "system", "WER", "95 % interval", "CER", "parameters", "audio-s/s")
        parts += ["## Result", _table(names, rows)]
    if steps := facts.get("steps"):
        rows = [[each["name"], _figures(each["figures"]), f"{each['seconds']:.1f}"] for each in steps]
        parts += ["## Steps", _table(("step", "figures", "seconds"), rows)]
    if funnel := facts.get("funnel"):
        rows = [[each["name"], number(each["dropped"]), each["why"]] for each in funnel["rules"] if each["dropped"]]
        head = ("rule", "dropped", f"why, of {number(funnel['labels'])} labels")
        parts += ["## What the filter dropped", _table(head, rows)]
    for breakdown in facts.get("breakdowns", ()):
        roles = [role for role in ROLES if any(role in each["wer"] for each in breakdown["groups"])]
        rows = [
            [each["name"], number(each["words"]), *(percent(each["wer"].get(role)) for role in roles)]
            for each in breakdown["groups"]
        ]
        parts += [f"## WER by {breakdown['by']}", _table((breakdown["by"], "words", *roles), rows)]
    for role, confusions in facts.get("confusions", {}).items():
        rows = [[each["reference"] or "∅", each["hypothesis"] or "∅", number(each["count"])] for each in confusions]
        parts += [f"## Errors of the {role}", _table(("said", "heard", "times"), rows)]
    return "\n\n".join(parts) + "\n"


def _interval(system: System) -> str:
    interval = system.get("interval")
    return percent(None) if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"


def _figures(figures: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {figure(value, name)}" for name, value in figures.items())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(map(_plain, head)), *(list(map(_plain, row)) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(text: str) -> str:
    """On one line, and no sign of it is read as markup."""
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>()#|!~" else char for char in " ".join(text.split()))


def _without_audio(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_audio(each) for name, each in value.items() if name != "audio"}
    if isinstance(value, list | tuple):
        return [_without_audio(each) for each in value]
    return value
