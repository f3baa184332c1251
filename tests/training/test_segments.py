"""A training goes on with other options in the same experiment, and says so; without changes it is what it was."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import voxstill
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.pipeline.control_training import TrainingControlResult
from voxstill.storage import control
from voxstill.storage.rundir import RunDir
from voxstill.training import segments
from voxstill.training import state as state_file
from waiting import until

SETTINGS = """
work: {folder}/work
engine: inline
source: {{dev_share: 0, test_share: 0}}
student: {{size: tiny}}
plan: {{budget_ms: 6000}}
train: {{steps: 6, optimizer: adamw, loader_workers: 0, seed_mode: debug, validate_every: 3, log_every: 1,
  root: {folder}/exp}}
"""
"""A step of Muon, the default, takes as long as two of AdamW where matrices are so small."""


pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration whose work folder has shards."""
    folder: Path = tmp_path_factory.mktemp("corpus")
    path = folder / "my.yaml"
    path.write_text(SETTINGS.format(folder=folder))
    rows = []
    for number in range(14):
        text = TEXTS[number % len(TEXTS)]
        (folder / f"{number}.flac").write_bytes(codec.encode(speak(text, number)[0], "flac"))
        split = "dev" if number < 2 else "train"
        rows.append(json.dumps({"id": f"u{number}", "audio": f"{number}.flac", "text": text, "split": split}))
    manifest = folder / "all.jsonl"
    manifest.write_text("\n".join(rows) + "\n")
    assert cli.main(["shard", str(folder / "work"), "--from", str(manifest), "--config", str(path)]) == 0
    return path


