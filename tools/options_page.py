"""Writes `docs/reference/options.md`: every option of the configuration, out of its definition.

    python tools/options_page.py

A test compares the page with what this writes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from voxstill.core.config import Option
from voxstill.pipeline.options import explained

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/options.md"
PAGES = [page for page in sorted(ROOT.glob("docs/*.md")) if page.stem not in ("results", "architecture", "torture")]
"""Where options are used, and explained at length."""
OWN = re.compile(r"\((\S+)\) (.+)", re.S)
"""The meaning of an option that one teacher or one engine has."""
HEAD = """# Options

Every option of the configuration, its default and its meaning. This page is written by `tools/options_page.py` out of
the code; `voxstill explain` prints the same.

An option is set in YAML below its section, by the environment variable `VOXSTILL__SECTION__OPTION`, or by
`--set section.option=value` on the command line. A later one wins, in this order.
"""
GENERAL = "General"


def page() -> str:
    """The page, as Markdown."""
    sections: dict[str, list[Option]] = {}
    for row in explained(None):
        section = row.path.partition(".")[0] if "." in row.path else GENERAL
        owner = OWN.fullmatch(row.meaning)
        sections.setdefault(f"{section}: {owner[1]}" if owner else section, []).append(row)
    uses = _uses(row.path for rows in sections.values() for row in rows)
    lines = [HEAD, *_contents(sections)]
    for title, rows in sections.items():
        lines += ["", f"## {_heading(title)}", "", "| option | value | default | meaning |", "|---|---|---|---|"]
        lines += [_line(row, uses) for row in rows]
    return "\n".join(lines) + "\n"


def _contents(sections: Mapping[str, Sequence[Option]]) -> Iterator[str]:
    for title in sections:
        heading = _heading(title)
        anchor = re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")
        yield f"- [{heading}](#{anchor})"


def _heading(title: str) -> str:
    section, colon, owner = title.partition(": ")
    if title == GENERAL:
        return title
    return f"`{section}` of `{owner}`" if colon else f"`{section}`"


def _line(row: Option, uses: Mapping[str, Path]) -> str:
    owned = OWN.fullmatch(row.meaning)
    meaning = owned[2] if owned else row.meaning
    value = ", ".join(part for part in (row.type, row.limits) if part) + (f" ({row.unit})" if row.unit else "")
    if row.path in uses:
        name = uses[row.path].name
        meaning += f" See [{name.removesuffix('.md')}](../{name})."
    cells = (f"`{row.path}`", value, f"`{json.dumps(row.default, ensure_ascii=False)}`", meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _uses(paths: Iterable[str]) -> Mapping[str, Path]:
    """The page that names an option most often, of those that do."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    uses: dict[str, Path] = {}
    for path in {path for path in paths if "." in path}:
        pattern = re.compile(rf"(?<![\w.]){re.escape(path)}(?![\w.]*\w)")
        num, page = max(((len(pattern.findall(text)), page) for page, text in texts.items()), key=lambda pair: pair[0])
        if num:
            uses[path] = page
    return uses


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
