"""The pages of the reference are those that the code writes, and leave nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import forked
from voxstill.pipeline.options import explained

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference"


@pytest.mark.parametrize(
    ("name", "pages"),
    [
        ("options", ["reference/options.md", "zh/reference/options.md"]),
        ("commands", ["reference/commands.md"]),
        ("errors", ["reference/errors.md", "zh/reference/errors.md"]),
        ("formats", ["reference/formats.md"]),
    ],
)
def test_a_page_is_that_of_the_code(name: str, pages: list[str], tmp_path: Path) -> None:
    tool = ROOT / f"tools/{name}_page.py"
    outputs = [tmp_path / f"{number}.md" for number in range(len(pages))]
    forked.call(forked.script, [tool, *outputs], log=tmp_path / "log")
    for output, page in zip(outputs, pages, strict=True):
        committed = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert output.read_text(encoding="utf-8") == committed, f"run {tool}"


def test_every_option_is_in_the_reference_with_the_page_that_explains_it() -> None:
    page = (REFERENCE / "options.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| .* See \[\w+\]\(\.\./\w+\.md\)\. \|$", page, re.M)
    assert [row.path for row in explained(None) if row.path not in rows] == []


def test_every_option_is_named_on_the_page_that_explains_it() -> None:
    """Those of `teacher.decode` are those of `decode`, and explained there."""
    page = (REFERENCE / "options.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| .* See \[\w+\]\(\.\./(\w+\.md)\)\. \|$", page, re.M)
    texts = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for _, name in rows}
    assert [
        (option, name)
        for option, name in rows
        if not option.startswith("teacher.decode.") and not re.search(rf"\b{option.rpartition('.')[2]}\b", texts[name])
    ] == []


def test_every_command_is_in_the_reference() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    files = {path.stem.replace("_", "-") for path in (ROOT / "src/voxstill/commands").glob("[a-z]*.py")}
    assert [name for name in files if f"### `voxstill {name}`" not in page] == []


def test_the_reference_of_commands_has_meanings_choices_and_defaults() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^.*\|\s+\|$", page, re.M) == []
    assert r"| `--format` `text` \| `srt` \| `vtt` \| `json` | Format of the output. Default: `text`. |" in page
    assert "| `--order` `N` | Longest n-gram. Default: `3`. |" in page
