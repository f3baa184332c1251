"""The Chinese pages say what the English ones say: the same commands, headings, names and links."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CHINESE = DOCS / "zh"
PAGES = sorted(str(page.relative_to(CHINESE)) for page in CHINESE.glob("**/*.md"))
GENERATED = {"reference/options.md"}
WRITTEN = [page for page in PAGES if page not in GENERATED]
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


def pair(name: str) -> tuple[str, str]:
    """The English and the Chinese page of a name."""
    return (DOCS / name).read_text(encoding="utf-8"), (CHINESE / name).read_text(encoding="utf-8")


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", text)


def targets(name: str, folder: Path) -> set[str]:
    """The places that a page links to, by their English files; those in translated pages without their headings."""
    page = folder / name
    places = set()
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8"))):
        path, _, heading = link.partition("#")
        target = os.path.normpath(page.parent / path).replace(f"{CHINESE}/", f"{DOCS}/")
        target = os.path.relpath(target, DOCS)
        places.add(target if target in PAGES else f"{target}#{heading}")
    return places


def test_every_how_to_is_translated() -> None:
    names = {str(page.relative_to(DOCS)) for page in (DOCS / "how-to").glob("*.md")}
    assert names | {"index.md", "quickstart.md", "reference/options.md", "reference/glossary.md"} <= set(PAGES)


@pytest.mark.parametrize("name", WRITTEN)
def test_blocks_of_code_are_those_of_the_english_page(name: str) -> None:
    english, chinese = pair(name)
    assert FENCED.findall(chinese) == FENCED.findall(english)


@pytest.mark.parametrize("name", WRITTEN)
def test_headings_stand_at_the_levels_of_the_english_page(name: str) -> None:
    english, chinese = (re.findall(r"^#+(?= )", prose(text), re.M) for text in pair(name))
    assert chinese == english


@pytest.mark.parametrize("name", WRITTEN)
def test_names_and_links_of_the_english_page_are_in_the_chinese_one(name: str) -> None:
    english, chinese = (
        {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(text))} for text in pair(name)
    )
    assert english - chinese == set()
    assert targets(name, DOCS) - targets(name, CHINESE) - {"zh#"} == set()


def test_output_in_the_readme_is_that_of_the_english_one() -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
    blocks = [[block for block in FENCED.findall(text) if block[3] != "\n"] for text in (english, chinese)]
    assert blocks[0] == blocks[1]


def test_the_glossary_has_the_terms_of_the_english_one() -> None:
    english, chinese = (re.findall(r"^\| ([^|]+) \|", text, re.M) for text in pair("reference/glossary.md"))
    assert [term for term in chinese if term != "英文"] == [term for term in english if term != "term"]
