"""The plots of the results are drawn from the committed figures, and the summary leads to all protocols."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from voxstill.core import world

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
SUMMARY = (ROOT / "docs/results.md").read_text(encoding="utf-8")


def test_the_plots_are_those_of_the_committed_figures(tmp_path: Path) -> None:
    script = ROOT / "tools/result_plots.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, env=world.environment())
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text(encoding="utf-8") for path in IMAGES.glob("results_*.svg")}
    assert drawn == committed, f"run {script}"


def test_the_plots_are_xml_with_a_title_and_in_the_summary() -> None:
    for path in IMAGES.glob("results_*.svg"):
        image = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert image.findtext("{http://www.w3.org/2000/svg}title")
        assert f"(images/{path.name})" in SUMMARY


def test_the_summary_leads_to_all_protocols() -> None:
    pages = {f"results/{path.name}" for path in (ROOT / "docs/results").glob("*.md")}
    assert {page for page in pages if f"({page}#" not in SUMMARY} == set()
