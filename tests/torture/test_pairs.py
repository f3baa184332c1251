"""Two commands at once on one folder: each does its work, or says in words why it cannot.

Then the line is run again in peace. Nothing is there twice, nothing is missing or torn, and the student is the same.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import forked
from seeds import seeded_random
from torture import runs
from voxstill import cli
from voxstill.core.config import load
from voxstill.pipeline import recipes
from voxstill.pipeline.verify import verify
from voxstill.storage import shard_format, workdir
from voxstill.storage.figures import ShardFigures
from voxstill.storage.store import Store
from voxstill.training import experiment

pytestmark = pytest.mark.slow
NUM, GROWN = (12, 16) if runs.SHARE else (6, 8)
LINE = ("index", "label", "filter", "shard", "train") if runs.SHARE else ("index", "label", "filter", "shard")
NAMES = (
    *LINE,
    *("label consensus", "shard --unlabelled", "filter --report", "remove", "clean", "verify", "verify --repair"),
    *("export jsonl", "export kaldi", "train-lm", "plan", "run", "evaluate", "transcribe", "align", "compare"),
    *("pretrain", "control", "run --rehearse", "compare-teachers", "export hf", "export srt"),
)
FEW = (("index", "index"), ("shard", "remove"), ("export jsonl", "export jsonl"))
WITHIN_S = 120
"""A pair takes some seconds; twice the 60 s after which a lease is free would be a hang."""
TRAIN = {"steps": 2, "seed_mode": "debug", "loader_workers": 0, "checkpoint_every": 1, "validate_every": 2}
REMOVED = "u00004"
OTHER = "teacher={name: echo, substitute: 0.3}"


class Folder:
    """A work folder whose corpus has grown since all was done, and how it is before each step that follows."""

    def __init__(self, path: Path) -> None:
        self.path, self.log, self._below = path / "folder", path / "log", path
        self.source = runs.corpus(path / "audio", GROWN)
        (path / "ids.txt").write_text(f"{REMOVED}\n")
        rows = self.source.read_text().splitlines(keepends=True)
        self.source.write_text("".join(rows[:NUM]))
        train, pretrain = TRAIN | {"root": str(self.path / "exp")}, {"size": "tiny", "crop_ms": 900, "mask_ms": 100}
        self.config = runs.configure(self.path, self.source, train=train, pretrain=pretrain)
        (self.path / "output").mkdir()
        self.experiments: list[str] = []
        self.run_line()
        self.run("label", "--set", OTHER)
        if "train" in LINE:
            self.run("train", "--set", "train.steps=1")
            self.experiments = [str(path.parent) for path in sorted(self.path.glob("exp/*/summary.json"))]
            for run in self.experiments:
                runs.finish("evaluate", run, log=self.log)
        self.labels = sorted(path.name for path in self.path.glob("work/labels/*"))
        self.source.write_text("".join(rows))
        self.before: dict[str, Path] = {}
        for step in LINE:
            self.before[step] = path / f"before {step}"
            shutil.copytree(self.path, self.before[step], symlinks=True)
            self.run(step)
        self.calm = self.outcome()

    def restore(self, step: str) -> None:
        """The folder as it was before a step: an experiment knows where it lies, so it is always the same folder."""
        shutil.rmtree(self.path)
        shutil.copytree(self.before[step], self.path, symlinks=True)
        self.log.unlink(missing_ok=True)

    def run(self, name: str, *more: str) -> None:
        """One command, which must end well."""
        if name == "train":
            runs.finish(*self.words(name), *more, log=self.log)
        else:
            assert cli.main([*self.words(name), *more]) == 0, name

    def run_line(self) -> None:
        """All of the line, one after the other."""
        for step in LINE:
            self.run(step)

    def words(self, name: str) -> list[str]:
        """The words of a command."""
        work, output = str(self.path / "work"), self.path / "output"
        config = ["--config", str(self.config)]
        one = self.experiments[0] if self.experiments else ""
        audio = [str(path) for path in sorted(self.source.parent.glob("*.flac"))[:3]]
        match name.split():
            case ["index"]:
                return ["index", str(self.source), "--work", work, *config]
            case ["label", "consensus"]:
                return ["label", work, *config, "--set", f"teacher={{name: consensus, of: {self.labels}}}"]
            case ["filter", "--report"]:
                return ["filter", work, *config, "--report", str(output / "filter.html")]
            case ["remove"]:
                return ["remove", work, *config, "--ids", str(self._below / "ids.txt")]
            case ["clean"]:
                return ["clean", work, *config, "--yes"]
            case ["export", form]:
                path = str(output / f"labels.{form}")
                return ["export-labels", work, *config, "--format", form, "--output", path, "--yes"]
            case ["train-lm"]:
                return ["train-lm", work, *config, "--output", str(output / "lm.arpa")]
            case ["evaluate"]:
                return ["evaluate", one]
            case ["transcribe"]:
                return ["transcribe", f"{one}/model", *audio, "--output", str(output / "transcripts")]
            case ["align"]:
                (output / "text.txt").write_text(json.loads(self.source.read_text().splitlines()[0])["text"])
                manifest = ["--output", str(output / "aligned.jsonl"), "--yes", "--set", "filter.min_alignment=-1000"]
                return ["align", audio[0], str(output / "text.txt"), "--model", f"{one}/model", *manifest]
            case ["compare"]:
                return ["compare", *self.experiments, "--report", str(output / "compare.html")]
            case ["plan"]:
                return ["plan", work, *config, "--ranks", "1"]
            case ["train" | "run" | "pretrain" as step, *options]:
                return [step, str(self.config), *options]
            case ["control"]:
                return ["control", work, *config, "--set", "monitor.log_level=warning"]
            case ["compare-teachers"]:
                return ["compare-teachers", work, *self.labels, *config, "--report", str(output / "teachers.html")]
            case [step, *options]:
                return [step, work, *config, *options]
        raise AssertionError(name)

    def outcome(self) -> dict[str, object]:
        """What there is in the end: each row once, nothing broken, no draft; the shards, and the students."""
        work = self.path / "work"
        for table in ("recordings", "utterances", "labels", "scores", "verdicts"):
            for recipe in (work / table).iterdir():
                parts = [pq.read_table(path).to_pylist() for path in recipe.glob("*.parquet")]
                ids = Counter(row.get("utterance_id") or row["id"] for row in itertools.chain.from_iterable(parts))
                assert max(ids.values(), default=1) == 1, (recipe, ids)
        cfg = load(str(self.config), [], {})
        assert not verify(cfg.work, cfg).broken
        assert not [path for path in self.path.rglob(".*") if path.name.endswith((".draft", ".removed"))]
        store = Store(cfg.work)
        shards = workdir.finished(store, ShardFigures, recipes.shard_recipe(cfg, recipes.finished_verdicts(cfg)))
        sidecars = shard_format.sidecars(store, workdir.prefix("shards", shards.recipe), ("train", "dev", "test"))
        rows = Counter((row["id"], row["text"]) for sidecar in sidecars for row in sidecar.to_pylist())
        students: dict[str, bytes] = {}
        for path in self.path.glob("exp/*/summary.json"):
            run = experiment.RunDir(path.parent)
            if "method" in experiment.noted(run):  # of `pretrain`
                continue
            recipe = str(experiment.noted(run)["recipe"])
            assert recipe not in students, "two experiments of one recipe"
            students[recipe] = (run.model / "model.safetensors").read_bytes()
        return {"rows": rows, "students": students}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("pairs"))


def together(folder: Folder, pair: tuple[str, str], chance: random.Random) -> tuple[list[int], list[str]]:
    """The exit codes of two commands that begin at once, in either order, and what each said."""
    logs = [folder.log.with_name(f"log{number}") for number in range(2)]
    processes = []
    for name, log in zip(pair, logs, strict=True):
        log.write_text("")
        processes.append(forked.start(forked.command, folder.words(name), log=log))
        time.sleep(chance.choice((0, 0, 0.1, 0.3)))
    deadline = time.monotonic() + WITHIN_S
    while running := [process.sentinel for process in processes if process.exitcode is None]:
        assert time.monotonic() < deadline, f"{pair} hang: " + "".join(log.read_text()[-2000:] for log in logs)
        wait(running, timeout=1)
    return [process.exitcode for process in processes], [log.read_text() for log in logs]


def test_two_commands_at_once_end_as_one_after_the_other(folder: Folder, torture: Any) -> None:
    chance = seeded_random()
    names = NAMES if runs.SHARE else ()
    pairs = list(itertools.combinations_with_replacement(names, 2)) if names else list(FEW)
    pairs = sorted(chance.sample(pairs, torture.sample_size(len(pairs), short=len(FEW))))
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number, pair in enumerate(pairs, start=1):
        steps = [step for step in LINE if step in {name.split()[0] for name in pair}]
        folder.restore(steps[0] if steps else LINE[-1])
        codes, messages = together(folder, pair if chance.random() < 0.5 else pair[::-1], chance)
        for code, message in zip(codes, messages, strict=True):
            is_in_words = 3 <= code <= 6 and all(f"{part}: " in message for part in ("error", "why", "fix"))
            if not (code == 0 or is_in_words) or "Traceback" in message:
                wrong.append(f"{pair}: exit codes {codes}: {message[-1500:]}")
            error = re.search("error: .*", message)
            outcomes["done" if code == 0 else re.sub("`.*?`", "`...`", error[0]) if error else f"exit {code}"] += 1
        if any(codes) and all(codes):
            wrong.append(f"{pair}: neither is done: {messages}")
        try:
            folder.run_line()
            outcome = folder.outcome()
            if "remove" in pair:
                expected = {row: num for row, num in folder.calm["rows"].items() if row[0] != REMOVED}  # type: ignore[attr-defined]
                assert outcome["rows"] == expected
            else:
                assert outcome == folder.calm
        except Exception as error:
            wrong.append(f"{pair}: exit codes {codes}, then {type(error).__name__}: {error}"[:1500])
        torture.tell("two commands at once", f"{number} of {len(pairs)} pairs; {len(wrong)} wrong; {dict(outcomes)}")
    assert not wrong, f"{len(wrong)} of {len(pairs)}:\n" + "\n".join(wrong[:20])
