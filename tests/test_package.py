"""The wheel and the source distribution: complete, and enough to run the demo somewhere else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from voxstill.core import world

ROOT = Path(__file__).parents[1]
SHORT = (
    "demo.train_utterances=40",
    "demo.dev_utterances=8",
    "demo.test_utterances=8",
    "train.steps=4",
    "engine=inline",
)
HIDE = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {hidden!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
"""A `sitecustomize.py` that hides modules from imports, in all processes."""

pytestmark = pytest.mark.slow


def built(tree: Path, what: str, output: Path) -> Path:
    """Build a distribution of a source tree, as an installer does it."""
    code = f"import setuptools.build_meta as build; print(build.build_{what}({str(output)!r}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=tree, capture_output=True, text=True)
    return output / done.stdout.splitlines()[-1]


def installed_with(requirements: Iterable[str]) -> set[str]:
    """The distributions that an installer would bring for requirements, and for theirs."""
    names: set[str] = set()
    todo = [(text, "") for text in requirements]
    seen = set(todo)
    while todo:
        text, extra = todo.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        names.add(canonicalize_name(requirement.name))
        for own in ("", *requirement.extras):
            further = {(line, own) for line in metadata.requires(requirement.name) or ()} - seen
            seen |= further
            todo += further
    return names


def undeclared_modules() -> set[str]:
    """The modules of this environment that none of the dependencies of the package brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = installed_with(project["dependencies"]) | {"voxstill"}
    owners = metadata.packages_distributions()
    return {module for module, names in owners.items() if brought.isdisjoint(map(canonicalize_name, names))}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution of the files that git knows, and the wheel that is built of it."""
    folder = tmp_path_factory.mktemp("package")
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    tree = folder / "tree"
    for name in filter(None, files):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    sdist = built(tree, "sdist", folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    return sdist, built(unpacked, "wheel", folder)


def test_the_wheel_has_every_file_of_the_package(distributions: tuple[Path, Path]) -> None:
    kept = {".py", ".html", ".js", ".css", ".jsgf", ".md", ".typed", ".svg", ".j2"}
    package = ROOT / "src/voxstill"
    files = {str(path.relative_to(package.parent)) for path in package.rglob("*") if path.suffix in kept}
    assert files - set(zipfile.ZipFile(distributions[1]).namelist()) == set()


def test_the_demo_runs_from_the_wheel_with_its_dependencies_alone(
    distributions: tuple[Path, Path], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    hidden = undeclared_modules()
    assert {"duckdb", "onnx", "pytest", "sherpa_onnx"} <= hidden
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(distributions[1])], check=True)
    (site / "sitecustomize.py").write_text(HIDE.format(hidden=hidden), encoding="utf-8")
    environment = {**world.environment(), "PYTHONPATH": str(site)}
    code = "import importlib.util, voxstill; print(voxstill.__file__, importlib.util.find_spec('duckdb'))"
    where = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert where.stdout == f"{site}/voxstill/__init__.py None\n"
    command = [sys.executable, "-m", "voxstill", "demo", "--work", "work"]
    command += [word for setting in SHORT for word in ("--set", setting)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "student" in done.stdout
    assert (tmp_path / "work").is_dir()
