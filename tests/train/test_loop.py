"""Training: resumed to the same bits after any crash, the same on any number of devices, and never silently wrong."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from train.train_once import main as train_once
from voxstill.rundir import RunDir

SCRIPT = Path(__file__).with_name("train_once.py")
CLOCKS = {"seconds", "audio_seconds_per_second", "tokens_per_second", "tflops", "data_wait"}
STEPS = 12


@pytest.fixture(scope="module")
def straight(work: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that nobody disturbed."""
    run = RunDir(tmp_path_factory.mktemp("straight") / "run")
    train_once(str(work), str(run.path), f"train.steps={STEPS}")
    return run


def figures(run: RunDir) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in CLOCKS} for row in rows]


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(run.model / "model.safetensors")
    return tensors


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_writes_every_step_and_every_validation(straight: RunDir) -> None:
    rows = figures(straight)
    assert [row["step"] for row in rows if "split" not in row] == list(range(1, STEPS + 1))
    assert [row["step"] for row in rows if "split" in row] == [4, 8, 12, 12]
    needed = {"step", "loss", "lr", "grad_norm", "padding", "progress", "ctc", "align", "skipped", "replaced"}
    assert needed <= set(rows[0])
    clocks = json.loads(straight.metrics.read_text().splitlines()[0])
    assert all(clocks[name] > 0 for name in CLOCKS)
    # a tiny student needs about 10 million multiplications for a frame of 80 ms, three times that with its gradients
    assert 0.1e9 < 1e12 * clocks["tflops"] / clocks["audio_seconds_per_second"] < 3e9
    assert rows[-1]["wer"] >= 0
    summary = json.loads(straight.summary.read_text())
    assert (summary["steps"], summary["skipped"], summary["replaced"]) == (STEPS, 0, 0)
    assert list(straight.tensorboard.iterdir())
    assert "the largest step fits" in straight.log.read_text()


def test_the_same_run_again_gives_the_same_bits(work: Path, straight: RunDir, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "again")
    train_once(str(work), str(run.path), f"train.steps={STEPS}")
    assert same(weights(run), weights(straight))
    assert figures(run) == figures(straight)


def test_a_run_killed_at_any_moment_and_resumed_is_the_run_nobody_disturbed(
    work: Path, straight: RunDir, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "killed")
    command = [sys.executable, str(SCRIPT), str(work), str(run.path), f"train.steps={STEPS}"]
    wanted = random.randint(2, STEPS - 2)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (run.metrics.exists() and len(figures_whole(run)) >= wanted):
            time.sleep(0.002)
        time.sleep(random.random() * 0.1)
        os.kill(process.pid, signal.SIGKILL)
    assert run.last.exists() or wanted <= 2
    assert not run.summary.exists()
    train_once(str(work), str(run.path), f"train.steps={STEPS}")
    assert same(weights(run), weights(straight))
    assert figures(run) == figures(straight)


def figures_whole(run: RunDir) -> list[str]:
    return [line for line in run.metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_a_run_that_died_before_it_wrote_its_student_only_does_the_rest(
    work: Path, straight: RunDir, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "late")
    train_once(str(work), str(run.path), f"train.steps={STEPS}")
    run.summary.unlink()
    (run.model / "model.safetensors").unlink()
    train_once(str(work), str(run.path), f"train.steps={STEPS}")
    assert same(weights(run), weights(straight))
    assert figures(run) == figures(straight)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ctc", "rnnt"])
def test_two_devices_and_one_learn_the_same(work: Path, tmp_path: Path, kind: str) -> None:
    plain = "augment={noise_prob: 0.0, tempo: 0.0, warp: 0.0, time_masks: 0, mel_masks: 0}"
    overrides = [plain, "train.steps=3", "plan.slots=2", f"student.kind={kind}"]
    runs = [RunDir(tmp_path / "one"), RunDir(tmp_path / "two")]
    train_once(str(work), str(runs[0].path), *overrides)
    command = [sys.executable, str(SCRIPT), str(work), str(runs[1].path), *overrides, "train.devices=2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (load_file(run.last / "model.safetensors") for run in runs)
    learnt = [name for name in one if "running_" not in name and "num_batches" not in name]
    assert len(learnt) > 50
    assert max(float((one[name] - two[name]).abs().max()) for name in learnt) < 1e-5
    losses = [[row["loss"] for row in figures(run) if "loss" in row] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
