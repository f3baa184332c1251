"""The site of the documents: built strictly, without a foreign request, its search used in a browser."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import voxstill
from browser import CHROMIUM, Browser
from voxstill.core import world

ROOT = Path(__file__).parents[1]
DIALOG = "[...document.querySelectorAll('*')].filter(element => element.shadowRoot)"
RESULTS = f"{DIALOG}.flatMap(element => [...element.shadowRoot.querySelectorAll('a')]).map(link => link.href)"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Path:
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, env=world.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build/site"


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_every_page_of_the_documents_is_in_the_navigation(site: Path) -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("**/*.md")}
    listed = (ROOT / "zensical.toml").read_text()
    assert [page for page in pages if f'"{page}"' not in listed and not page.startswith("decisions/")] == []


def test_the_reference_has_all_that_the_package_exports(site: Path) -> None:
    page = (site / "reference/api/index.html").read_text()
    assert [name for name in voxstill.__all__ if f'id="voxstill.{name}"' not in page] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_word_is_searched_for_without_a_foreign_request(address: str, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(address)
        browser.evaluate("document.querySelector('.md-search__button').click()")
        browser.wait_for(f"{DIALOG}.length")
        for letter in "hallucination":
            browser.press(letter)
        browser.wait_for(f"{RESULTS}.some(link => link.includes('/filter/'))")
        assert all(uri.startswith((address, "data:", "blob:")) for uri in browser.network), browser.network
        assert browser.errors == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_every_picture_is_shown_and_fits_a_phone(site: Path, address: str, tmp_path: Path) -> None:
    pages = [page for page in sorted((ROOT / "docs").glob("**/*.md")) if "![" in page.read_text("utf-8")]
    with Browser(tmp_path) as browser:
        browser.set_width(400)
        for page in pages:
            name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
            browser.open(address if name == "index" else f"{address}{name}/")
            browser.wait_for("[...document.images].every((image) => image.complete)")
            assert browser.evaluate("document.images.length") > 0
            assert browser.evaluate("[...document.images].filter((image) => !image.naturalWidth).length") == 0
            assert browser.evaluate("Math.max(...[...document.images].map(({ width }) => width))") < 400
        assert all(uri.startswith((address, "data:", "blob:")) for uri in browser.network), browser.network
        assert browser.errors == []
