"""The pictures of the documents: small, shown with a text, without foreign addresses, and made out of a real run."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from rich.progress import Progress

import flow_svg
import metrics_svg
import screens
import terminal_svg
from browser import CHROMIUM
from built_wheel import demo_of_wheel
from metrics_svg import Chart, Series
from prometheus import PROMETHEUS
from terminal_svg import Output, Terminal

ROOT = Path(__file__).parents[1]
IMAGES = sorted((ROOT / "docs/images").iterdir())
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
SVG = "{http://www.w3.org/2000/svg}"


def name_of(path: Path) -> str:
    return path.name


def shown(page: Path) -> dict[Path, str]:
    """The pictures of a page with the texts that stand for them."""
    text = page.read_text(encoding="utf-8")
    pictures = [(path, alt) for alt, path in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", text)]
    pictures += [(path, alt) for alt, path in re.findall(r'<img alt="([^"]*)" src="([^"]+)"', text)]
    pictures += [(path, "the same, dark") for path in re.findall(r'srcset="([^"]+)"', text)]
    return {(page.parent / path).resolve(): alt for path, alt in pictures if "://" not in path}


def check_whole(path: Path) -> None:
    """A picture has a size and more than one colour; a drawing asks for nothing and runs nothing."""
    if path.suffix == ".png":
        with Image.open(path) as image:
            assert min(image.size) > 600
            assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 16
        return
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert {element.tag.partition("}")[0] for element in root.iter()} == {SVG[:-1]}
    assert root.attrib["viewBox"] == f"0 0 {root.attrib['width']} {root.attrib['height']}"
    assert root.attrib["aria-label"]
    assert re.findall(r"<script|<image|<foreignObject|@import|@font-face|url\((?!#)|(?:href|src)=\"(?!#)", text) == []
    assert sum(1 for _ in root.iter(f"{SVG}text")) > 10


def test_the_flow_is_what_its_tool_draws() -> None:
    assert flow_svg.OUTPUT.read_text(encoding="utf-8") == flow_svg.drawing(), "run tools/pictures/flow_svg.py"


@pytest.mark.parametrize("image", IMAGES, ids=name_of)
def test_every_picture_is_whole_and_shown_with_a_text(image: Path) -> None:
    check_whole(image)
    texts = [pictures[image] for pictures in map(shown, PAGES) if image in pictures]
    assert texts
    assert all(len(text) > 10 for text in texts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_picture_of_a_page_is_there(page: Path) -> None:
    assert [path for path in shown(page) if not path.exists()] == []


def test_all_pictures_together_are_small() -> None:
    assert sum(image.stat().st_size for image in IMAGES) < 1_500_000


@given(st.lists(st.text("abc", min_size=1, max_size=12), max_size=6), st.integers(1, 9))
def test_of_a_progress_bar_nothing_is_left_but_the_lines_that_were_printed(lines: list[str], num_steps: int) -> None:
    file, terminal = io.StringIO(), Terminal()
    console = Console(file=file, force_terminal=True, width=80, highlight=False)
    with Progress(console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("train", total=num_steps)
        for line in lines:
            bar.console.print(line)
            bar.advance(task)
            bar.refresh()
    console.print("end")
    terminal.write("$ run\n" + file.getvalue().replace("\n", "\r\n"))
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in terminal.lines] == ["$ run", *lines, "end", ""]


def test_a_terminal_plays_in_frames_and_stays_at_the_end() -> None:
    outputs = [Output(float(at), f"line {at} of \x1b[1;31m<all>\x1b[0m\r\n") for at in range(0, 100, 7)]
    root = ET.fromstring(terminal_svg.drawing("voxstill demo", outputs))
    films = -(-98 // 5) + 1
    [film] = [group for group in root.iter(f"{SVG}g") if group.attrib.get("class") == "film"]
    height = terminal_svg.ROWS * terminal_svg.LINE
    assert film.attrib["transform"] == f"translate(0 {-(films - 1) * height})"
    last = [use for use in film if float(use.attrib["y"]) > (films - 1) * height]
    texts = {text.attrib["id"]: "".join(text.itertext()) for text in root.iter(f"{SVG}text") if "id" in text.attrib}
    written = [texts[use.attrib["href"].removeprefix("#")] for use in last]
    assert written == ["$ voxstill demo", *(f"line {at} of <all>" for at in range(0, 100, 7))]


@given(
    st.sampled_from(["short", "percentunit", "s", "sci"]),
    st.lists(st.floats(0, 1e12, allow_subnormal=False), min_size=1, max_size=30),
    st.floats(0.1, 1e6),
)
def test_every_point_of_a_chart_is_inside_of_its_card(unit: str, values: list[float], step_s: float) -> None:
    points = tuple((1.7e9 + k * step_s, value) for k, value in enumerate(values))
    text = metrics_svg.drawing("charts", [Chart("title", unit, (Series("a", points), Series("b", points)))])
    curves = [path for path in ET.fromstring(text).iter(f"{SVG}path") if "curve" in path.attrib["class"]]
    assert len(curves) == 2
    for curve in curves:
        places = [float(number) for number in curve.attrib["d"].removeprefix("M").split()]
        assert all(metrics_svg.LEFT <= x <= metrics_svg.LEFT + metrics_svg.WIDTH + 0.1 for x in places[::2])
        assert all(metrics_svg.TOP - 1.1 <= y <= metrics_svg.TOP + metrics_svg.HEIGHT for y in places[1::2])


@given(st.integers(1, 2000), st.integers(0, 1 << 32))
def test_an_image_keeps_its_most_frequent_colours(num_colours: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    colours_N3 = rng.integers(0, 256, (num_colours, 3), np.uint8)
    pixels_HW3 = colours_N3[np.minimum(rng.geometric(0.05, (40, 60)) - 1, num_colours - 1)]
    small = screens.in_few_colours(Image.fromarray(pixels_HW3))
    assert small.mode == "P"
    kept_HW = (np.asarray(small.convert("RGB")) == pixels_HW3).all(axis=2)
    assert kept_HW.all() or kept_HW.mean() > 0.9


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus")
def test_a_short_run_of_the_demo_makes_all_pictures(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    output, run = tmp_path / "images", demo_of_wheel(tmp_path_factory) / "run"
    command = [sys.executable, str(ROOT / "tools/pictures/make.py"), str(output), str(run)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    of_the_run = [image for image in IMAGES if not image.name.startswith("results_")]  # plots of the figures
    assert {path.name for path in output.iterdir()} == {image.name for image in of_the_run}
    for image in of_the_run:
        check_whole(output / image.name)
        if image.suffix == ".png":
            with Image.open(image) as committed, Image.open(output / image.name) as drawn:
                assert drawn.width == committed.width
    written = "".join(ET.fromstring((output / "terminal.svg").read_text(encoding="utf-8")).itertext())
    assert "$ voxstill demo" in written
    assert "report.html" in written
