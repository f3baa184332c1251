"""The wheel and the source distribution: complete, and enough to run the demo somewhere else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from voxstill.core import world

ROOT = Path(__file__).parents[1]
SHORT = (
    "demo.train_utterances=40",
    "demo.dev_utterances=8",
    "demo.test_utterances=8",
    "train.steps=4",
    "engine=inline",
)

pytestmark = pytest.mark.slow


def built(tree: Path, what: str, output: Path) -> Path:
    """Build a distribution of a source tree, as an installer does it."""
    code = f"import setuptools.build_meta as build; print(build.build_{what}({str(output)!r}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=tree, capture_output=True, text=True)
    return output / done.stdout.splitlines()[-1]


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


def test_the_demo_runs_from_the_wheel(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(distributions[1])], check=True)
    environment = {**world.environment(), "PYTHONPATH": str(site)}
    code = "import voxstill; print(voxstill.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert where.stdout.startswith(str(site))
    command = [sys.executable, "-m", "voxstill", "demo", "--work", "work"]
    command += [word for setting in SHORT for word in ("--set", setting)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "student" in done.stdout
    assert (tmp_path / "work").is_dir()
