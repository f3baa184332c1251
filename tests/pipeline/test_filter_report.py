"""The page of the filter: well-formed, loads nothing, and its figures are those of the verdicts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import CHROMIUM, Browser
from manifests import wav
from pages import Page
from voxstill.core.config import Config
from voxstill.evaluation.report import charts
from voxstill.filtering.verdicts import VerdictMap
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import filter_report
from voxstill.pipeline import index as indexing
from voxstill.pipeline import label as labelling
from voxstill.storage.figures import VerdictFigures
from voxstill.storage.store import Store

EVIL = "</td><script>alert(1)</script>"
TEXTS = ("hello world", f"go {EVIL} go", "na na na na na na na na", "x" * 60)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, VerdictFigures]:
    """Verdicts of a small corpus of three splits and two data sets, of which one has a name that is markup."""
    folder = tmp_path_factory.mktemp("judged")
    rows = []
    for number in range(24):
        (folder / f"{number}.wav").write_bytes(wav(300 + number, 1))
        split = ("train", "train", "dev", "test")[number % 4]
        row = {"audio": f"{number}.wav", "id": f"{number}{EVIL}", "text": TEXTS[number // 2 % 4], "split": split}
        rows.append(row | {"dataset": EVIL if number % 3 else "digits"})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = Config.model_validate(
        {
            "work": str(folder / "work"),
            "source": {"uri": str(folder / "manifest.jsonl")},
            "engine": {"name": "inline", "chunk": 5},
            "teacher": {"name": "echo", "substitute": 0.3},
        }
    )
    indexing.index(cfg)
    labelling.label_utterances(cfg)
    return cfg, filtering.filter_labels(cfg)


def test_the_page_is_one_well_formed_file_that_loads_nothing(judged: tuple[Config, VerdictFigures]) -> None:
    html = filter_report.page(*judged)
    page = Page(html)
    assert page.sections == ["result", "filter", "scores", "amounts"]
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} == {*page.sections, "content"}
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert not re.search(r"https?://|@import|url\(|\b(nan|inf|None)\b", html)
    assert "script" not in page.tags
    assert all(name.replace("_", " ") in html for name, num in judged[1].reasons.items() if num)
    assert "word error rate of those kept" in html


def test_the_figures_of_the_page_are_those_of_the_verdicts(judged: tuple[Config, VerdictFigures]) -> None:
    cfg, figures = judged
    facts = filter_report.facts_of(cfg, figures)
    assert {spread["title"] for spread in facts["spreads"]} >= {"Characters per second", "Compression ratio"}
    for spread in facts["spreads"]:
        assert sum(spread["kept"]) + sum(spread["dropped"]) + spread["unknown"] == figures.judged == 18
    assert sum(facts["spreads"][0]["kept"]) == figures.kept_utterances
    assert sum(amount["labels"] for amount in facts["amounts"]) == figures.judged
    assert sum(amount["kept_hours"] for amount in facts["amounts"]) == pytest.approx(figures.kept_hours)
    assert [(amount["split"], amount["dataset"]) for amount in facts["amounts"]] == [
        *(("dev", dataset) for dataset in (EVIL, "digits")),
        *(("train", dataset) for dataset in (EVIL, "digits")),
    ]
    assert sum(rule["dropped"] for rule in facts["funnel"]["rules"]) == figures.judged - figures.kept_utterances
    assert len(VerdictMap(Store(cfg.work), figures.recipe).of(["unknown"])) == 1


def test_a_page_is_written_of_finished_verdicts_alone(judged: tuple[Config, VerdictFigures], tmp_path: Path) -> None:
    cfg, figures = judged
    result = filter_report.write(cfg, figures, str(tmp_path / "new/page.html"))
    assert result.report == str(tmp_path / "new/page.html")
    assert Path(result.report).read_text(encoding="utf-8").startswith("<!doctype html>")
    unfinished = VerdictFigures(recipe="r", finished=False)
    assert filter_report.write(cfg, unfinished, str(tmp_path / "none.html")) == unfinished
    assert not (tmp_path / "none.html").exists()


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=50))
def test_every_count_is_a_bar_in_the_picture(counts: list[tuple[int, int]]) -> None:
    kept, dropped = zip(*counts, strict=True)
    chart = charts.histogram("h", (-8, 0), kept, dropped, limits=(-9.0, -2.0))
    assert len(chart.bars) == sum(count > 0 for count in (*kept, *dropped))
    assert all(bar.height > 1 and -8 <= bar.y <= charts.HEIGHT for bar in chart.bars)
    assert all(bar.x >= 0 and bar.x + bar.width <= charts.WIDTH + 0.1 for bar in chart.bars)
    assert chart.limits == (360.0,)


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
@pytest.mark.parametrize("width", [400, 1200])
def test_in_chromium_it_fits_the_window(judged: tuple[Config, VerdictFigures], tmp_path: Path, width: int) -> None:
    (tmp_path / "page.html").write_text(filter_report.page(*judged), encoding="utf-8")
    with Browser(tmp_path, width) as browser:
        browser.open((tmp_path / "page.html").as_uri())
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.evaluate("document.querySelectorAll('#scores rect').length") > 4
        assert all(address.startswith(("file:", "data:")) for address in browser.network)
