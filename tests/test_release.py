"""A release agrees with itself: one version everywhere, a changelog that can be read, extras that are documented."""

from __future__ import annotations

import re
import subprocess
import tomllib
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest

from voxstill.core.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"].keys()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
MOST_LINES = 5
"""Of an entry: it says what a user has to know, and the documents say the rest."""
NAMED = {
    "README.md": r"This is version ([\d.]+\d),",
    "README.zh-CN.md": r"这是 ([\d.]+\d) 版",
    "CITATION.cff": r"^version: (\S+)$",
    "docs/scoring.md": r"voxstill (\d+\.\d+\.\d+)",
    "docs/install.md": r"\bv(\d+\.\d+\.\d+)\b",
    "CONTRIBUTING.md": r"(?:\bv|voxstill[: ]|\[)(\d+\.\d+\.\d+)\b",
    **dict.fromkeys(
        (str(path.relative_to(ROOT)) for path in ROOT.glob("examples/cluster/*.yml")), r"/voxstill:(\d\S*)$"
    ),
}
"""Where the version stands besides `core/version.py`, which the package is built with."""


def releases() -> list[tuple[str, str, str]]:
    """Heading, date or nothing, and entries of each version, the newest first."""
    _, *parts = re.split(r"^## ", CHANGELOG, flags=re.M)
    sections = []
    for part in parts:
        heading, _, entries = part.partition("\n")
        match = re.fullmatch(r"\[(Unreleased|\d+\.\d+\.\d+)\](?: - (\d{4}-\d\d-\d\d))?", heading)
        assert match is not None, heading
        sections.append((match[1], match[2] or "", entries))
    return sections


@pytest.mark.parametrize("name", NAMED)
def test_the_version_is_the_same_everywhere(name: str) -> None:
    versions = set(re.findall(NAMED[name], (ROOT / name).read_text(encoding="utf-8"), re.M))
    assert versions == {__version__}


def test_the_package_takes_its_version_from_the_source() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "voxstill.core.version.__version__"}


def test_a_tag_of_this_commit_is_its_version() -> None:
    done = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "v*"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert set(done.stdout.split()) <= {f"v{__version__}"}


def test_the_changelog_begins_with_what_is_not_released_and_then_this_version() -> None:
    assert CHANGELOG.startswith("# Changelog\n")
    (unreleased, no_date, _), (newest, day, _), *_ = releases()
    assert (unreleased, no_date, newest) == ("Unreleased", "", __version__)
    assert f"date-released: {day}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_versions_of_the_changelog_fall_and_so_do_their_dates() -> None:
    numbers = [[int(part) for part in heading.split(".")] for heading, _, _ in releases()[1:]]
    dates = [date.fromisoformat(day) for _, day, _ in releases()[1:]]
    assert all(newer > older for newer, older in pairwise(numbers))
    assert all(newer >= older for newer, older in pairwise(dates))


@pytest.mark.parametrize("release", releases(), ids=lambda release: release[0])
def test_entries_stand_under_their_kind_and_are_short(release: tuple[str, str, str]) -> None:
    introduction, *parts = re.split(r"^### ", release[2], flags=re.M)
    assert not re.search(r"^- ", introduction, re.M)
    kinds = [part.partition("\n")[0] for part in parts]
    assert kinds == [kind for kind in KINDS if kind in kinds]
    for part in parts:
        entries = re.findall(r"^- .*(?:\n  .*)*", part, re.M)
        assert entries != []
        assert [entry for entry in entries if len(entry.splitlines()) > MOST_LINES] == []


def test_every_extra_is_in_the_table_of_the_installation() -> None:
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.M)) == EXTRAS


def test_every_extra_that_is_named_exists() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*"), *ROOT.glob("src/**/*.py")]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.is_file()]
    named = {
        name for text in texts for extras in re.findall(r"voxstill\[([\w,-]+)\]", text) for name in extras.split(",")
    }
    assert named - EXTRAS == set()
