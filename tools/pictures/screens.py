"""Screenshots of the report and of the explorer by Chromium, with few enough colours to be small."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from browser import Browser
from demo_run import DemoRun
from explorer_browser import DRAWN, READY, press, settle

NUM_COLOURS = 96
AREA = """(() => {
  const [first, last] = ["%s", "%s"].map((one) => document.querySelector(one).getBoundingClientRect());
  const y = Math.max(Math.round(first.top + scrollY) - 24, 0);
  return { x: 0, y, width: innerWidth, height: Math.round(last.bottom + scrollY) + 8 - y };
})()"""
SORT_BY_ERRORS = """(() => {
  const order = document.querySelector("#order");
  order.value = [...order.options].find(({ value }) => value.endsWith("_errors")).value;
  order.dispatchEvent(new Event("change"));
})()"""
"""Those first where the student has most errors."""


def report(browser: Browser, run: DemoRun, folder: Path) -> None:
    """The top of the report in both themes, its learning curves, and its worst utterances."""
    browser.set_screen(1100, 900, 2)
    browser.open((run.experiment / "report.html").as_uri())
    for theme, name in (("dark", "report-dark"), ("light", "report")):
        browser.set_theme(theme)
        _save(browser, folder / f"{name}.png", "body", "#result .card.scroll")
    _save(browser, folder / "report_learning.png", "#learning", "#learning figure:nth-child(2)")
    _save(browser, folder / "report_utterances.png", "#worst", "#worst article:nth-of-type(2)")


def explorer(browser: Browser, run: DemoRun, folder: Path) -> None:
    """The utterances of the corpus with one of them open, and the experiment."""
    browser.set_theme("light")
    browser.set_screen(1360, 860, 1.5)
    with _exploring(run) as address:
        browser.open(address)
        browser.wait_for(READY)
        browser.evaluate(SORT_BY_ERRORS)
        settle(browser)
        press(browser, "j")
        browser.wait_for(f"document.querySelectorAll('article.written').length > 1 && {DRAWN}")
        settle(browser)
        _save(browser, folder / "explorer.png", "body", "#detail")
        press(browser, "e")
        browser.wait_for("document.querySelectorAll('#experiments polyline').length > 0")
        settle(browser)
        _save(browser, folder / "explorer_experiments.png", "body", "#experiments .cards")


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


def _save(browser: Browser, path: Path, first: str, last: str) -> None:
    """Save a screenshot of a page in its whole width, from the top of an element to the end of another."""
    browser.screenshot(path, browser.evaluate(AREA % (first, last)))
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(NUM_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
