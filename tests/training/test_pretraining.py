"""Pre-training: resumed to the same bits, right with accumulation and on two ranks, a start for students."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from forked import call, forked
from pretraining import StepInputs, peer_loss, peer_of
from seeds import seeded_random
from training.pretrain_gradient_once import SETTINGS as GRADIENT_SETTINGS
from training.pretrain_gradient_once import main as gradient_once
from training.train_once import pretrain_once
from voxstill.core import config
from voxstill.nn import checkpoints, self_supervised
from voxstill.storage.rundir import RunDir
from voxstill.training import checkpoint
from voxstill.training.waits import SHARES

CLOCKS = {"seconds", "audio_seconds_per_second", "tokens_per_second", "tflops", "data_wait"}
STEPS = 10
FIELDS = {"contrastive", "diversity", "masked", "perplexity", "temperature", "accuracy", "chance"}
BEST_RQ = "pretrain={method: best_rq, crop_ms: 1000, mask_ms: 160, min_masks: 1, codes: 64}"


def figures(run: RunDir) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines() if line.endswith("}")]
    return [{name: value for name, value in row.items() if name not in {*CLOCKS, *SHARES}} for row in rows]


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(run.model / "model.safetensors")
    return tensors


@pytest.fixture(scope="module")
def straight(work: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = RunDir(tmp_path_factory.mktemp("straight") / "run")
    pretrain_once(str(work), str(run.path), f"train.steps={STEPS}")
    return run


def test_every_step_is_logged_and_the_best_checkpoint_has_the_least_contrastive_loss(straight: RunDir) -> None:
    rows = figures(straight)
    steps, judged = [row for row in rows if "split" not in row], [row for row in rows if "split" in row]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert all(row.keys() >= FIELDS for row in steps)
    for i, row in enumerate(steps):
        assert row["loss"] == pytest.approx(row["contrastive"] + 0.1 * row["diversity"], rel=1e-5)
        assert row["temperature"] == pytest.approx(2 * 0.999995**i, rel=1e-6)
        assert 0.3 < row["masked"] < 0.6
        assert 2 <= row["perplexity"] <= 128
        assert 0 < row["chance"] < 0.5
    least = min(row["contrastive"] for row in judged)
    assert json.loads(straight.summary.read_text())["dev_loss"] == judged[-1]["contrastive"]
    state = json.loads((checkpoint.best(straight, 1)[0] / "state.json").read_text())
    assert state["error"] == least


@pytest.mark.parametrize("method", ["wav2vec2", "best_rq"])
def test_a_run_killed_at_any_moment_and_resumed_equals_an_undisturbed_run(
    work: Path, straight: RunDir, tmp_path: Path, method: str
) -> None:
    run, settings = RunDir(tmp_path / "killed"), [f"train.steps={STEPS}"]
    if method == "best_rq":
        straight, settings = RunDir(tmp_path / "straight"), [*settings, BEST_RQ]
        pretrain_once(str(work), str(straight.path), *settings)
    wanted = seeded_random().randint(3, STEPS - 5)  # what is left takes longer than to see it and to kill it
    with forked(pretrain_once, str(work), str(run.path), *settings, log=tmp_path / "log") as process:
        while process.is_alive() and not (run.metrics.exists() and len(figures(run)) >= wanted):
            time.sleep(0.002)
    assert not run.summary.exists()
    pretrain_once(str(work), str(run.path), *settings)
    one, two = weights(run), weights(straight)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert figures(run) == figures(straight)


def test_the_pre_trained_model_loads_in_transformers_alone(straight: RunDir) -> None:
    script = (
        "import sys, torch, transformers\n"
        "model = transformers.Wav2Vec2ForPreTraining.from_pretrained(sys.argv[1])\n"
        "extractor = transformers.AutoFeatureExtractor.from_pretrained(sys.argv[1])\n"
        "assert extractor.do_normalize and extractor.sampling_rate == 16_000\n"
        "assert model.config.architectures == ['Wav2Vec2ForPreTraining']\n"
        "model(torch.randn(1, 16_000)); assert 'voxstill' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(straight.model)], check=True, stderr=subprocess.DEVNULL)


def test_a_student_of_waveforms_starts_from_it(straight: RunDir) -> None:
    wanted: dict[str, Any] = {"keep_vocabulary": False, "dropout": None, "seed": 0, "freeze_convolutions": True}
    student = checkpoints.from_checkpoint(str(straight.model), 30, kind="ctc", **wanted)
    learnt = weights(straight)
    for name, weight in student.state_dict().items():
        if not name.startswith("lm_head"):
            assert torch.equal(weight, learnt[name])


@pytest.mark.slow
def test_the_encoder_of_random_codes_drops_into_any_student(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    pretrain_once(str(work), str(run.path), BEST_RQ, "train.steps=40", "train.lr=1e-2", "train.validate_every=40")
    rows = [row for row in figures(run) if "split" not in row]
    assert all({"masked", "perplexity", "accuracy"} <= row.keys() for row in rows)
    assert np.mean([row["loss"] for row in rows[-5:]]) < 0.9 * rows[0]["loss"]
    learnt = weights(run)
    for kind in ("ctc", "rnnt"):
        wanted: dict[str, Any] = {"keep_vocabulary": False, "dropout": None, "seed": 0, "freeze_convolutions": True}
        student = checkpoints.from_checkpoint(str(run.model), 12, kind=kind, **wanted)
        encoder = {name: value for name, value in student.state_dict().items() if name.startswith("encoder.")}
        assert len(encoder) > 50
        assert all(torch.equal(value, learnt[name]) for name, value in encoder.items())


def test_a_training_without_progress_on_the_dev_split_ends(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    still = ["train.steps=40", "train.lr=1e-12", "train.validate_every=1", "train.patience=2"]
    pretrain_once(str(work), str(run.path), *still)
    assert json.loads(run.summary.read_text())["steps"] < 40


@pytest.mark.slow
def test_gradients_are_those_of_transformers_with_accumulation_and_on_two_ranks(work: Path, tmp_path: Path) -> None:
    gradient_once(str(work), str(tmp_path / "one"))
    call(gradient_once, str(work), str(tmp_path / "two"), log=tmp_path / "log", ranks=2)
    one, both = (load_file(tmp_path / name / "gradient.safetensors") for name in ("one", "two"))
    recorded = load_file(tmp_path / "one" / "inputs-0.safetensors")
    cfg = config.load(None, [*GRADIENT_SETTINGS])
    peer = peer_of(self_supervised.wav2vec2(cfg.pretrain, cfg.seed)).train()
    losses = []
    for i in range(4):
        step = step_inputs(recorded, i)
        loss = peer_loss(peer, step)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    hidden = sum(int(recorded[f"{i}.weight"].sum()) for i in range(4))
    wanted = {name: weight.grad / hidden for name, weight in peer.named_parameters()}
    expected = float(torch.stack(losses).sum()) / hidden
    noise = 1e-6 * max(float(gradient.norm()) for gradient in wanted.values())
    for gradients in (one, both):
        assert float(gradients["loss"]) == pytest.approx(expected, rel=1e-4)
        for name, gradient in wanted.items():
            assert float((gradients[name] - gradient).norm()) <= 1e-3 * float(gradient.norm()) + noise, name


def step_inputs(recorded: dict[str, torch.Tensor], i: int) -> StepInputs:
    """A batch as it was heard, its noise where theirs looks for it."""
    place_BM, weight_BM, noise_BMGV = (recorded[f"{i}.{name}"] for name in ("place", "weight", "noise"))
    hidden_BF = recorded[f"{i}.hidden"]
    noise_BFGV = torch.zeros(*hidden_BF.shape, *noise_BMGV.shape[2:])
    for b, num in enumerate(weight_BM.sum(1).long().tolist()):
        noise_BFGV[b, place_BM[b, :num]] = noise_BMGV[b, :num]
    return StepInputs(
        *(recorded[f"{i}.samples"], recorded[f"{i}.len"], weight_BM.sum(1).long(), hidden_BF, place_BM, weight_BM > 0),
        *(recorded[f"{i}.negatives"], noise_BFGV),
    )


@pytest.mark.slow
def test_ranks_that_leave_out_different_layers_do_not_wait_for_each_other(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    often = ["train.steps=3", "pretrain.layer_drop=0.5", "train.step_timeout_s=120"]
    call(pretrain_once, str(work), str(run.path), *often, log=tmp_path / "log", ranks=2)
    assert json.loads(run.summary.read_text())["steps"] == 3
