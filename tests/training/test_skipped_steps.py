"""Steps without a finite loss leave no trace in figures, judgements and checkpoints; a diverged training can go on."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from training.train_once import OF_STUDENT, SETTINGS, train_with
from voxstill.core import config
from voxstill.core.errors import TrainingError
from voxstill.pipeline.replay import replay
from voxstill.storage.rundir import RunDir
from voxstill.tasks import recognition
from voxstill.training import checkpoint
from voxstill.training.setup import TrainingSetup

pytestmark = pytest.mark.usefixtures("narrow")

NOTHING = float("nan")


def build_with(factor: Callable[[int], float], *arguments: Any) -> TrainingSetup:
    """The training of a student whose loss is multiplied by a factor of its step."""
    setup = recognition.build(*arguments)
    task: Any = setup.task
    loss = task.loss

    def broken(model: Any, inputs: Any, context: Any) -> Any:
        value = loss(model, inputs, context)
        return replace(value, value=value.value * factor(context.step))

    task.loss = broken
    return setup


def train(work: Path, run: RunDir, factor: Callable[[int], float], *overrides: str) -> None:
    train_with(functools.partial(build_with, factor), str(work), str(run.path), *OF_STUDENT, *overrides)


def rows(run: RunDir) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, as a strict parser of JSON reads them."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in run.metrics.read_text().splitlines()]


def steps(run: RunDir) -> list[int]:
    return sorted({int(path.name.rpartition("=")[2]) for path in run.checkpoints.glob("epoch=*")})


def test_a_skipped_step_leaves_no_trace_in_the_loss_and_no_checkpoint(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    train(work, run, lambda step: NOTHING if step in (3, 4, 5) else 1.0, "train.steps=10", "train.keep_every=1")
    lines = rows(run)
    losses = {row["step"]: row["loss"] for row in lines if "split" not in row}
    assert [step for step, loss in losses.items() if loss is None] == [4, 5, 6]
    assert [row["step"] for row in lines if row.get("split") == "dev"] == [7, 8, 10]  # that of step 4 had to wait
    assert steps(run) == [1, 2, 3, 7, 8, 9, 10]
    summary = json.loads(run.summary.read_text())
    assert summary["dev_wer"] == [row for row in lines if row.get("split") == "dev"][-1]["wer"]  # of the finished model
    assert summary["skipped"] == 3
    assert 0 < summary["loss"] < 100


def test_a_training_without_one_step_is_an_error_and_makes_no_model(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with pytest.raises(TrainingError, match="has made no step"):
        train(work, run, lambda _: NOTHING, "train.steps=3")
    assert not run.model.exists()
    assert not run.summary.exists()


def test_a_training_that_ends_amid_skipped_steps_keeps_the_checkpoint_from_before(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    train(work, run, lambda step: NOTHING if step >= 5 else 1.0, "train.steps=7")
    assert run.last.resolve().name == "epoch=0-step=4" or steps(run)[-1] == 4
    assert json.loads(run.summary.read_text())["skipped"] == 2


def test_a_diverged_training_goes_on_from_before_it_diverged(
    work: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoints that were written while the loss rose would only fail again."""
    run = RunDir(tmp_path / "run")

    def factor(step: int) -> float:
        return 1.0 if step < 5 else 1e5 if step < 9 else NOTHING

    with caplog.at_level("WARNING", "voxstill"), pytest.raises(TrainingError, match="10 steps in a row") as caught:
        train(work, run, factor, "train.steps=40")
    newest = checkpoint.newest(run)
    advised = f"--continue {newest} --set train.lr=0.0002`"
    assert advised in caught.value.fix
    (warning,) = [record.getMessage() for record in caplog.records if "diverges" in record.getMessage()]
    assert advised in warning
    assert newest is not None
    assert (newest.name.rpartition("=")[2], run.last.resolve()) == ("4", newest)
    assert sorted(path.name.rpartition("=")[2] for path in run.checkpoints.glob("diverged-*")) == ["8"]
    train(work, run, lambda step: 1.0, "train.steps=8")
    assert json.loads(run.summary.read_text())["steps"] == 8


def test_a_student_whose_loss_has_risen_is_told_at_the_end_and_the_checkpoint_from_before_stays(
    work: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path / "run")
    with caplog.at_level("WARNING", "voxstill"):
        train(work, run, lambda step: 1.0 if step < 6 else 1e5, "train.steps=14")
    warnings = [record.getMessage() for record in caplog.records if "diverges" in record.getMessage()]
    assert len(warnings) == 2
    assert "the weights of the student are damaged" in warnings[1]
    (before,) = run.checkpoints.glob("epoch=*-step=6")
    assert all(f"--continue {before} " in text for text in warnings)


def test_a_step_that_fails_before_any_checkpoint_can_be_replayed(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with pytest.raises(TrainingError) as caught:
        train(work, run, lambda step: NOTHING, "train.steps=40")
    assert "what makes the first step fail, which is not `train.lr`" in caught.value.fix
    run.config.write_text(config.dump(config.load(None, [f"work={work}", *SETTINGS, *OF_STUDENT])))
    result = replay(str(run.path), str(next(run.skipped.iterdir())))
    assert (result.checkpoint, result.at_fault) == ("the start, as there is no checkpoint", [])


def test_where_no_utterance_has_a_finite_loss_the_weights_are_at_fault(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    train(work, run, lambda step: NOTHING if step == 3 else 1.0, "train.steps=4")
    (batch,) = run.skipped.iterdir()
    weights_path = run.last.resolve() / "model.safetensors"
    weights = load_file(weights_path)
    name = next(name for name in weights if name.endswith("weight") and weights[name].ndim > 1)
    weights[name] = torch.full_like(weights[name], 3e38)  # finite, and too large for any sum
    save_file(weights, weights_path)
    state_path = run.last.resolve() / "state.json"
    state = json.loads(state_path.read_text())
    del state["sha256"]
    state_path.write_text(json.dumps(state))
    run.config.write_text(config.dump(config.load(None, [f"work={work}", *SETTINGS, *OF_STUDENT])))
    assert "the weights are at fault, not the audio" in replay(str(run.path), str(batch)).verdict


def test_files_of_a_checkpoint_have_the_rights_of_new_files(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    train(work, run, lambda step: 1.0, "train.steps=2")
    (tmp_path / "new").touch()
    expected = (tmp_path / "new").stat().st_mode
    files = [*run.last.resolve().iterdir(), *run.model.iterdir()]
    assert {path.name: path.stat().st_mode for path in files} == {path.name: expected for path in files}
