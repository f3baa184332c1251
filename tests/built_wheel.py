"""The wheel of the checkout, and a run of the demo from it, which several files of tests look at."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from demo_run import COMMAND, DemoRun
from prometheus import PROMETHEUS
from shared_folders import made_once
from voxstill.core import world

ROOT = Path(__file__).parents[1]
SHORT = {
    "VOXSTILL__DEMO__TRAIN_UTTERANCES": "120",
    "VOXSTILL__DEMO__DEV_UTTERANCES": "8",
    "VOXSTILL__DEMO__TEST_UTTERANCES": "16",
    "VOXSTILL__TRAIN__STEPS": "24",
    "VOXSTILL__TRAIN__OPTIMIZER": "adamw",  # a step of Muon, the default, takes longer
    "VOXSTILL__TRAIN__LOG_EVERY": "5",
}
"""A demo of half a minute."""
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
    with pytest.MonkeyPatch.context() as patch:
        # Ray, once it is loaded, adds the folder of its own copies of modules, which its workers need
        patch.setattr(sys, "path", [path for path in sys.path if Path(path).name != "thirdparty_files"])
        owners = metadata.packages_distributions()
    return {module for module, names in owners.items() if brought.isdisjoint(map(canonicalize_name, names))}


def make_distributions(folder: Path) -> tuple[Path, Path]:
    """The source distribution of the files that git knows, and the wheel that is built of it."""
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


def distributions(factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same, made once in a run of the tests."""
    folder = made_once(factory, "package", make_distributions)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def demo_of_wheel(factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel in `site` and a run of its demo in `run`, made once in a run of the tests.

    What is none of the dependencies of the package is hidden from it. Where Prometheus is at hand, it is recorded.
    """

    def make(folder: Path) -> None:
        environment = installed(distributions(factory)[1], folder / "site")
        run = DemoRun(folder / "run")
        if PROMETHEUS is not None:
            run.make(environment)
        else:
            run.folder.mkdir()
            subprocess.run([sys.executable, "-m", *COMMAND.split()], check=True, cwd=run.folder, env=environment)

    return made_once(factory, "demo-of-wheel", make)


def installed(wheel: Path, site: Path) -> dict[str, str]:
    """Install a wheel alone; the environment of a short demo, which imports it and its dependencies only."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    (site / "sitecustomize.py").write_text(HIDE.format(hidden=undeclared_modules()), encoding="utf-8")
    return {**world.environment(), **SHORT, "PYTHONPATH": str(site)}
