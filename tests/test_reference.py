"""The pages of the reference are those that the code writes, and leave nothing out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from voxstill.core import world
from voxstill.pipeline.options import explained

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference"


@pytest.mark.parametrize("name", ["options", "commands", "errors", "formats"])
def test_a_page_is_that_of_the_code(name: str, tmp_path: Path) -> None:
    output, script = tmp_path / "page.md", ROOT / f"tools/{name}_page.py"
    subprocess.run([sys.executable, str(script), str(output)], check=True, env=world.environment())
    committed = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert output.read_text(encoding="utf-8") == committed, f"run {script}"


def test_the_chinese_options_are_those_of_the_code(tmp_path: Path) -> None:
    outputs, script = [tmp_path / "en.md", tmp_path / "zh.md"], ROOT / "tools/options_page.py"
    subprocess.run([sys.executable, str(script), *map(str, outputs)], check=True, env=world.environment())
    committed = (ROOT / "docs/zh/reference/options.md").read_text(encoding="utf-8")
    assert outputs[1].read_text(encoding="utf-8") == committed, f"run {script}"


def test_every_option_is_in_the_reference_with_the_page_that_explains_it() -> None:
    page = (REFERENCE / "options.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| .* See \[\w+\]\(\.\./\w+\.md\)\. \|$", page, re.M)
    assert [row.path for row in explained(None) if row.path not in rows] == []


def test_every_command_is_in_the_reference() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    files = {path.stem.replace("_", "-") for path in (ROOT / "src/voxstill/commands").glob("[a-z]*.py")}
    assert [name for name in files if f"### `voxstill {name}`" not in page] == []
