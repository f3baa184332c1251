"""Whatever goes wrong with a write, no torn file is taken for a whole one, the error is clear, and the step resumes.

Every write point of a step is found in an undisturbed run; then each one fails in turn, in a run of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from torture import runs
from torture.faults import KINDS, Nursery, points_of
from voxstill.storage.rundir import RunDir

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
TABLES = {"index": "utterances", "label": "labels", "filter": "verdicts", "shard": "shards"}
STEPS = (*TABLES, "train", "evaluate", "report")
FEW = (
    ("I/O error", "index"),
    ("short write", "label"),
    ("I/O error", "filter"),
    ("full disk", "shard"),
    ("kill", "train"),
)
CASES = FEW if runs.SHARE is None else [(kind, step) for step in STEPS for kind in KINDS]
RUNS = [CASES] if runs.SHARE is None else [[case] for case in CASES]
"""The cases of each test: few of them are one, else several processes that run tests would make the line for them."""
TRAIN = {
    **{"steps": 4, "seed_mode": "debug", "loader_workers": 0, "log_every": 1},
    **{"checkpoint_every": 1, "validate_every": 2, "keep_best": 1},
}
"""A checkpoint at each step, and of those before it all but one are removed."""
TIMES = ("path", "seconds", "sha256", "rtfx", "commits")
"""What differs from one training to the next of the figures in its files; someone may commit meanwhile."""


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not at hand")
    server = Nursery(tmp_path_factory.mktemp("nursery"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.corpus(tmp_path_factory.mktemp("tones") / "audio", 12)


class Line:
    """One folder, and what stands in it before and after each step when nobody disturbs it."""

    def __init__(self, nursery: Nursery, source: Path, folder: Path) -> None:
        self.source, self.folder, self.calm = source, folder / "struck", folder / "calm"
        self.before: dict[str, Path] = {}
        self.points: dict[str, list[str]] = {}
        self.folder.mkdir()
        for step in dict.fromkeys(step for _, step in CASES):
            self.before[step] = folder / step
            shutil.copytree(self.folder, self.before[step], symlinks=True)
            assert nursery.run(self.folder, *self.command(step)) == 0, log_of(self.folder)
            self.points[step] = Path(f"{self.folder}.points").read_text().splitlines()
        shutil.copytree(self.folder, self.calm, symlinks=True)
        self.after = dict(zip(self.before, [*list(self.before.values())[1:], self.calm], strict=True))

    def restore(self, step: str) -> None:
        """The folder as it was before a step: an experiment knows where it lies, so it is always the same folder."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.before[step], self.folder, symlinks=True)

    def command(self, step: str) -> list[object]:
        folder = self.folder
        train = TRAIN | {"root": str(folder / "exp")}
        config = runs.configure(folder, self.source, train=train)
        if step == "index":
            return ["index", self.source, "--work", folder / "work", "--config", config]
        if step == "evaluate":
            (experiment,) = [path.parent for path in folder.glob("exp/*/summary.json")]
            return ["evaluate", experiment]
        if step in ("train", "report"):
            return ["train" if step == "train" else "run", config]
        return [step, folder / "work", "--config", config]


@pytest.fixture(scope="module")
def line(nursery: Nursery, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Line:
    return Line(nursery, source, tmp_path_factory.mktemp("line"))


def log_of(folder: Path) -> str:
    return Path(f"{folder}.said").read_text()


def check_whole(folder: Path, calm: Path) -> None:
    """Every file that a later step would take is what it would have been."""
    tables, expected = runs.kept(folder / "work"), runs.kept(calm / "work")
    for name, data in tables.items():
        sidecar = name.removesuffix(".tar") + ".parquet"
        if name in expected and (not name.endswith(".tar") or sidecar in tables):
            assert data == expected[name], name
    for path in folder.rglob("_SUCCESS.json"):
        json.loads(path.read_text())
    for path in folder.glob("exp/*/*.json"):
        if not path.name.startswith("."):
            json.loads(path.read_text())
    for weights in folder.rglob("*.safetensors"):
        if not any(part.startswith(".") for part in weights.relative_to(folder).parts):
            load_file(weights)
    for report in folder.glob("exp/*/report.html"):
        assert report.read_text().rstrip().endswith("</html>")


def is_reported(code: int, text: str) -> bool:
    """Whether a fault that matters ended in an error a user can act on; TensorBoard's thread may have had its say."""
    end = text.rpartition("Traceback")[2]
    return code in (0, -signal.SIGKILL) or (
        2 <= code <= 6 and all(f"{part}: " in end for part in ("error", "why", "fix"))
    )


@pytest.mark.parametrize("cases", RUNS, ids=lambda cases: ", ".join(" ".join(case) for case in cases))
def test_a_failed_write_leaves_no_torn_object_and_is_repeated(
    nursery: Nursery, line: Line, torture: Any, cases: Sequence[tuple[str, str]]
) -> None:
    for kind, step in cases:
        check_failed_writes(nursery, line, torture, kind, step)


def check_failed_writes(nursery: Nursery, line: Line, torture: Any, kind: str, step: str) -> None:
    every = points_of(line.points[step], kind)
    chosen = random.Random(0).sample(list(every), torture.sample_size(len(every), short=1))
    codes: Counter[int] = Counter()
    wrong, untold = [], []
    for number in sorted(chosen):
        line.restore(step)
        code = nursery.run(line.folder, *line.command(step), at=number, kind=KINDS[kind])
        codes[code] += 1
        where = f"{every[number]} ({number}): exit {code}"
        assert kind != "kill" or code == -signal.SIGKILL, where
        if not is_reported(code, log_of(line.folder)):
            untold.append(f"{where}: {log_of(line.folder)[-600:]}")
        try:
            check_whole(line.folder, line.calm)
            assert nursery.run(line.folder, *line.command(step)) == 0, log_of(line.folder)
            check_end(line, step)
        except Exception as error:
            wrong.append(f"{where}: {type(error).__name__}: {error}"[:900])
    torture.tell(
        f"{kind} in {step}",
        f"{len(chosen)} of {len(every)} points; exit codes {dict(codes)}; {len(wrong)} wrong, {len(untold)} untold",
    )
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:12])
    assert not untold, f"{len(untold)} of {len(chosen)}:\n" + "\n".join(untold[:12])


