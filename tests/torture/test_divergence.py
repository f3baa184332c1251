"""Trainings on real speech that are made to diverge: each ends, keeps a checkpoint from before, and its advice works.

The advice is followed to the letter: the command that was printed is run, with the path of the configuration in it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import forked
from torture.runs import SHARE
from voxstill.storage.rundir import RunDir
from voxstill.training import state as state_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SHARE is None, reason="the short forms are in tests/training/test_skipped_steps.py"),
]
SOUND, STEPS = 100, 160
WITHIN_S = 900
SETTINGS = """
work: {folder}/work
engine: inline
plan: {{budget_ms: 6000}}
train: {{steps: {steps}, checkpoint_every: 20, validate_every: 50, log_every: 5, seed_mode: debug, loader_workers: 0,
  root: {folder}/exp}}
"""
CASES = {
    "a rate 100 times as high": ("train.lr=0.2",),
    "a rate at which fp16 overflows": ("train.lr=90.0", "train.precision=fp16"),
    "a part of the loss that counts 1e30 times": ("train.consistency=1e30",),
    "a data set that counts a million times, in fp16": ("train.dataset_weights={digits: 1e6}", "train.precision=fp16"),
    "weights that nearly vanish in each step": ("train.weight_decay=450",),
    "gradients that nothing clips": ("train.clip_norm=1e9", "train.lr=5.0"),
}
"""What a training that was sound until then goes on with."""


class Speech:
    """Spoken digits, and commands on them."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder, self._source = folder, source

    def configure(self, name: str) -> Path:
        """A configuration whose work folder has shards of one utterance in five."""
        folder = self.folder / name
        folder.mkdir()
        rows = [json.loads(line) for line in (self._source / "manifest.jsonl").read_text().splitlines()]
        rows = [row for row in rows if row["split"] in ("train", "dev")][::5]
        rows = [row | {"audio": str(self._source / row["audio"]), "dataset": "digits"} for row in rows]
        manifest, path = folder / "manifest.jsonl", folder / "train.yaml"
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
        path.write_text(SETTINGS.format(folder=folder, steps=STEPS))
        self.run("shard", folder / "work", "--from", manifest, "--config", path)
        return path

    def run(self, *words: object) -> tuple[int | None, str]:
        """One command: its exit code, and what it printed."""
        log = self.folder / "log"
        log.write_text("")
        with forked.forked(forked.command, words, log=log) as process:
            process.join(WITHIN_S)
            assert process.exitcode is not None, f"no end within {WITHIN_S} s: {words}"
        assert "Traceback" not in log.read_text()
        return process.exitcode, log.read_text()


def advised(text: str, config: Path) -> list[str]:
    """The words of the last training that was printed."""
    words = shlex.split(re.findall("`voxstill (train CONFIG [^`]*)`", text)[-1])
    return [words[0], str(config), *words[2:]]


@pytest.fixture(scope="module")
def speech(shared_data: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Speech:
    return Speech(tmp_path_factory.mktemp("digits"), shared_data("fsdd"))


@pytest.fixture(scope="module")
def config(speech: Speech) -> Path:
    return speech.configure("sound")


@pytest.fixture(scope="module")
def sound(speech: Speech, config: Path) -> RunDir:
    """A student that has learnt for a while."""
    code, text = speech.run("train", config, "--set", f"train.steps={SOUND}")
    assert code == 0, text
    return only(config)


def only(config: Path) -> RunDir:
    """The newest experiment of a configuration."""
    return RunDir(max((config.parent / "exp").glob("*_student"), key=lambda path: path.stat().st_mtime))


def summary(run: RunDir) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(run.summary.read_text())
    return figures


@pytest.mark.parametrize("cause", CASES)
def test_a_training_that_diverges_goes_on_from_before_as_it_says(
    speech: Speech, sound: RunDir, config: Path, torture: Any, tmp_path: Path, cause: str
) -> None:
    run = RunDir(tmp_path / "experiment")
    shutil.copytree(sound.path, run.path, symlinks=True)
    settings = [word for setting in CASES[cause] for word in ("--set", setting)]
    code, text = speech.run("train", config, "--continue", run.path, *settings)
    noticed = re.findall(r"step=(\d+)-rank|loss has risen from ([\d.]+ to [\d.e+]+)", text)[-1:]
    assert noticed, text
    words = advised(text, config)
    before = Path(words[words.index("--continue") + 1])
    assert {setting.partition("=")[0] for setting in CASES[cause]} == {
        word.partition("=")[0] for word in words if word.startswith("train.")
    }
    assert state_file.faults(before) == {}
    assert before.name.endswith(f"step={SOUND}")
    weights, expected = (load_file(folder / "model.safetensors") for folder in (before, sound.last.resolve()))
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    followed, after = speech.run(*words)
    assert followed == 0, after
    assert "the training diverges" not in after
    now = summary(run)
    assert (now["steps"], now["skipped"]) == (STEPS, 0)
    assert now["loss"] < summary(sound)["loss"]
    torture.tell(
        f"divergence, {cause}",
        f"exit {code}, noticed at {noticed}; `{shlex.join(words[4:])}`: loss {now['loss']:.2f} after {STEPS} steps",
    )


def test_a_checkpoint_that_gives_no_finite_loss_is_blamed(speech: Speech, sound: RunDir, torture: Any) -> None:
    config = speech.configure("broken")
    broken = config.parent / "checkpoint"
    shutil.copytree(sound.model, broken)
    (broken / "SHA256SUMS").unlink()
    weights = load_file(broken / "model.safetensors")
    name = next(name for name, value in weights.items() if name.endswith("linear1.weight") and value.ndim > 1)
    save_file(weights | {name: torch.full_like(weights[name], 3e38)}, broken / "model.safetensors", {"format": "pt"})
    code, text = speech.run("train", config, "--set", f"student.checkpoint={broken}")
    assert code == 6, text
    assert "`student.checkpoint`" in text
    (doctor,) = re.findall("`voxstill (doctor [^`]*)`", text.partition("error: ")[2])
    doctored, verdict = speech.run(*shlex.split(doctor))
    assert doctored == 0, verdict
    assert "the weights are at fault, not the audio" in verdict
    followed, after = speech.run("train", config, "--set", f"student.checkpoint={sound.model}")
    assert followed == 0, after
    now = summary(only(config))
    assert now["loss"] < summary(sound)["loss"]
    torture.tell("divergence, a broken checkpoint", f"exit {code}; with a sound one: loss {now['loss']:.2f}")
