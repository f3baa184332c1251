"""The tutorial: its notebook runs from its first cell to its last, and the page is that of the notebook."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

import loose_files
from narrow_models import narrow

ROOT = Path(__file__).parents[1]
NOTEBOOK = json.loads((ROOT / "examples/quickstart.ipynb").read_text(encoding="utf-8"))
SHORT = {"hours=0.5": "hours=0.03", "train.max_minutes=4": "train.steps=4"}


@pytest.fixture(scope="module")
def tutorial() -> ModuleType:
    """`tools/tutorial_page.py`, which is in no package."""
    return loose_files.load("tools/tutorial_page.py")


def test_the_notebook_is_one() -> None:
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"], len(set(ids))) == (4, 5, len(ids))


def test_the_page_is_that_of_the_notebook(tutorial: ModuleType) -> None:
    assert (ROOT / "docs/tutorial.md").read_text(encoding="utf-8") == tutorial.page(), "python tools/tutorial_page.py"


@pytest.mark.slow
def test_the_notebook_runs_in_its_short_form_and_prints_where_it_has_printed(
    tutorial: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    narrow(monkeypatch)
    text = json.dumps(NOTEBOOK)
    for value, short in SHORT.items():
        assert text.count(value) == 1
        text = text.replace(value, short)
    ran = tutorial.run(json.loads(text))
    assert [bool(cell.get("outputs")) for cell in ran["cells"]] == [
        bool(cell.get("outputs")) for cell in NOTEBOOK["cells"]
    ]
