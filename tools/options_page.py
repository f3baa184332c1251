"""Writes `docs/reference/options.md` and the Chinese page beside it: every option, out of its definition.

    python tools/options_page.py

The Chinese is in `tools/options_zh.toml`. A test compares the pages with what this writes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from voxstill.core.config import Option
from voxstill.pipeline.options import explained

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if page.stem not in ("results", "architecture", "torture")]
"""Where options are used, and explained at length."""
HOMES = {
    "source": "sources",
    "cache": "sources",
    "audio": "sources",
    "segment": "sources",
    "diarize": "diarization",
    "engine": "cluster",
    "monitor": "operating",
    "teacher": "teachers",
    "filter": "filter",
    "shard": "sources",
    "student": "training",
    "plan": "training",
    "augment": "training",
    "train": "training",
    "decode": "decoding",
    "pretrain": "pretraining",
    "evaluate": "training",
    "serve": "serving",
    "demo": "quickstart",
    "work": "quickstart",
    "seed": "training",
    "rounds": "training",
}
"""The page of a section, or of an option without one."""
OWN = re.compile(r"\((\S+)\) (.+)", re.S)
"""The meaning of an option that one teacher or one engine has."""
GENERAL = "General"


@dataclass(frozen=True)
class Wording:
    """The words of the page in one language, and its folder; a text that a mapping lacks stays as it is."""

    folder: Path
    head: str
    general: str
    owned: str
    columns: Sequence[str]
    comma: str
    brackets: str
    either: str
    see: str
    titles: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)

    @property
    def page(self) -> Path:
        """The file of the page."""
        return self.folder / "reference/options.md"


def english() -> Wording:
    """The words of the code."""
    return Wording(
        folder=DOCS,
        head="""# Options

Every option of the configuration, its default and its meaning. This page is written by `tools/options_page.py` out of
the code; `voxstill explain` prints the same.

An option is set in YAML below its section, by the environment variable `VOXSTILL__SECTION__OPTION`, or by
`--set section.option=value` on the command line. A later one wins, in this order.

""",
        general=GENERAL,
        owned="`{section}` of `{owner}`",
        columns=("option", "value", "default", "meaning"),
        comma=", ",
        brackets=" ({})",
        either=" or ",
        see=" See [{title}]({link}).",
    )


def chinese() -> Wording:
    """The words of `tools/options_zh.toml`; SystemExit where its meanings are not those of the code."""
    path = ROOT / "tools/options_zh.toml"
    wording = Wording(folder=DOCS / "zh", **tomllib.loads(path.read_text(encoding="utf-8")))
    meanings = {_meaning(row) for row in explained(None)}
    lacking, stale = sorted(meanings - wording.meanings.keys()), sorted(wording.meanings.keys() - meanings)
    if lacking or stale:
        sys.exit("\n- ".join([f"{path.name} lacks the meanings", *lacking, "and has stale ones", *stale]))
    return wording


def page(wording: Wording) -> str:
    """The page, as Markdown."""
    sections: dict[str, list[Option]] = {}
    for row in explained(None):
        section = row.path.partition(".")[0] if "." in row.path else GENERAL
        owner = OWN.fullmatch(row.meaning)
        sections.setdefault(f"{section}: {owner[1]}" if owner else section, []).append(row)
    uses = _uses(row.path for rows in sections.values() for row in rows)
    headings = {title: _heading(title, wording) for title in sections}
    lines = [wording.head + "\n".join(f"- [{heading}](#{_anchor(heading)})" for heading in headings.values())]
    for title, rows in sections.items():
        lines += ["", f"## {headings[title]}", "", f"| {' | '.join(wording.columns)} |", "|---|---|---|---|"]
        lines += [_line(row, uses, wording) for row in rows]
    return "\n".join(lines) + "\n"


def _heading(title: str, wording: Wording) -> str:
    section, colon, owner = title.partition(": ")
    if title == GENERAL:
        return wording.general
    return wording.owned.format(section=section, owner=owner) if colon else f"`{section}`"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _line(row: Option, uses: Mapping[str, Path], wording: Wording) -> str:
    meaning = wording.meanings.get(_meaning(row), _meaning(row))
    meaning += _reference(uses[row.path], wording)
    default = json.dumps(row.default, ensure_ascii=False)
    cells = (f"`{row.path}`", _value(row, wording), f"`{default}`", meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _meaning(row: Option) -> str:
    owned = OWN.fullmatch(row.meaning)
    return owned[2] if owned else row.meaning


def _value(row: Option, wording: Wording) -> str:
    """The type of an option, its limits and its unit."""
    kinds = wording.either.join(wording.values.get(kind, kind) for kind in row.type.split(" or "))
    limits = wording.values.get(row.limits, row.limits.replace(", ", wording.comma))
    unit = wording.brackets.format(wording.units.get(row.unit, row.unit)) if row.unit else ""
    return wording.comma.join(part for part in (kinds, limits) if part) + unit


def _reference(use: Path, wording: Wording) -> str:
    """A link to the page of the same language, or else to the English one."""
    translated = wording.folder / use.name
    target = translated if translated.exists() else use
    link = os.path.relpath(target, wording.page.parent)
    return wording.see.format(title=wording.titles.get(use.stem, use.stem), link=link)


def _uses(paths: Iterable[str]) -> Mapping[str, Path]:
    """The page of the section of each option, or the one that names it most often where that does not name it."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    uses: dict[str, Path] = {}
    for path in paths:
        pattern = re.compile(rf"(?<![\w.]){re.escape(path)}(?![\w.]*\w)")
        counts = {page: len(pattern.findall(text)) for page, text in texts.items()}
        home = DOCS / f"{HOMES[path.partition('.')[0]]}.md"
        most = max(counts, key=counts.__getitem__)
        uses[path] = home if "." not in path or counts[home] or not counts[most] else most
    return uses


if __name__ == "__main__":
    for language, output in zip((english, chinese), sys.argv[1:] or (None, None), strict=False):
        words = language()
        Path(output or words.page).write_text(page(words), encoding="utf-8")
