"""Training: resumed to the same bits after any crash, the same on any number of devices, and never silently wrong."""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from checkpoints import write_waveform_checkpoint, write_whisper_checkpoint
from forked import call, forked
from seeds import seeded_random
from training.gradient_once import main as gradient_once
from training.shard_once import TRAININGS
from training.shard_once import main as shard_once
from training.train_once import train_once
from voxstill.audio import codec
from voxstill.storage.rundir import RunDir
from voxstill.training import checkpoint
from voxstill.training.waits import SHARES

CLOCKS = {"seconds", "audio_seconds_per_second", "tokens_per_second", "tflops", "data_wait"}
STEPS = 12


@pytest.fixture(scope="module")
def straight(work: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that nobody disturbed, with a trace of its last steps."""
    run = RunDir(tmp_path_factory.mktemp("straight") / "run")
    train_once(str(work), str(run.path), f"train.steps={STEPS}", "train.profile=2")
    return run


def figures(run: RunDir) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in {*CLOCKS, *SHARES}} for row in rows]


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
    # a narrow student needs about 100,000 multiplications for a frame of 80 ms, three times that with its gradients
    assert 1e6 < 1e12 * clocks["tflops"] / clocks["audio_seconds_per_second"] < 30e6
    assert rows[-1]["wer"] >= 0
    summary = json.loads(straight.summary.read_text())
    assert (summary["steps"], summary["skipped"], summary["replaced"]) == (STEPS, 0, 0)
    assert list(straight.tensorboard.iterdir())
    assert "the largest step fits" in straight.log.read_text()
    assert [path.name for path in straight.profile.iterdir()] == ["steps=11-12.json"]


def test_the_same_run_again_gives_the_same_bits(work: Path, straight: RunDir, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "again")
    train_once(str(work), str(run.path), f"train.steps={STEPS}")
    assert same(weights(run), weights(straight))
    assert figures(run) == figures(straight)


def test_a_run_that_computes_its_layers_again_gives_the_same_bits(work: Path, straight: RunDir, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "again")
    train_once(str(work), str(run.path), f"train.steps={STEPS}", "train.activation_checkpointing=true")
    assert same(weights(run), weights(straight))


def test_a_run_with_dropout_that_computes_its_layers_again_gives_the_same_bits(work: Path, tmp_path: Path) -> None:
    runs = [RunDir(tmp_path / "remembered"), RunDir(tmp_path / "again")]
    for run, again in zip(runs, ("false", "true"), strict=True):
        with_dropout = (f"train.steps={STEPS}", "student.dropout=0.2", f"train.activation_checkpointing={again}")
        train_once(str(work), str(run.path), *with_dropout)
    assert same(weights(runs[0]), weights(runs[1]))
    assert figures(runs[0]) == figures(runs[1])


def test_a_run_killed_at_any_moment_and_resumed_equals_an_undisturbed_run(
    work: Path, straight: RunDir, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "killed")
    chance = seeded_random()
    wanted = chance.randint(2, STEPS - 7)  # what is left takes longer than to see it and to kill it
    with forked(train_once, str(work), str(run.path), f"train.steps={STEPS}", log=tmp_path / "log") as process:
        while process.is_alive() and not (run.metrics.exists() and len(figures_whole(run)) >= wanted):
            time.sleep(0.002)
        time.sleep(chance.random() * 0.1)
    assert run.last.exists() or wanted <= 2
    assert not run.summary.exists()
    train_once(str(work), str(run.path), f"train.steps={STEPS}")
    assert same(weights(run), weights(straight))
    assert figures(run) == figures(straight)


def test_the_mean_of_the_best_checkpoints_is_saved_and_a_resumed_run_saves_the_same(work: Path, tmp_path: Path) -> None:
    few = [f"train.steps={STEPS}", "train.average=best", "train.keep_best=2", "train.keep_every=6"]
    runs = [RunDir(tmp_path / "straight"), RunDir(tmp_path / "resumed")]
    for run in runs:
        train_once(str(work), str(run.path), *few)
    best = checkpoint.best(runs[0], 2)
    assert len(best) == 2
    first, second = (load_file(folder / "model.safetensors") for folder in best)
    for name, value in weights(runs[0]).items():
        if value.is_floating_point():
            assert torch.allclose(value, (first[name] + second[name]) / 2, atol=1e-6)
    resume_at(runs[1], 6)
    train_once(str(work), str(runs[1].path), *few)
    assert same(weights(runs[0]), weights(runs[1]))


def test_a_student_learns_the_outputs_of_a_finished_one_too(work: Path, straight: RunDir, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "distilled")
    distill = f"train.distill={{checkpoint: {straight.path}, weight: 2.0, temperature: 1.5}}"
    train_once(str(work), str(run.path), "train.steps=4", distill)
    rows = [row for row in figures(run) if "split" not in row]
    assert len(rows) == 4
    assert all(0 < row["distill"] < math.inf for row in rows)
    assert json.loads((run.model / "config.json").read_text())["model_type"] == "parakeet_ctc"


def test_a_resumed_run_goes_on_with_the_projections_of_its_hidden_layers(work: Path, tmp_path: Path) -> None:
    teacher = write_waveform_checkpoint(tmp_path / "teacher", "Wav2Vec2")
    distill = f"train.distill={{checkpoint: {teacher}, weight: 0, layers: {{1: 1, 2: 2}}}}"
    run = RunDir(tmp_path / "run")
    once = (str(work), str(run.path), "train.steps=4", "train.keep_every=2", "train.average_share=0", distill)
    train_once(*once)
    straight, rows = load_file(run.last / "model.safetensors"), figures(run)
    assert straight["distillation.2.weight"].shape == (48, 32)
    assert not [name for name in weights(run) if name.startswith("distillation")]
    assert all(0 < row["distill_layers"] < 4 for row in rows if "split" not in row)
    for path in (run.summary, run.last, run.best):
        path.unlink()
    for path in (run.model, run.last.with_name("epoch=0-step=4")):  # as if it had been killed after step 2
        shutil.rmtree(path)
    train_once(*once)
    assert same(load_file(run.last / "model.safetensors"), straight)
    assert figures(run) == rows


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
def test_a_checkpoint_of_waveforms_is_trained_with_noise_and_reverb(work: Path, tmp_path: Path) -> None:
    folder = write_waveform_checkpoint(tmp_path / "checkpoint", "Wav2Vec2", norm="layer", masks=0.3)
    for name, seconds in (("noise", 3), ("rooms", 0.2)):
        (tmp_path / name).mkdir()
        random = np.random.default_rng(0)
        samples_T = random.normal(0, 900, int(seconds * 16_000)) * np.linspace(1, 0, int(seconds * 16_000)) ** 4
        (tmp_path / name / "one.flac").write_bytes(codec.encode(samples_T.astype(np.int16), "flac"))
    (tmp_path / "noise" / "torn.flac").write_bytes(b"fLaC and no more")
    augmentation = [f"augment.noise={tmp_path}/noise", f"augment.rirs={tmp_path}/rooms"]
    overrides = [f"student.checkpoint={folder}", *augmentation, "train.steps=3", "train.lr=1e-3"]
    runs = [RunDir(tmp_path / "one"), RunDir(tmp_path / "two")]
    for run in runs:
        train_once(str(work), str(run.path), *overrides)
    assert same(weights(runs[0]), weights(runs[1]))
    assert all(row["loss"] < 1000 for row in figures(runs[0]) if "loss" in row)
    assert "torn.flac" in runs[0].log.read_text()
    assert json.loads((runs[0].model / "config.json").read_text())["model_type"] == "wav2vec2"
    kept = load_file(folder / "model.safetensors")
    frozen = [name for name in kept if "feature_extractor" in name]
    assert all(torch.equal(weights(runs[0])[name], kept[name]) for name in frozen)


@pytest.mark.slow
def test_a_student_of_one_training_starts_the_next_with_all_its_weights(
    work: Path, straight: RunDir, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "next")
    overrides = [f"student.checkpoint={straight.model}", "student.units=checkpoint", "train.steps=1", "train.lr=1e-9"]
    train_once(str(work), str(run.path), *overrides)
    before, now = weights(straight), weights(run)
    learnt = [name for name in before if "running_" not in name and "num_batches" not in name]
    assert all(torch.allclose(now[name], before[name], atol=1e-6) for name in learnt)


@pytest.mark.slow
def test_fp16_finds_its_scale_and_learns_and_goes_on_with_it(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "half")
    overrides = ["train.precision=fp16", "train.checkpoint_every=1", "train.validate_every=100", "train.lr=2e-2"]
    train_once(str(work), str(run.path), *overrides, "train.steps=8", "train.clip_norm=1e9")
    rows = [row for row in figures(run) if "loss" in row]
    norms = [row["grad_norm"] or math.inf for row in rows]
    assert json.loads((run.last / "state.json").read_text())["scaling"]["scale"] > 1
    # gradients are those of fp32, not 65,536 times as large, but for steps whose scale was too high
    plain = RunDir(tmp_path / "plain")
    train_once(str(work), str(plain.path), "train.steps=1", "train.clip_norm=1e9")
    assert min(norms) < 10 * figures(plain)[0]["grad_norm"]
    assert rows[-1]["skipped"] == 0
    assert rows[-1]["loss"] < rows[0]["loss"]
    num_halved = run.log.read_text().count("which is halved")
    assert num_halved == sum(not math.isfinite(norm) for norm in norms)


@pytest.mark.slow
def test_two_uneven_ranks_that_accumulate_have_the_gradient_of_one_process(work: Path, tmp_path: Path) -> None:
    gradient_once(str(work), str(tmp_path / "one"))
    call(gradient_once, str(work), str(tmp_path / "two"), log=tmp_path / "log", ranks=2)
    for kind in ("ctc", "rnnt"):
        one, two = (load_file(tmp_path / folder / f"{kind}.safetensors") for folder in ("one", "two"))
        assert one.keys() == two.keys()
        assert float(torch.nn.utils.get_total_norm(one.values())) > 0.1
        assert distance([*one.values()], [two[name] for name in one]) < 1e-6  # measured: 7e-8


def resume_at(run: RunDir, step: int) -> None:
    """Remove the checkpoints after a step, as if the training had been killed then."""
    for folder in run.checkpoints.glob("epoch=*"):
        if int(folder.name.rpartition("=")[2]) > step:
            shutil.rmtree(folder)
    (newest,) = run.checkpoints.glob(f"*step={step}")
    run.last.unlink()
    run.last.symlink_to(newest.name)


def test_a_checkpoint_is_trained_on_with_dropout_from_the_first_step_and_after_a_resume(
    work: Path, tmp_path: Path
) -> None:
    folder = write_waveform_checkpoint(tmp_path / "checkpoint", "Wav2Vec2")
    few = [f"student.checkpoint={folder}", "train.steps=4", "train.validate_every=2", "train.keep_every=2"]
    runs = [RunDir(tmp_path / name) for name in ("without", "with", "resumed")]
    for run, dropout in zip(runs, (0.0, 0.5, 0.5), strict=True):
        train_once(str(work), str(run.path), *few, f"student.dropout={dropout}")
    losses = [figures(run)[0]["loss"] for run in runs]
    assert losses[0] != losses[1] == losses[2]
    resume_at(runs[2], 2)
    train_once(str(work), str(runs[2].path), *few, "student.dropout=0.5")
    assert same(weights(runs[1]), weights(runs[2]))


def test_a_whisper_is_drawn_to_the_layers_of_its_teacher(work: Path, tmp_path: Path) -> None:
    folder = write_whisper_checkpoint(tmp_path / "checkpoint", ["ba du ko mi"])
    of_teacher = [f"train.distill.checkpoint={folder}", "train.distill.layers={1: 1}"]
    overrides = [f"student.checkpoint={folder}", "student.kind=seq2seq", "plan.budget_ms=60000", *of_teacher]
    run = RunDir(tmp_path / "run")
    train_once(str(work), str(run.path), *overrides, "train.steps=2")
    rows = [row for row in figures(run) if "loss" in row]
    assert len(rows) == 2
    assert all(math.isfinite(row["loss"]) for row in rows)


@pytest.mark.slow
def test_a_whisper_is_trained_on_from_its_checkpoint_and_stopped_and_resumed_to_the_same_bits(
    work: Path, tmp_path: Path
) -> None:
    folder = write_whisper_checkpoint(tmp_path / "checkpoint", ["ba du ko mi"])
    overrides = [f"student.checkpoint={folder}", "student.kind=seq2seq", "train.lr=1e-3", "plan.budget_ms=60000"]
    runs = [RunDir(tmp_path / "one"), RunDir(tmp_path / "two")]
    train_once(str(work), str(runs[0].path), *overrides, "train.steps=4")
    rows = [row for row in figures(runs[0]) if "loss" in row]
    assert len(rows) == 4
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert "pieces" in runs[0].log.read_text()
    log = tmp_path / "log"
    with forked(train_once, str(work), str(runs[1].path), *overrides, "train.steps=4", log=log) as process:
        while process.is_alive() and not runs[1].last.exists():
            time.sleep(0.01)
    train_once(str(work), str(runs[1].path), *overrides, "train.steps=4")
    assert same(weights(runs[0]), weights(runs[1]))


@pytest.fixture(scope="module")
def of_two_ranks(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings of two processes, each in the folder of its kind of student and its way; they are started once."""
    folder = tmp_path_factory.mktemp("two-ranks")
    call(shard_once, str(work), str(folder), log=folder / "log", ranks=2)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAININGS)
