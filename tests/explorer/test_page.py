"""The page in a real Chromium: the whole work by keys alone, at both widths, light and dark, and its contrast."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from explorer_process import ExplorerProcess, exploring, make_corpus, make_experiments, write_config
from voxstill.storage import corrections
from voxstill.storage.store import Store
from waiting import until

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")

CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.unshift(rgba(getComputedStyle(one).backgroundColor));
    return layers.reduce((below, layer) => over(layer, below), rgba(getComputedStyle(document.body).backgroundColor));
  };
  const light = (color) => {
    const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.slice(0, 3).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const bad = [];
  let num = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    if (!own && !(element.tagName === "INPUT")) continue;
    if (!box.width || !box.height || style.visibility === "hidden" || element.disabled) continue;
    if (element.closest("[hidden], .hidden, .skip, option")) continue;
    num += 1;
    const background = behind(element), text = over(rgba(style.color), background);
    const [a, b] = [light(text), light(background)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const about = [element.tagName, element.className, element.textContent.slice(0, 30), ratio.toFixed(2)];
    if (ratio < (large ? 3 : 4.5)) bad.push(about.join(" "));
  }
  return { num, bad };
})()"""
READY = "document.body?.dataset.ready === 'true'"
SELECTED = "document.querySelector('#rows [aria-selected=\"true\"] small').textContent.split(' ')[0]"


def choose_theme(browser: Browser, theme: str) -> None:
    still = {"name": "prefers-reduced-motion", "value": "reduce"}  # a colour that changes has another in between
    browser._ask("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}, still]})


def press(browser: Browser, *keys: str) -> None:
    codes = {"Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "ArrowRight": 39, "ArrowLeft": 37}
    for key in keys:
        if key in codes:
            event = {"key": key, "windowsVirtualKeyCode": codes[key]}
            browser._ask("Input.dispatchKeyEvent", {"type": "rawKeyDown", **event})
            browser._ask("Input.dispatchKeyEvent", {"type": "keyUp", **event})
        else:
            browser.press(key)


def type_text(browser: Browser, text: str) -> None:
    browser._ask("Input.insertText", {"text": text})


def test_the_whole_work_is_done_by_keys_alone(tmp_path: Path) -> None:
    cfg = make_corpus(tmp_path)
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
        browser.evaluate("location.reload()")
        browser.wait_for("performance.getEntriesByType('navigation')[0].type === 'reload'")
        browser.wait_for(f"{READY} && document.querySelectorAll('#rows tbody tr').length === {num}")
        browser.evaluate("document.querySelector('#chips button').click()")
        browser.wait_for("document.querySelectorAll('#rows tbody tr').length === 48")
        assert browser.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_text_has_the_contrast_of_wcag_aa_and_nothing_is_cut_off(
    explorer: ExplorerProcess, tmp_path: Path, width: int, theme: str
) -> None:
    with Browser(tmp_path, width, 900) as browser:
        if width < 500:
            browser.set_width(width)
        choose_theme(browser, theme)
        browser.open(explorer.url)
        browser.wait_for(READY)
        for step in ("", "j", "experiments", "help"):
            if step == "j":
                press(browser, "j")
                browser.wait_for("document.querySelectorAll('article.written').length >= 3")
            elif step == "experiments":
                press(browser, "Escape", "e")
                browser.wait_for("document.querySelectorAll('#experiments .card').length > 3")
            elif step == "help":
                press(browser, "?")
            contrast = browser.evaluate(CONTRAST)
            assert contrast["bad"] == [], step
            assert contrast["num"] > 20
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), step
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