def check_end(line: Line, step: str) -> None:
    """After the second try, everything of the step is there as if the fault had not been."""
    if step in TABLES:
        tables, calm = (
            {n: d for n, d in runs.kept(folder / "work").items() if n.startswith(TABLES[step])}
            for folder in (line.folder, line.calm)
        )
        assert tables == calm
        assert list(line.folder.glob(f"work/{TABLES[step]}/*/_SUCCESS.json"))
        return
    run, calm = (experiment_of(folder) for folder in (line.folder, line.after[step]))
    assert what_was_learnt(run) == what_was_learnt(calm)
    assert [path.name for path in run.path.parent.iterdir()] == [run.path.name]
    if step == "report":
        assert run.report.exists()


def experiment_of(folder: Path) -> RunDir:
    (summary,) = folder.glob("exp/*/summary.json")
    return RunDir(summary.parent)


def what_was_learnt(run: RunDir) -> dict[str, object]:
    """Every weight, loss and figure of an experiment; and every name, but for those of TensorBoard."""
    files: dict[str, object] = {}
    for path in sorted(run.path.rglob("*")):
        name = str(path.relative_to(run.path))
        if name.startswith(("tensorboard/", "leases/", "control/", "waits/")):  # of processes and their clocks
            continue
        files[name] = path.read_bytes() if path.suffix == ".safetensors" else None
        if path.suffix == ".json":
            files[name] = {name: value for name, value in json.loads(path.read_bytes()).items() if name not in TIMES}
    losses = [json.loads(row) for row in run.metrics.read_bytes().splitlines()]
    return files | {"losses": [(row["step"], row.get("split"), row.get("loss")) for row in losses]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
@pytest.mark.parametrize("size_kb", [80] if runs.SHARE is None else range(10, 180, 10))
def test_a_full_file_system_is_an_error_and_its_contents_are_used_when_it_has_grown(
    source: Path, tmp_path: Path, size_kb: int
) -> None:
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    calm, disk = tmp_path / "calm", tmp_path / "disk"
    disk.mkdir()
    script = []
    for folder, name in ((calm, "calm"), (disk, "small"), (disk, "grown")):
        config = runs.configure(tmp_path / name, source, work=str(folder / "work"))
        steps = [["index", source, "--work", folder / "work"], *([step, folder / "work"] for step in list(TABLES)[1:])]
        (tmp_path / f"{name}.json").write_text(
            json.dumps([[*map(str, step), "--config", str(config)] for step in steps])
        )
        if name == "small":
            script.append(f"mount -t tmpfs -o size={size_kb}k tmpfs {disk} || exit 99")
        run = f"{sys.executable} {HERE}/steps.py {tmp_path}/{name}.json"
        script.append(f"{run} > {tmp_path}/{name}.said 2>&1; echo $? > {tmp_path}/{name}.code")
        if name == "small":
            script.append(f"mount -o remount,size=100m {disk}")
    script.append(f"cp -a {disk} {tmp_path}/kept")
    process = subprocess.run(["unshare", "-m", "bash", "-c", "\n".join(script)], check=False)
    if process.returncode == 99:
        pytest.skip("a file system cannot be mounted here")
    codes = {name: int((tmp_path / f"{name}.code").read_text()) for name in ("calm", "small", "grown")}
    small = (tmp_path / "small.said").read_text()
    assert codes == {"calm": 0, "small": 4, "grown": 0}, small
    assert is_reported(codes["small"], small), small
    assert "No space left on device" in small
    assert runs.kept(tmp_path / "kept" / "work") == runs.kept(calm / "work")
