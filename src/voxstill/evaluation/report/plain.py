"""The report as JSON and as Markdown.

Audio, the alignments of all utterances and the rows of `metrics.jsonl` are left out, as they are large or have files of
their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from voxstill.evaluation.report import round_table
from voxstill.evaluation.report.formatting import figure, magnitude, number, percent
from voxstill.evaluation.report.html import ROLES, Facts, ResultLine, System, against_teacher, shown_groups

_LEFT_OUT = ("utterances", "metrics")


def as_json(facts: Facts | Mapping[str, Any]) -> str:
    """Serialise the facts as one JSON object; rates are shares (0.25 is 25 %), equal facts give equal text."""
    kept = {name: value for name, value in facts.items() if name not in _LEFT_OUT}
    return json.dumps(_without_audio(kept), ensure_ascii=False, indent=1) + "\n"


def markdown(facts: Facts | Mapping[str, Any]) -> str:
    """Write the facts as Markdown tables; everything that comes from data is escaped."""
    parts = [f"# {_escape(facts.get('title', 'Report'))}"]
    if facts.get("about"):
        parts.append(_escape(facts["about"]))
    if systems := cast("Sequence[System]", facts.get("systems", ())):
        rows = [
            [
                *(
                    system["role"],
                    system["name"],
                    percent(system["wer"]),
                    _interval(system),
                    percent(system.get("cer")),
                ),
                *(magnitude(system.get("parameters")), number(system.get("rtfx"))),
            ]
            for system in systems
        ]
        names = ("", "system", "WER", "95 % interval", "CER", "parameters", "audio-s/s")
        parts += ["## Result", _table(names, rows)]
    if "against_teacher" in facts:
        parts.append(_escape(against_teacher(facts["against_teacher"])))
    if table := facts.get("grammar"):
        parts += ["## With and without a grammar", *_grammar(table)]
    if scores := facts.get("meetings"):
        parts += ["## Meetings", *_meetings(scores)]
    if lines := facts.get("results"):
        rows = [result_line(line) for line in lines]
        columns = ("corpus", "split", "recogniser", "decoding", "normalizer", "utterances", "rate", "95 % interval")
        parts += ["## All results", _table(columns, rows)]
    if compared := facts.get("rounds"):
        parts += ["## Rounds", _table(round_table.HEAD, round_table.cells(compared))]
    if steps := facts.get("steps"):
        rows = [[step["name"], _figures(step["figures"]), f"{step['seconds']:.1f}"] for step in steps]
        parts += ["## Steps", _table(("step", "figures", "seconds"), rows)]
    if funnel := facts.get("funnel"):
        rows = [[rule["name"], number(rule["dropped"]), rule["why"]] for rule in funnel["rules"] if rule["dropped"]]
        head = ("rule", "dropped", f"why, of {number(funnel['labels'])} labels")
        parts += ["## What the filter dropped", _table(head, rows)]
    for breakdown in map(shown_groups, facts.get("breakdowns", ())):
        roles = [role for role in ROLES if any(role in group["wer"] for group in breakdown["groups"])]
        rows = [
            [group["name"], number(group["words"]), *(percent(group["wer"].get(role)) for role in roles)]
            for group in breakdown["groups"]
        ]
        of_all = f", the worst {len(rows)} of {breakdown['total']:,}" if len(rows) < breakdown["total"] else ""
        parts += [f"## WER by {breakdown['by']}{of_all}", _table((breakdown["by"], "words", *roles), rows)]
    for role, confusions in facts.get("confusions", {}).items():
        rows = [
            [confusion["reference"] or "∅", confusion["hypothesis"] or "∅", number(confusion["count"])]
            for confusion in confusions
        ]
        parts += [f"## Errors of the {role}", _table(("reference", "hypothesis", "times"), rows)]
    return "\n\n".join(parts) + "\n"


def _grammar(table: Mapping[str, Any]) -> list[str]:
    """A sentence on what was judged, and the rates."""
    rows = [
        [
            *(row["system"], "with" if row["grammar"] else "without", percent(row["wer"]), _interval(row)),
            *(percent(row["cer"]), number(row["rtfx"])),
        ]
        for row in table["rows"]
    ]
    columns = ("", "grammar", "WER", "95 % interval", "CER", "audio-s/s")
    return [f"On {number(table['utterances'])} of {number(table['of'])} utterances.", _table(columns, rows)]


def _meetings(scores: Mapping[str, Any]) -> list[str]:
    """A sentence on all recordings, and the rates of each."""
    rows = [
        [
            *(row["session"], percent(row["cpwer"]), percent(row["tcpwer"]), number(row["words"])),
            *map(str, row["speakers"]),
        ]
        for row in scores["sessions"]
    ]
    columns = ("recording", "cpWER", "tcpWER", "words", "speakers", "found")
    return [f"cpWER of the teacher's labels: {percent(scores['cpwer'])}.", _table(columns, rows)]


def result_line(line: ResultLine | Mapping[str, Any]) -> list[str]:
    """What was judged and how, its rate and the interval of that, each as text."""
    return [
        *(line["corpus"] or "–", line["split"], line["recogniser"], line["decoding"] or "–"),
        *(line["normalizer"] or "–", number(line["utterances"]), _rate(line["rate"]), _interval(line)),
    ]


def _rate(rate: tuple[str, float] | None) -> str:
    return "–" if rate is None else f"{rate[0].upper()} {percent(rate[1])}"


def _interval(system: System | ResultLine | Mapping[str, Any]) -> str:
    interval = system.get("interval")
    return percent(None) if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"


def _figures(figures: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {figure(value, name)}" for name, value in figures.items())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(map(_escape, head)), *(list(map(_escape, row)) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escape(text: str) -> str:
    """Escape Markdown, on one line."""
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>()#|!~" else char for char in " ".join(text.split()))


def _without_audio(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _without_audio(nested) for name, nested in value.items() if name != "audio"}
    if isinstance(value, list | tuple):
        return [_without_audio(item) for item in value]
    return value
