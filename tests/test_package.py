"""The wheel and the source distribution: complete, and enough to run the demo somewhere else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import built_wheel
from demo_run import DemoRun
from voxstill.core import world

pytestmark = pytest.mark.slow


def test_the_wheel_has_every_file_of_the_package(tmp_path_factory: pytest.TempPathFactory) -> None:
    kept = {".py", ".html", ".js", ".css", ".jsgf", ".md", ".typed", ".svg", ".j2"}
    package = built_wheel.ROOT / "src/voxstill"
    files = {str(path.relative_to(package.parent)) for path in package.rglob("*") if path.suffix in kept}
    assert files - set(zipfile.ZipFile(built_wheel.distributions(tmp_path_factory)[1]).namelist()) == set()


def test_the_demo_runs_from_the_wheel_with_its_dependencies_alone(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    assert {"duckdb", "onnx", "pytest", "sherpa_onnx"} <= built_wheel.undeclared_modules()
    folder = built_wheel.demo_of_wheel(tmp_path_factory)
    code = "import importlib.util, voxstill; print(voxstill.__file__, importlib.util.find_spec('duckdb'))"
    environment = {**world.environment(), "PYTHONPATH": str(folder / "site")}
    where = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert where.stdout == f"{folder}/site/voxstill/__init__.py None\n"
    run = DemoRun(folder / "run")
    assert run.work.is_dir()
    assert (run.experiment / "summary.json").is_file()
    assert (run.experiment / "report.html").is_file()