def train(capsys: pytest.CaptureFixture[str], config: Path, root: Path, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["train", str(config), "--set", f"train.root={root}", *words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def noted(run: RunDir) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = json.loads(run.environment.read_text())["segments"]
    return segments


def epochs(run: RunDir) -> dict[int, int]:
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return {row["step"]: row["epoch"] for row in rows if "split" not in row}


def test_a_finished_training_goes_on_longer_and_with_another_rate(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    first = train(capsys, config, tmp_path)
    run, more = RunDir(Path(first["path"])), ("--set", "train.steps=9", "--set", "train.lr=1e-4")
    second = train(capsys, config, tmp_path, "--continue", first["path"], *more)
    assert (second["path"], second["steps"]) == (first["path"], 9)
    (segment,) = noted(run)
    assert segment["step"] == 6
    assert segment["changed"].keys() == {"train.steps", "train.lr"}
    assert segment["changed"]["train.steps"] == [6, 9]
    assert json.loads((run.path / "summary.segment=0.json").read_text()) == first
    assert "steps: 6" in (run.path / "config.segment=0.yaml").read_text()
    assert "steps: 9" in run.config.read_text()
    assert list(epochs(run)) == list(range(1, 10))
    for words in ((), ("--continue", first["path"])):  # it is the experiment of these options now
        assert train(capsys, config, tmp_path, *more, *words) == second
    assert len(noted(run)) == 1


def test_a_longer_training_averages_its_own_end_and_is_uploaded_again(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    options = ("--set", "train.average_share=0.4", "--set", f"train.upload={tmp_path / 'there'}")
    first = train(capsys, config, tmp_path, *options, "--set", "train.steps=3")
    run = RunDir(Path(first["path"]))
    assert state_file.read(run.last.resolve()).averaged == 1
    second = train(capsys, config, tmp_path, *options, "--continue", first["path"], "--set", "train.steps=9")
    assert state_file.read(run.last.resolve()).averaged == 3  # steps 7 to 9, and not the third
    there = RunDir(tmp_path / "there" / run.path.name)
    assert json.loads(there.summary.read_text()) == second
    for name in ("model.safetensors", "SHA256SUMS"):
        assert (there.model / name).read_bytes() == (run.model / name).read_bytes()
    assert (there.path / "_SUCCESS.json").is_file()


def test_what_patience_ended_goes_on_with_another_rate(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    options = ("--set", "train.patience=1", "--set", "train.validate_every=1")
    first = train(capsys, config, tmp_path, *options, "--set", "train.lr=1e-12")
    assert first["steps"] == 2
    assert "ends by `train.patience`" in (Path(first["path"]) / "train.log").read_text()
    second = train(capsys, config, tmp_path, *options, "--continue", first["path"], "--set", "train.lr=1e-11")
    assert second["steps"] == 3


def test_a_checkpoint_is_of_the_segment_before_those_that_began_since(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    changed = ({"plan.budget_ms": (1, 2)}, {"train.lr": (1.0, 0.5)}, {"train.lr": (0.5, 0.1)})
    noted = [{"step": step, "changed": options} for step, options in zip((20, 20, 10), changed, strict=True)]
    run.environment.write_text(json.dumps({"segments": noted}))
    for step, begun, others in ((8, 3, True), (10, 3, True), (12, 0, False), (20, 0, False), (21, 0, False)):
        since = segments.begun_since(run, step)
        assert (len(since), segments.change_batches(since)) == (begun, others)
    requested = {"step": 20, "changed": {"train.steps": [1, 2]}, "requested_at": "2030", "seconds": 1.5}
    run.environment.write_text(json.dumps({"segments": [*noted, requested]}))
    assert [segment.step for segment in segments.requested(run)] == [20]
    assert len(segments.begun_since(run, 8)) == 3
    run.environment.write_text(json.dumps({"segments": noted[:2]}))
    assert segments.change_batches(segments.begun_since(run, 20))


def test_another_budget_begins_another_epoch(capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path) -> None:
    first = train(capsys, config, tmp_path, "--set", "train.steps=3")
    run = RunDir(Path(first["path"]))
    more = ("--continue", first["path"], "--set", "plan.budget_ms=9000", "--set", "train.steps=5")
    train(capsys, config, tmp_path, *more)
    assert epochs(run)[4] == epochs(run)[3] + 1


def test_a_training_goes_on_from_an_earlier_checkpoint_that_is_named(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    run = RunDir(Path(train(capsys, config, tmp_path, "--set", "train.keep_every=1", "--set", "train.steps=4")["path"]))
    (start,) = run.checkpoints.glob("epoch=*-step=2")
    words = ("--continue", str(start), "--set", "train.steps=5", "--set", "train.lr=1e-4")
    second = train(capsys, config, tmp_path, *words)
    assert (second["path"], second["steps"], noted(run)[0]["step"]) == (str(run.path), 5, 2)
    aside = {path.name.rpartition("=")[2] for path in run.checkpoints.glob("superseded-epoch=*")}
    assert aside == {"3", "4"}
    assert list(epochs(run)) == [1, 2, 3, 4, 5]
    assert train(capsys, config, tmp_path, *words) == second  # the same once more does not go back again


@pytest.mark.parametrize(
    ("option", "word"),
    [("student.size=small", "student.size"), ("seed=5", "seed"), ("train.steps=1", "nothing left to do")],
)
def test_what_cannot_go_on_is_refused(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path, option: str, word: str
) -> None:
    first = train(capsys, config, tmp_path, "--set", "train.steps=2")
    words = ["train", str(config), "--continue", first["path"], "--set", f"train.root={tmp_path}", "--set", option]
    assert cli.main(words) == 2
    assert word in capsys.readouterr().err
    environment = json.loads(RunDir(Path(first["path"])).environment.read_text())
    assert "segments" not in environment
    assert {"command", "commits", "versions", "machine"} <= environment.keys()


def test_an_unfinished_experiment_beside_a_new_one_is_told(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    first = train(capsys, config, tmp_path, "--set", "train.steps=2")
    RunDir(Path(first["path"])).summary.unlink()
    words = ("--set", f"train.root={tmp_path}", "--set", "train.steps=2", "--set", "train.lr=1e-4")
    assert cli.main(["train", str(config), *words]) == 0
    error = capsys.readouterr().err
    assert "a new experiment starts at step 0" in error
    assert f"--continue {first['path']}" in error


def test_a_folder_that_is_no_experiment_is_refused(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    assert cli.main(["train", str(config), "--continue", str(tmp_path)]) == 2
    assert "is not an experiment" in capsys.readouterr().err


def test_weights_of_0_alone_are_refused_before_training(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    words = ["train", str(config), "--set", f"train.root={tmp_path}", "--set", "train.dataset_weights={'': 0}"]
    assert cli.main(words) == 3
    assert "there is nothing to learn" in capsys.readouterr().err


def test_shards_of_one_recipe_with_other_weights_are_another_training(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (config.parent / "all.jsonl").read_text().splitlines()]
    weighted = config.parent / "weighted.jsonl"
    weighted.write_text("".join(json.dumps({**row, "weight": 0.5}) + "\n" for row in rows))
    works = {name: tmp_path / name for name in ("heavy", "light", "moved")}
    for name, manifest in (("heavy", config.parent / "all.jsonl"), ("light", weighted)):
        assert cli.main(["shard", str(works[name]), "--from", str(manifest), "--config", str(config)]) == 0
    shutil.copytree(works["heavy"], works["moved"])
    [recipe] = {path.name for name in works for path in (works[name] / "shards").iterdir()}
    paths = {
        name: train(capsys, config, tmp_path, "--set", f"work={work}", "--set", "train.steps=1")["path"]
        for name, work in works.items()
    }
    assert paths["heavy"] == paths["moved"] != paths["light"]
    words = ["train", str(config), "--continue", paths["heavy"], "--set", f"work={works['light']}"]
    assert cli.main([*words, "--set", "train.steps=2"]) == 2
    assert "was trained on other shards" in capsys.readouterr().err
    assert recipe


def test_a_command_with_other_options_takes_back_what_was_requested_while_it_trained(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "POLL_S", 0.01)
    more = ("--set", "train.steps=100000", "--set", "train.validate_every=100000")
    asked: list[TrainingControlResult] = []

    def request() -> None:
        until(lambda: any(path.stat().st_size for path in tmp_path.glob("*/metrics.jsonl")))
        [path] = (path.parent for path in tmp_path.glob("*/metrics.jsonl"))
        asked.append(voxstill.control_training(path, ["train.steps=30", "train.lr_factor=0.5", "train.log_every=2"]))

    thread = threading.Thread(target=request)
    thread.start()
    first = train(capsys, config, tmp_path, *more)
    thread.join()
    run = RunDir(Path(first["path"]))
    [change] = noted(run)
    assert change["changed"] == {
        "train.steps": [100000, 30],
        "train.lr_factor": [1.0, 0.5],
        "train.log_every": [1, 2],
    }
    assert (first["steps"], first["segments"]) == (30, [change])
    assert "steps: 100000" in run.config.read_text()
    for words in ((), ("--continue", first["path"])):  # it is the experiment of these options still
        assert train(capsys, config, tmp_path, *more, *words) == first
    result = voxstill.control_training(first["path"])
    assert (result.at, result.asked) == (asked[0].at, asked[0].asked)
    assert (result.jobs[0].asked_at, result.jobs[0].since, result.jobs[0].running) == (
        asked[0].at,
        change["step"],
        False,
    )
    assert f"follows the request, since step {change['step']}" in result.to_text()
    longer = (*more, "--continue", first["path"], "--set", "train.steps=40")
    second = train(capsys, config, tmp_path, *longer)
    assert second["steps"] == 40
    assert noted(run)[0] == change
    assert noted(run)[1:] == [{"step": 30, "changed": {"train.steps": [30, 40], "train.lr_factor": [0.5, 1.0]}}]
    assert not (run.path / control.REQUEST).exists()
    assert (run.path / "config.segment=0.yaml").exists()
    assert train(capsys, config, tmp_path, *longer) == second
    assert len(noted(run)) == 2


def test_a_pre_training_goes_on_by_its_own_command(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    own = "pretrain={size: tiny, crop_ms: 900, mask_ms: 100, negatives: 20}"
    words = [str(config), "--set", own, "--set", f"train.root={tmp_path}", "--set", "train.average=best"]

    def run(command: str, *more: str) -> tuple[int, str]:
        code = cli.main([command, *words, *more])
        return code, capsys.readouterr().err

    assert run("pretrain", "--set", "train.steps=2")[0] == 0
    [path] = map(str, tmp_path.iterdir())
    code, error = run("train", "--set", "train.steps=3", "--continue", path)
    assert (code, f"voxstill pretrain CONFIG --continue {path}" in error) == (2, True)
    code, error = run("pretrain", "--set", "train.steps=3", "--continue", path, "--set", "pretrain.negatives=10")
    assert (code, "another `pretrain.negatives`" in error) == (2, True)
    assert run("pretrain", "--set", "train.steps=3", "--set", "train.lr=1e-4", "--continue", path)[0] == 0
    assert json.loads(RunDir(Path(path)).summary.read_text())["steps"] == 3
    assert noted(RunDir(Path(path)))[0]["changed"].keys() == {"train.steps", "train.lr"}