def test_a_sharded_student_learns_the_same_and_goes_on_unsharded_and_back(of_two_ranks: Path, kind: str) -> None:
    reference, *ways = TRAININGS[kind]
    wanted = RunDir(of_two_ranks / kind / reference)
    for name in ways:
        run = RunDir(of_two_ranks / kind / name)
        for one, two in ((weights(wanted), weights(run)), (last(wanted), last(run))):
            assert one.keys() == two.keys()
            # a bias before a BatchNorm has no gradient but rounding, of which Adam makes whole steps
            certain = [name for name in one if not name.endswith(("depthwise_conv.bias", "norm.running_mean"))]
            assert len(certain) > 0.9 * len(one)
            most = 1e-3 if kind == "ctc, muon" else 1e-4  # Muon multiplies in bf16, where the CPU is fast at it
            assert distance([one[name] for name in certain], [two[name] for name in certain]) < most
        one, two = ([row["loss"] for row in figures(run_dir) if "loss" in row] for run_dir in (wanted, run))
        assert len(one) == 3
        assert one == pytest.approx(two, rel=1e-4 if kind == "ctc, muon" else 1e-5)
        config = [json.loads((run_dir.model / "config.json").read_text()) for run_dir in (wanted, run)]
        assert config[0] == config[1]


def distance(one: list[torch.Tensor], two: list[torch.Tensor]) -> float:
    """How far two lists of tensors are apart, as a share of their norm."""
    whole = torch.nn.utils.get_total_norm([tensor.double() for tensor in one])
    differences = [a.double() - b.double() for a, b in zip(one, two, strict=True)]
    return float(torch.nn.utils.get_total_norm(differences) / whole)


