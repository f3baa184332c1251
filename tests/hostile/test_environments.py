"""The environment of `make test-vllm` has every package that its tests import, those of conftest.py among them."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
BROUGHT_BY_VLLM = {"vllm", "torch"}


def imported_by(file: Path, seen: set[Path]) -> set[str]:
    """The packages that a file of the tests imports when it is loaded, and those that its helpers here import."""
    seen.add(file)
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    helpers = {TESTS / f"{name}.py" for name in names} & set(TESTS.glob("*.py"))
    own = {name for name in names if TESTS / f"{name}.py" not in helpers}
    return own.union(*(imported_by(helper, seen) for helper in helpers - seen))


def test_the_environment_for_vllm_has_what_its_tests_import() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("$(VLLM_STAMP): ")[2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *re.findall(r"'([^']+)'", recipe)]
    packages = {re.split(r"[^\w.-]", want)[0].lower().replace("-", "_") for want in wanted}
    files = [TESTS / "conftest.py", TESTS / "teachers/conftest.py", TESTS / "teachers/test_vllm.py"]
    needed = set[str]().union(*(imported_by(file, set()) for file in files))
    needed -= {*sys.stdlib_module_names, *BROUGHT_BY_VLLM, "voxstill", "__future__"}
    assert "hypothesis" in needed  # it was forgotten once
    assert needed <= packages
