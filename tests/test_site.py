"""The sites of the documents: built strictly, without a foreign request, their searches used in a browser."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import voxstill
from browser import CHROMIUM, Browser
from shared_folders import made_once
from voxstill.core import world

ROOT = Path(__file__).parents[1]
DIALOG = "[...document.querySelectorAll('*')].filter(element => element.shadowRoot)"
LINKS = f"{DIALOG}.flatMap(element => [...element.shadowRoot.querySelectorAll('a')])"
RESULTS = f"{LINKS}.map(link => decodeURI(link.origin + link.pathname + link.hash))"

SEARCHES = {
    "": {"hallucination": "filter/"},
    "zh/": {
        "伪标签": "zh/how-to/human-labels/",
        "说话人日志": "zh/reference/glossary/#数据",
        "热词": "zh/reference/options/#decode",
        "断点续跑": "zh/how-to/resume/",
        "标注": "zh/how-to/whisper/",
    },
}
"""What is searched for in each site, and where it stands. The browser would divide the last one there as 上标/注."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The English site; the Chinese one is its folder `zh`."""

    def build(_: Path) -> None:
        zensical = str(Path(sys.executable).with_name("zensical"))
        for project in ("zensical.toml", "zensical.zh.toml"):
            command = [zensical, "build", "--strict", "--config-file", project]
            done = subprocess.run(
                command, check=False, cwd=ROOT, capture_output=True, text=True, env=world.environment()
            )
            assert done.returncode == 0, done.stdout + done.stderr

    made_once(tmp_path_factory, "site", build)
    return ROOT / "build/site"


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_every_page_of_the_documents_is_in_a_navigation() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("**/*.md")}
    chinese = {page for page in pages if page.startswith("zh/")}
    english = {page for page in pages - chinese if not page.startswith("decisions/0")}
    listed = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    assert [page for page in english if f'"{page}"' not in listed] == []
    listed = (ROOT / "zensical.zh.toml").read_text(encoding="utf-8")
    assert [page for page in chinese if f'"{page.removeprefix("zh/")}"' not in listed] == []


def test_every_link_of_the_two_sites_leads_to_a_file_of_one_of_them(site: Path) -> None:
    """Other files of the repository are named and not linked: the site does not have them."""
    broken = []
    for page in site.glob("**/index.html"):
        for link in re.findall(r'<(?:a|img) [^>]*?(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8")):
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            if "://" in link:
                continue
            target = (page.parent / path if path else page).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (anchor and f'id="{anchor}"' not in target.read_text(encoding="utf-8")):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_no_table_shows_the_backslash_of_an_escaped_bar(site: Path) -> None:
    """In code within a table Zensical keeps it, and GitHub does not."""
    pages = [page for page in site.glob("**/index.html") if re.search(r"<code>[^<]*\\\|", page.read_text("utf-8"))]
    assert pages == []


def test_a_reader_can_change_the_language_on_every_page(site: Path) -> None:
    for page in site.glob("**/index.html"):
        links = dict(
            re.findall(r'href="([^"]+)" hreflang="(\w+)" class="md-select__link"', page.read_text(encoding="utf-8"))
        )
        homes = {language: (page.parent / link).resolve() for link, language in links.items()}
        assert homes == {"en": site, "zh": site / "zh"}, page


def test_the_reference_has_all_that_the_package_exports(site: Path) -> None:
    page = (site / "reference/api/index.html").read_text()
    assert [name for name in voxstill.__all__ if f'id="voxstill.{name}"' not in page] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize(("home", "searches"), SEARCHES.items(), ids=["English", "Chinese"])
def test_words_are_searched_for_without_a_foreign_request(
    address: str, tmp_path: Path, home: str, searches: dict[str, str]
) -> None:
    with Browser(tmp_path) as browser:
        for word, page in searches.items():
            browser.open(address + home)
            browser.evaluate("document.querySelector('.md-search__button').click()")
            browser.wait_for(f"{DIALOG}.some(element => element.shadowRoot.activeElement)")
            for letter in word:
                browser.press(letter)
            browser.wait_for(f"{RESULTS}.includes('{address}{page}')")
        assert all(uri.startswith((address, "data:", "blob:")) for uri in browser.network), browser.network
        assert browser.errors == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_every_picture_is_shown_and_fits_a_phone(site: Path, address: str, tmp_path: Path) -> None:
    pages = [page for page in sorted((ROOT / "docs").glob("**/*.md")) if "![" in page.read_text("utf-8")]
    with Browser(tmp_path) as browser:
        browser.set_width(400)
        for page in pages:
            folder = page.relative_to(ROOT / "docs").with_suffix("").as_posix().removesuffix("index").rstrip("/")
            browser.open(f"{address}{folder}/" if folder else address)
            browser.wait_for("[...document.images].every((image) => image.complete)")
            assert browser.evaluate("document.images.length") > 0
            assert browser.evaluate("[...document.images].filter((image) => !image.naturalWidth).length") == 0
            assert browser.evaluate("Math.max(...[...document.images].map(({ width }) => width))") < 400
        assert all(uri.startswith((address, "data:", "blob:")) for uri in browser.network), browser.network
        assert browser.errors == []
