from __future__ import annotations

import random
import re
from dataclasses import asdict
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import CHROMIUM, Browser
from pages import Page
from voxstill.evaluation.report.classes import Figures, page
from voxstill.scoring.classes import score


def figures(num_classes: int) -> Figures:
    chance = random.Random(num_classes)
    names = [f"speaker-{i:03}" for i in range(num_classes)]
    near = {name: chance.choice(names) for name in names}
    references = chance.choices(names, k=40 * num_classes)
    hypotheses = [
        name if chance.random() < 0.8 else chance.choice([near[name], chance.choice(names)]) for name in references
    ]
    scores = asdict(score(list(zip(references, hypotheses, strict=True))))
    more = {"eer": 0.081, "min_dcf": 0.4321, "trials": 4950, "interval": (0.78, 0.86), "interval_over": "speakers"}
    facts = {"title": "Who speaks", "about": "wav2vec 2.0, frozen", "split": "test", "utterances": len(references)}
    return cast("Figures", {**facts, **more, **scores})


def test_the_page_is_one_well_formed_file_that_loads_nothing() -> None:
    html = page(figures(8))
    page_of_html = Page(html)
    assert page_of_html.sections == ["result", "matrix", "mistakes", "classes"]
    assert {link.removeprefix("#") for link in page_of_html.links if link.startswith("#")} == {
        *page_of_html.sections,
        "content",
    }
    assert all(link.startswith(("#", "data:")) for link in page_of_html.links)
    assert not re.search(r"https?://|@import|url\(|\b(nan|inf|None)\b", html)
    assert "script" not in page_of_html.tags


def test_what_is_not_known_is_left_out_or_a_dash() -> None:
    scores = score([])
    nothing = Page(page({"title": "none", "utterances": 0, **asdict(scores)}))  # type: ignore[typeddict-item]
    assert nothing.sections == ["result", "matrix", "classes"]
    wrong_scores = asdict(score([("a", "a"), ("b", "c")]))
    html = page({"title": "few", "utterances": 2, **wrong_scores})  # type: ignore[typeddict-item]
    assert "error rate" not in html
    assert "detection cost" not in html
    assert "–" in html


@given(st.text())
def test_no_name_of_a_class_can_become_markup(text: str) -> None:
    evil = f'</td><script>alert("{text}")</script>'
    scores = asdict(score([(evil, evil), (evil, "b"), ("b", evil)]))
    assert "script" not in Page(page({"title": evil, "utterances": 3, **scores})).tags  # type: ignore[typeddict-item]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_in_chromium_every_count_can_be_read(tmp_path: Path, num_classes: int) -> None:
    (tmp_path / "page.html").write_text(page(figures(num_classes)), encoding="utf-8")
    with Browser(tmp_path) as browser:
        browser.open((tmp_path / "page.html").as_uri())
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        cells = "[...document.querySelectorAll('.confusion tbody td')]"
        assert browser.evaluate(f"{cells}.length") == num_classes**2
        assert browser.evaluate(f"{cells}.every((each) => each.scrollWidth <= each.clientWidth)")
        assert browser.evaluate(f"{cells}.reduce((sum, each) => sum + Number(each.textContent), 0)") == 40 * num_classes
        browser.screenshot(tmp_path / "page.png")
        assert not browser.errors
        assert all(url.startswith(("file:", "data:")) for url in browser.network)
