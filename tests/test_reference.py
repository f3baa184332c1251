"""The pages of the reference are those that the code writes, and leave nothing out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from voxstill.core import world
from voxstill.pipeline.options import explained

ROOT = Path(__file__).parents[1]


def test_the_page_of_options_is_that_of_the_code(tmp_path: Path) -> None:
    written = ROOT / "docs/reference/options.md"
    committed = written.read_text(encoding="utf-8")
    output = tmp_path / "options.md"
    command = [sys.executable, str(ROOT / "tools/options_page.py"), str(output)]
    subprocess.run(command, check=True, env=world.environment())
    assert output.read_text(encoding="utf-8") == committed, "run tools/options_page.py"
    assert all(f"| `{row.path}` |" in committed for row in explained(None))
