"""Screenshots of the report and of the explorer by Chromium, with few enough colours to be small."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from browser import Browser
from demo_run import DemoRun
from explorer_browser import DRAWN, READY, press, settle, type_text

NUM_COLOURS = 256
AREA = """(() => {
  const [first, last] = ["%s", "%s"].map((one) => document.querySelector(one).getBoundingClientRect());
  const y = Math.max(Math.round(first.top + scrollY) - 24, 0);
  return { x: 0, y, width: innerWidth, height: Math.round(last.bottom + scrollY) + 8 - y };
})()"""
SORT_BY_CONFIDENCE = """(() => {
  const order = document.querySelector("#order");
  order.value = "confidence";
  order.dispatchEvent(new Event("change"));
  document.querySelector("#direction").click();
})()"""
"""Those first of which the teacher is least sure."""
OPEN_A_TEST = """(() => {
  const rows = [...document.querySelectorAll("#rows tbody tr")];
  const test = rows.find((row) => row.querySelector("small")?.textContent.startsWith("test-"));
  test?.click();
  scrollTo(0, 0);
  return test !== undefined;
})()"""
"""Open the first utterance that the student was evaluated on; whether there is one yet."""
SEARCH = "heater"


def report(browser: Browser, run: DemoRun, folder: Path) -> None:
    """The top of the report in both themes, its learning curves, and its worst utterances."""
    browser.set_screen(1100, 900, 2)
    browser.open((run.experiment / "report.html").as_uri())
    for theme, name in (("dark", "report-dark"), ("light", "report")):
        browser.set_theme(theme)
        _save(browser, folder / f"{name}.png", _area(browser, "body", "#result .card.scroll"))
    _save(browser, folder / "report_learning.png", _area(browser, "#learning", "#learning figure:nth-child(2)"))
    _save(browser, folder / "report_utterances.png", _area(browser, "#worst", "#worst article:nth-of-type(2)"))


def explorer(browser: Browser, run: DemoRun, folder: Path) -> None:
    """The utterances of the corpus with one of them open, and the experiment."""
    browser.set_theme("light")
    browser.set_screen(1360, 860, 1.5)
    with _exploring(run) as address:
        browser.open(address)
        browser.wait_for(READY)
        press(browser, "/")
        type_text(browser, SEARCH)
        press(browser, "Enter")
        browser.wait_for(f"document.querySelector('#chips').textContent.includes('{SEARCH}')")
        browser.evaluate(SORT_BY_CONFIDENCE)
        settle(browser)
        browser.wait_for(OPEN_A_TEST)  # a slow answer to the sorting may come after `settle`
        browser.wait_for(f"document.querySelectorAll('article.written').length > 1 && {DRAWN}")
        settle(browser)
        _save(browser, folder / "explorer.png", {"x": 0, "y": 0, "width": 1360, "height": 860})
        press(browser, "e")
        browser.wait_for("document.querySelectorAll('#experiments polyline').length > 0")
        settle(browser)
        _save(browser, folder / "explorer_experiments.png", _area(browser, "body", "#experiments .cards"))


@contextlib.contextmanager
def _exploring(run: DemoRun) -> Iterator[str]:
    """The address of an explorer of the run, which ends with the block."""
    command = [sys.executable, "-m", "voxstill", "explore", str(run.work), str(run.experiment), "--edit", "--json"]
    with subprocess.Popen(command, cwd=run.folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.send_signal(signal.SIGTERM)


def _area(browser: Browser, first: str, last: str) -> Mapping[str, float]:
    """The whole width of a page, from the top of an element to the end of another."""
    area: dict[str, float] = browser.evaluate(AREA % (first, last))
    return area


def _save(browser: Browser, path: Path, area: Mapping[str, float]) -> None:
    browser.screenshot(path, area)
    with Image.open(path) as image:
        small = in_few_colours(image)
    small.save(path, optimize=True)


def in_few_colours(image: Image.Image) -> Image.Image:
    """An image of its most frequent colours as they are; each of the others becomes the nearest of them."""
    pixels_HW3 = np.asarray(image.convert("RGB")).astype(np.int32)
    codes_N, places, counts_N = np.unique(pixels_HW3 @ (1 << 16, 1 << 8, 1), return_inverse=True, return_counts=True)
    colours_N3 = np.stack([codes_N >> 16, codes_N >> 8 & 255, codes_N & 255], axis=1)
    palette_K3 = colours_N3[np.argsort(-counts_N)[:NUM_COLOURS]]
    nearest_N = ((colours_N3[:, None] - palette_K3) ** 2).sum(-1).argmin(1).astype(np.uint8)
    small = Image.fromarray(nearest_N[places].reshape(pixels_HW3.shape[:2]))
    small.putpalette(palette_K3.astype(np.uint8).tobytes())
    return small
