"""The page in a real Chromium: the whole work by keys alone, at both widths, light and dark, and its contrast."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import soundfile

from browser import CHROMIUM, Browser
from explorer_browser import CONTRAST, DRAWN, READY, SELECTED, press, settle, type_text
from explorer_process import ExplorerProcess, copy_corpus, exploring, make_experiments, write_config
from voxstill.core.config import Config
from voxstill.core.records import RATE_HZ
from voxstill.pipeline import index as indexing
from voxstill.storage import corrections
from voxstill.storage.store import Store
from waiting import until

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")

SMALL = """[...document.querySelectorAll("a, button, input, select, summary, textarea")].filter((one) => {
  const { width, height } = one.getBoundingClientRect();
  return width && (width < 24 || height < 24) && !one.closest(".skip");
}).map((one) => one.ariaLabel || one.textContent)"""
"""Controls that are smaller than WCAG 2.2 asks for."""
REPEATED = """[...document.querySelectorAll("[id]")].map(({ id }) => id).filter((id, k, ids) => ids.indexOf(id) < k)"""
NUM_ROWS = "document.querySelectorAll('#rows tbody tr').length"


def test_the_whole_work_is_done_by_keys_alone(fresh_corpus: Config, tmp_path: Path) -> None:
    cfg = copy_corpus(fresh_corpus, tmp_path)
    students = make_experiments(tmp_path, cfg)
    config = write_config(tmp_path, cfg)
    work = Store(cfg.work)
    with (
        exploring(tmp_path / "explorer", cfg.work, *students, "--config", config, "--edit") as explorer,
        Browser(tmp_path, 1440, 900) as browser,
    ):
        browser.open(explorer.url)
        browser.wait_for(READY)
        assert browser.evaluate("location.search") == ""
        press(browser, "?")
        browser.wait_for("document.querySelector('#help').open")
        press(browser, "Escape")
        browser.wait_for("!document.querySelector('#help').open")

        browser.wait_for("document.querySelectorAll('article.written').length >= 3")  # human, two teachers
        first = browser.evaluate(SELECTED)
        press(browser, "j", "ArrowDown")
        assert browser.evaluate(SELECTED) != first
        press(browser, "k", "ArrowUp")
        assert browser.evaluate(SELECTED) == first

        browser.wait_for("!/ of (0.0|$)/.test(document.querySelector('.sound .time').textContent || ' of ')")
        press(browser, " ")
        browser.wait_for("document.querySelector('.sound button').textContent.includes('Pause')")
        browser.wait_for("document.querySelector('.sound button').textContent.includes('Play')")  # at its end

        press(browser, "r")
        browser.wait_for("document.querySelector('#rows [aria-selected=\"true\"] .tag.right') !== null")
        press(browser, "j", "w")
        browser.wait_for("document.querySelector('#rows [aria-selected=\"true\"] .tag.wrong') !== null")
        press(browser, "u")
        browser.wait_for("document.querySelector('#rows [aria-selected=\"true\"] .tag.wrong') === null")
        press(browser, "j", "c")
        browser.wait_for("document.activeElement.id === 'correction'")
        browser.evaluate("document.activeElement.select()")
        type_text(browser, "what was said")
        press(browser, "Enter")
        browser.wait_for("document.querySelector('#rows [aria-selected=\"true\"] .tag.corrected') !== null")
        corrected = browser.evaluate(SELECTED)
        until(lambda: len(corrections.latest(work)) == 2)
        assert {id_: row.text for id_, row in corrections.latest(work).items()} == {
            first: None,
            corrected: "what was said",
        }

        press(browser, "/")
        type_text(browser, "music")
        browser.wait_for("document.querySelector('#chips').textContent.includes('music')")
        browser.wait_for("document.querySelectorAll('#rows tbody tr').length < 48")
        press(browser, "Escape", "x")
        browser.wait_for("document.querySelectorAll('#rows tbody tr').length === 48")

        press(browser, "e")
        browser.wait_for("document.querySelectorAll('#experiments polyline').length > 0")
        browser.wait_for("document.querySelectorAll('#experiments .pairs button').length === 2")
        browser.evaluate("document.querySelector('#experiments .pairs button').focus()")
        press(browser, "Enter")
        browser.wait_for("document.querySelectorAll('#rows tbody tr').length === 1")
        assert browser.errors == []
        assert {url.split("/")[2] for url in browser.network if url.startswith("http")} == {explorer.base[7:]}


def test_a_brushed_histogram_filters_and_the_address_keeps_it(explorer: ExplorerProcess, tmp_path: Path) -> None:
    with Browser(tmp_path, 1440, 900) as browser:
        browser.open(explorer.url)
        browser.wait_for(READY)
        browser.wait_for("document.querySelectorAll('.histogram svg').length > 2")
        place = "document.querySelector('.histogram svg').getBoundingClientRect()"
        left, top, width = (browser.evaluate(f"{place}.{name}") for name in ("left", "top", "width"))
        for kind, share in (("mousePressed", 0.25), ("mouseMoved", 0.5), ("mouseReleased", 0.75)):
            event = {"x": left + share * width, "y": top + 20, "button": "left", "buttons": 1, "clickCount": 1}
            browser._ask("Input.dispatchMouseEvent", {"type": kind, **event})
        browser.wait_for("document.querySelector('#chips').textContent.includes('duration')")
        browser.wait_for("document.querySelectorAll('#rows tbody tr').length < 40")
        num = browser.evaluate("document.querySelectorAll('#rows tbody tr').length")
        assert num > 10
        address = browser.evaluate("location.href")
        browser.open("about:blank")
        browser.open(address)
        browser.wait_for(f"{READY} && document.querySelectorAll('#rows tbody tr').length === {num}")
        browser.evaluate("document.querySelector('#chips button').click()")
        browser.wait_for("document.querySelectorAll('#rows tbody tr').length === 48")
        assert browser.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1440])
def test_all_that_is_shown_has_the_contrast_and_the_size_of_wcag_aa_and_nothing_is_cut_off(
    explorer: ExplorerProcess, tmp_path: Path, width: int, theme: str
) -> None:
    with Browser(tmp_path, width, 900) as browser:
        if width < 500:
            browser.set_width(width)
        browser.set_theme(theme)
        browser.open(explorer.url)
        browser.wait_for(READY)
        browser.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        for step in ("", "j", "experiments", "help"):
            if step == "j":
                press(browser, "j")
                browser.wait_for("document.querySelectorAll('article.written').length >= 3")
                browser.wait_for("!/ of (0.0|$)/.test(document.querySelector('.sound .time').textContent || ' of ')")
                browser.wait_for(DRAWN)
            elif step == "experiments":
                press(browser, "Escape", "e")
                browser.wait_for("document.querySelectorAll('#experiments .card').length > 3")
            elif step == "help":
                press(browser, "?")
            contrast = browser.evaluate(CONTRAST)
            assert contrast["bad"] == [], step
            assert contrast["num"] > 20
            assert contrast["numOfParts"] > (10 if step == "" else 1), step
            assert browser.evaluate("document.documentElement.scrollWidth") <= width, step
            assert browser.evaluate(SMALL) == [], step
            assert browser.evaluate(REPEATED) == [], step
        assert browser.errors == []


def test_a_text_that_looks_like_markup_is_shown_as_text(explorer: ExplorerProcess, tmp_path: Path) -> None:
    with Browser(tmp_path, 1440, 900) as browser:
        browser.open(explorer.url)
        browser.wait_for(READY)
        press(browser, "/")
        type_text(browser, "onerror")
        browser.wait_for("document.querySelectorAll('#rows tbody tr').length === 1")
        browser.wait_for("document.querySelectorAll('article.written').length >= 3")
        assert "<img src=x" in browser.evaluate("document.querySelector('.written').textContent")
        assert browser.evaluate("document.querySelectorAll('img').length") == 0


def test_a_value_that_is_not_among_the_most_frequent_is_typed(tmp_path: Path) -> None:
    num, length_s = 230, 0.5
    samples_T = np.random.default_rng(0).normal(0, 900, int(num * length_s * RATE_HZ)).astype(np.int16)
    soundfile.write(tmp_path / "all.wav", samples_T, RATE_HZ)
    rows = [
        {
            "audio": "all.wav",
            "id": f"u{k}",
            "start": k * length_s,
            "end": (k + 1) * length_s,
            "speaker": f"speaker {k:03}",
            "text": "stop",
        }
        for k in range(num)
    ]
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "work": str(tmp_path / "work"),
        "source": {"uri": str(tmp_path / "manifest.jsonl")},
        "engine": {"name": "inline"},
    }
    cfg = Config.model_validate(tree)
    indexing.index(cfg)
    config = write_config(tmp_path, cfg)
    field = "document.querySelector('[aria-label=\"speaker, another value\"]')"
    with (
        exploring(tmp_path / "explorer", cfg.work, "--config", config) as explorer,
        Browser(tmp_path, 1440, 900) as browser,
    ):
        browser.open(explorer.url)
        browser.wait_for(READY)
        offered = browser.evaluate(f"[...{field}.list.options].map(({{ value }}) => value)")
        assert offered == [f"speaker {k:03}" for k in range(200)]
        for shown, speaker in enumerate(("speaker 229", "speaker 120"), start=1):
            browser.evaluate(f"{field}.focus()")
            type_text(browser, speaker)
            press(browser, "Enter")
            browser.wait_for(f"{NUM_ROWS} === {shown}")
            settle(browser)
            assert browser.evaluate(f"document.activeElement === {field} && {field}.value === ''")
        pressed = "document.querySelectorAll('#facets [aria-pressed=\"true\"]')"
        shown = browser.evaluate(f"[...{pressed}].map((one) => one.firstChild.textContent)")
        assert shown == ["speaker 229", "speaker 120"]
        browser.evaluate(f"{pressed}[0].click()")
        browser.wait_for(f"{NUM_ROWS} === 1")
        assert browser.evaluate("document.querySelector('#rows small').textContent") == "u120 · speaker 120"
        assert browser.errors == []


DAMAGED = [
    {"where": [{"column": "split", "in": 5}]},
    {"where": [None, {"column": "split"}, {"column": "split", "in": [7, {}]}, "split", {"column": ["split"]}]},
    {"where": {"column": "split"}, "text": {"length": 5}, "order": ["id"], "descending": "no"},
    {"where": [{"column": "duration_ms", "min": "5", "max": [1]}, {"column": "nothing", "in": ["a"]}]},
    {"text": "a" * 201, "order": "human"},
    {"text": "\ud800", "where": [{"column": "speaker", "in": ["\ud800", 5]}]},
    [],
    None,
    "text",
]


def test_what_is_damaged_in_an_address_is_ignored_and_another_address_is_applied(
    explorer: ExplorerProcess, tmp_path: Path
) -> None:
    chips = "[...document.querySelectorAll('#chips button')].map((one) => one.textContent)"
    with Browser(tmp_path, 1440, 900) as browser:
        browser.open(explorer.url)
        browser.wait_for(READY)
        for fragment in (*(quote(json.dumps(tree)) for tree in DAMAGED), "%E0%A4%A"):
            browser.open("about:blank")
            browser.open(f"{explorer.base}/#{fragment}")
            browser.wait_for(READY)
            browser.wait_for(f"{NUM_ROWS} === 48")
            assert browser.evaluate(chips) == [], fragment

        partly = {"text": 5, "where": [{"column": "split", "in": 5}, {"column": "dataset", "in": ["radio"]}]}
        browser.evaluate(f"void (location.hash = '{quote(json.dumps(partly))}')")
        browser.wait_for(f"{NUM_ROWS} === 24")
        assert browser.evaluate(chips) == ["data set: radio"]
        press(browser, "e")
        browser.wait_for("!document.querySelector('#experiments').hidden")
        other = {"text": "onerror", "order": "duration_ms", "descending": True}
        browser.evaluate(f"void (location.hash = '{quote(json.dumps(other))}')")
        browser.wait_for(f"{NUM_ROWS} === 1 && !document.querySelector('#utterances').hidden")
        assert browser.evaluate(chips) == ["“onerror”"]
        assert browser.evaluate("document.querySelector('#search').value") == "onerror"
        assert browser.evaluate("document.querySelector('#order').value") == "duration_ms"
        browser.evaluate("document.querySelector('.skip').click()")  # a fragment that is no choice
        browser.evaluate("void (location.hash = 'rows')")
        settle(browser)
        assert browser.evaluate(f"{NUM_ROWS}") == 1
        assert browser.evaluate("document.activeElement.id") == "rows"
        browser.evaluate("void (location.hash = '')")
        browser.wait_for(f"{NUM_ROWS} === 48")
        assert browser.errors == []


def test_why_there_is_no_audio_is_said_and_is_no_error_of_the_console(
    explorer: ExplorerProcess, corpus: Config, tmp_path: Path
) -> None:
    row = next(row for row in explorer.rows() if row["tar"] is None)
    source = Path(row["uri"])
    away = source.with_suffix(".away")
    source.rename(away)
    try:
        with Browser(tmp_path, 1440, 900) as browser:
            browser.open(explorer.url)
            browser.wait_for(READY)
            press(browser, "/")
            type_text(browser, row["id"])
            browser.wait_for(f"{NUM_ROWS} === 1")
            fault = browser.wait_for("document.querySelector('.sound .fault').textContent")
            assert source.name in fault
            assert explorer.get(f"utterances/{row['row']}/audio").json() == {"error": fault, "code": "file-missing"}
            assert explorer.get("utterances/999/audio").status_code == 404
            assert browser.errors == []
    finally:
        away.rename(source)


def test_an_export_has_ids_times_texts_and_judgements(explorer: ExplorerProcess, tmp_path: Path) -> None:
    known = [column["name"] for column in explorer.get("about").json()["columns"]]
    teachers = [teacher["name"] for teacher in explorer.get("about").json()["teachers"]]
    texts = {"human", *teachers, "student_0", "student_1"}
    wanted = {"id", "uri", "start_ms", "end_ms", *texts, "judgement", "correction"}
    with Browser(tmp_path, 1440, 900) as browser:
        browser.open(explorer.url)
        browser.wait_for(READY)
        press(browser, "/")
        type_text(browser, "music")
        browser.wait_for("document.querySelector('#chips').textContent.includes('music')")
        href = "document.querySelector('#export-jsonl').href"
        lines = browser.evaluate(f"fetch({href}).then((answer) => answer.text())").splitlines()
        browser.wait_for(f"{NUM_ROWS} === {len(lines)}")
        assert wanted & {*known} <= {*json.loads(lines[0])}
        csv = browser.evaluate("fetch(document.querySelector('#export-csv').href).then((answer) => answer.text())")
        assert {*csv.splitlines()[0].split(",")} == {*json.loads(lines[0])}
        assert browser.errors == []
