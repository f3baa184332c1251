"""The page while somebody types and answers come late: nothing typed is lost, and the focus stays where it was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from explorer_browser import READY, SELECTED, press, set_latency, settle, type_text
from explorer_process import ExplorerProcess, copy_corpus, exploring, make_experiments, write_config
from voxstill.core.config import Config
from voxstill.storage import corrections
from voxstill.storage.store import Store
from waiting import until

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")

FIELD = "document.querySelector('#correction')"
IS_TYPING = "document.activeElement.id === 'correction'"
IS_COMPLETE = "document.querySelectorAll('article.written').length >= 3"
HEADING = "document.querySelector('#detail h2').textContent"
CHOSEN = "document.querySelector('#rows [aria-selected=\"true\"]')"
TAG = f"{CHOSEN}.querySelector('.right, .wrong, .corrected, .unsaved')?.textContent"
LATENCY_MS = 300
WORDS = "we now judge right"
"""Every judging key is among its letters, and keys that leave the row."""


@dataclass(frozen=True)
class Editable:
    """An explorer that judges, and its work folder."""

    explorer: ExplorerProcess
    work: Store

    def judged(self) -> Mapping[str, tuple[str, str | None]]:
        """Judgement and correction of each utterance."""
        return {id_: (row.judgement, row.text) for id_, row in corrections.latest(self.work).items()}


@pytest.fixture(scope="module")
def editable(fresh_corpus: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editable]:
    folder = tmp_path_factory.mktemp("editable")
    cfg = copy_corpus(fresh_corpus, folder)
    students = make_experiments(folder, cfg)
    config = write_config(folder, cfg)
    with exploring(folder / "explorer", cfg.work, *students, "--config", config, "--edit") as process:
        yield Editable(process, Store(cfg.work))


@pytest.fixture
def browser(editable: Editable, tmp_path: Path) -> Iterator[Browser]:
    """The page with the first utterance open."""
    with Browser(tmp_path, 1440, 600) as opened:
        opened.open(editable.explorer.url)
        opened.wait_for(f"{READY} && {IS_COMPLETE}")
        yield opened


def test_what_is_typed_before_the_details_have_come_stays(editable: Editable, browser: Browser) -> None:
    before = editable.judged()
    set_latency(browser, LATENCY_MS)
    press(browser, "j", "c", *WORDS)
    typed = browser.evaluate(f"{FIELD}.value")
    assert typed.endswith(WORDS)
    row = browser.evaluate(SELECTED)
    browser.wait_for(IS_COMPLETE)
    press(browser, *" wrong")
    assert browser.evaluate(f"{FIELD}.value") == f"{typed} wrong"
    assert browser.evaluate(f"[{IS_TYPING}, {SELECTED}, {HEADING}]") == [True, row, row]
    assert editable.judged() == before
    press(browser, "Enter")
    until(lambda: editable.judged() == {**before, row: ("corrected", f"{typed} wrong")})
    browser.wait_for(f"{TAG} === 'corrected'")
    assert browser.errors == []


def test_the_answer_to_a_judgement_does_not_touch_the_row_that_is_open_by_then(
    editable: Editable, browser: Browser
) -> None:
    press(browser, "j", "j", "j")
    browser.wait_for(IS_COMPLETE)
    before, first = editable.judged(), browser.evaluate(SELECTED)
    set_latency(browser, LATENCY_MS)
    press(browser, "r", "j", "c", *WORDS)
    typed, second = browser.evaluate(f"{FIELD}.value"), browser.evaluate(SELECTED)
    browser.wait_for("document.querySelector('#rows .tag.right') !== null")
    browser.wait_for(IS_COMPLETE)
    settle(browser)
    assert first != second
    assert browser.evaluate(f"[{IS_TYPING}, {FIELD}.value, {HEADING}]") == [True, typed, second]
    assert editable.judged() == {**before, first: ("right", None)}
    press(browser, "Escape", "k", "u")
    until(lambda: editable.judged() == before)
    assert browser.errors == []


def test_judgements_of_a_row_are_sent_in_their_order(editable: Editable, browser: Browser) -> None:
    press(browser, "j", "j")
    browser.wait_for(IS_COMPLETE)
    set_latency(browser, LATENCY_MS)
    before, row = editable.judged(), browser.evaluate(SELECTED)
    press(browser, "w", "u", "w", "r")
    until(lambda: editable.judged() == {**before, row: ("right", None)})
    press(browser, "w", "u")
    browser.wait_for(f"{TAG} === undefined")
    settle(browser)
    assert sum(url.endswith("/judgements") for url in browser.network) == 6
    assert editable.judged() == before
    assert browser.evaluate(TAG) is None
    assert browser.errors == []


def test_rows_that_come_while_somebody_types_leave_the_open_row_alone(editable: Editable, browser: Browser) -> None:
    press(browser, "j", "j", "j", "j")
    browser.wait_for(IS_COMPLETE)
    row, before = browser.evaluate(SELECTED), editable.judged()
    set_latency(browser, LATENCY_MS)
    press(browser, "/", *"u000", "Enter")  # finds another row
    time.sleep(0.25)  # the page waits for more letters
    press(browser, "c", *WORDS)
    typed = browser.evaluate(f"{FIELD}.value")
    browser.wait_for("document.querySelectorAll('#rows tbody tr').length === 1")
    settle(browser)
    press(browser, *" more")
    assert browser.evaluate(f"[{IS_TYPING}, {FIELD}.value, {HEADING}]") == [True, f"{typed} more", row]
    assert editable.judged() == before
    assert browser.errors == []


def test_the_start_of_the_page_takes_no_focus_from_who_types(editable: Editable, browser: Browser) -> None:
    browser.open("about:blank")
    set_latency(browser, 1000)
    browser.open(f"{editable.explorer.base}/")
    browser.wait_for("document.querySelector('#order option') !== null")
    assert not browser.evaluate(READY)
    press(browser, "/", *"right")
    browser.wait_for(READY)
    settle(browser)
    assert browser.evaluate("document.activeElement.id + document.activeElement.value") == "searchright"
    assert browser.errors == []


def test_a_correction_is_kept_with_its_row_until_it_is_saved_or_dropped(editable: Editable, browser: Browser) -> None:
    before, first = editable.judged(), browser.evaluate(SELECTED)
    press(browser, "c")
    type_text(browser, " and more")
    typed = browser.evaluate(f"{FIELD}.value")
    browser.evaluate("document.querySelectorAll('#rows tbody tr')[3].click()")
    assert browser.evaluate(f"{FIELD}.checkVisibility()") is False
    assert browser.evaluate("document.querySelector('#rows .tag.unsaved').closest('tr').rowIndex") == 1
    press(browser, "c", *"ab", "Escape")
    browser.evaluate("document.querySelectorAll('#rows tbody tr')[0].click()")
    assert browser.evaluate(f"{FIELD}.checkVisibility() && {FIELD}.value") == typed
    press(browser, "Escape", "c")  # what Esc closes is opened again
    assert browser.evaluate(f"[{HEADING}, {IS_TYPING}, {FIELD}.value]") == [first, True, typed]
    press(browser, "Escape")
    assert browser.evaluate("document.querySelector('#rows .tag.unsaved')") is None
    press(browser, "c")
    assert typed != browser.evaluate(f"{FIELD}.value")
    assert editable.judged() == before
    assert browser.errors == []


def test_a_correction_that_cannot_be_saved_is_shown_again(editable: Editable, browser: Browser) -> None:
    before, row = editable.judged(), browser.evaluate(SELECTED)
    press(browser, "c")
    type_text(browser, " and more")
    typed = browser.evaluate(f"{FIELD}.value")
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser._ask("Network.emulateNetworkConditions", offline)
    press(browser, "Enter")
    assert browser.wait_for("document.querySelector('#message').textContent").startswith(f"{row}: ")
    assert browser.evaluate(f"{FIELD}.checkVisibility() && {FIELD}.value") == typed
    assert browser.evaluate(TAG) == "unsaved"
    set_latency(browser, 0)
    press(browser, "c", "Enter")
    until(lambda: editable.judged() == {**before, row: ("corrected", typed)})
    browser.wait_for(f"{TAG} === 'corrected'")


def test_enter_that_ends_a_composition_saves_nothing(editable: Editable, browser: Browser) -> None:
    before = editable.judged()
    press(browser, "c")
    event = "new KeyboardEvent('keydown', { key, isComposing: true, bubbles: true, cancelable: true })"
    for key in ("Enter", "Escape"):
        assert browser.evaluate(f"(() => {{ const key = '{key}'; return {FIELD}.dispatchEvent({event}); }})()") is True
    settle(browser)
    assert browser.evaluate(IS_TYPING)
    assert editable.judged() == before
    assert browser.errors == []


def test_keys_do_nothing_to_an_utterance_that_is_behind_the_experiments(editable: Editable, browser: Browser) -> None:
    before = editable.judged()
    press(browser, "e")
    browser.wait_for("document.querySelectorAll('#experiments .card').length > 3")
    press(browser, "w", " ", "c", "x", "Escape")
    assert browser.evaluate("document.activeElement.id") == "experiments"
    start = browser.evaluate("scrollY")
    press(browser, "ArrowDown", "ArrowDown")
    browser.wait_for(f"scrollY > {start}")
    settle(browser)
    assert browser.evaluate("document.querySelector('.sound button').textContent").endswith("Play")
    assert editable.judged() == before
    press(browser, "e")
    assert browser.evaluate("document.activeElement.id") == "rows"
    assert browser.evaluate("document.querySelector('#detail').checkVisibility()")
    assert browser.errors == []


@pytest.mark.parametrize(
    "control", ["#facets .values button", "#funnel .bars button", "#rows th:nth-child(2) button", "#direction"]
)
def test_a_control_keeps_the_focus_when_it_has_filtered_or_sorted(browser: Browser, control: str) -> None:
    settle(browser)
    name = "document.activeElement.firstChild.textContent"
    browser.evaluate(f"document.querySelector('{control}').focus()")
    label, key = browser.evaluate(name), browser.evaluate("document.activeElement.dataset.key")
    for _ in range(2):
        press(browser, "Enter")
        settle(browser)
        assert browser.evaluate("document.activeElement.tagName") == "BUTTON"
        assert browser.evaluate("document.activeElement.dataset.key") == key
        assert control == "#direction" or browser.evaluate(name) == label
    assert browser.errors == []


def test_the_focus_goes_to_the_neighbour_of_a_control_that_is_gone(browser: Browser) -> None:
    settle(browser)
    browser.evaluate("document.querySelector('#facets .values button').click()")
    browser.evaluate("document.querySelector('#funnel .bars button').click()")
    browser.wait_for("document.querySelectorAll('#chips button').length === 2")
    second = browser.evaluate("document.querySelectorAll('#chips button')[1].textContent")
    browser.evaluate("document.querySelector('#chips button').focus()")
    press(browser, "Enter")
    settle(browser)
    assert browser.evaluate("document.activeElement.textContent") == second
    press(browser, "Enter")
    settle(browser)
    assert browser.evaluate("document.activeElement.id") == "rows"
    labels = browser.evaluate("[...document.querySelectorAll('.histogram header button')].map((one) => one.ariaLabel)")
    browser.evaluate("document.querySelector('.histogram header button').focus()")
    press(browser, "Enter")
    settle(browser)
    assert browser.evaluate("document.activeElement.ariaLabel") == labels[1]
    assert browser.errors == []


def test_both_ends_of_a_histogram_are_typed_one_after_the_other(browser: Browser) -> None:
    settle(browser)
    set_latency(browser, LATENCY_MS)
    browser.evaluate("document.querySelector('.histogram .ends input').focus()")
    press(browser, *"600", "Tab", *"10")
    settle(browser)
    press(browser, *"00", "Tab")
    settle(browser)
    assert browser.evaluate("document.querySelector('#chips').textContent") == "duration, ms ≥ 600 ≤ 1000"
    assert browser.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Hide ")
    browser.evaluate("document.querySelector('.histogram .ends input').focus()")
    press(browser, *"x", "Enter")
    assert "600x” is not a number" in browser.wait_for("document.querySelector('#message').textContent")
    assert browser.evaluate("document.activeElement.value") == "600x"
    assert browser.errors == []