def last(run: RunDir) -> dict[str, torch.Tensor]:
    """All that a training goes on from."""
    files = [load_file(path) for path in sorted(run.last.glob("*.safetensors"))]
    return {f"{i}.{name}": value for i, file in enumerate(files) for name, value in file.items()}


def test_a_kill_after_the_last_step_of_the_last_epoch_changes_nothing(work: Path, tmp_path: Path) -> None:
    """The first run ends with an epoch; what came after its last step is taken away, and the second run ends it."""
    run = RunDir(tmp_path / "run")
    limits = ("train.epochs=1", "train.validate_every=1", "train.keep_best=9")
    train_once(str(work), str(run.path), *limits)
    names = sorted(path.name for path in run.checkpoints.iterdir())
    summary = {name: value for name, value in json.loads(run.summary.read_text()).items() if name != "seconds"}
    assert summary["epochs"] == 1
    [last] = run.checkpoints.glob("epoch=1-*")
    shutil.rmtree(last)
    shutil.rmtree(run.model)
    run.summary.unlink()
    run.last.unlink()
    run.last.symlink_to(f"epoch=0-step={summary['steps']}")
    train_once(str(work), str(run.path), *limits)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == names
    assert {name: value for name, value in json.loads(run.summary.read_text()).items() if name != "seconds"} == summary
