"""A step that was skipped, once more: what was wrong is named, be it an utterance or the weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tones import TEXTS, batch_of, context_of
from voxstill import cli
from voxstill.core import config
from voxstill.core.config import Config, Pretrain, Student
from voxstill.core.records import Batch
from voxstill.nn import classifiers, students
from voxstill.storage.rundir import RunDir
from voxstill.tasks import pretraining
from voxstill.text import tokenizer
from voxstill.training import checkpoint, guard, optim
from voxstill.training.state import State
from voxstill.training.task import StepContext

WORDS = tokenizer.train(TEXTS, "word", 9)
BATCH = batch_of(WORDS)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """An experiment after its first checkpoint."""
    folder = RunDir(tmp_path / "exp")
    folder.corpus.mkdir(parents=True)
    folder.config.write_text(config.dump(Config()))
    kept = {"unit": WORDS.unit, "pieces": WORDS.pieces, "merges": WORDS.merges}
    (folder.corpus / "vocabulary.json").write_text(json.dumps(kept))
    model = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=0)
    optimizer = optim.make_optimizer(model, Config().train)
    checkpoint.save(folder, model, optimizer, optim.Average(), State(step=1), Config().train)
    return folder


def replayed(run: RunDir, batch: Batch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    path = run.skipped / "step=5-rank=0.safetensors"
    guard.save(path, [batch], context_of(batch, 0.5), step=5, rank=0)
    assert cli.main(["doctor", str(run.path), "--batch", str(path), *options]) == 0
    return capsys.readouterr().out


def test_the_utterances_at_fault_are_named(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    weight_B = torch.ones(len(BATCH.ids))
    weight_B[2] = float("nan")
    report = json.loads(replayed(run, dataclasses.replace(BATCH, weight_B=weight_B), capsys, "--json"))
    assert report["at_fault"] == [BATCH.ids[2]]
    assert [row["finite"] for row in report["utterances"]] == [True, True, False, True]
    assert (report["step"], report["checkpoint"], report["weights_not_finite"]) == (5, "epoch=0-step=1", [])
    assert report["batches"][0]["loss"] is None
    assert "check their texts" in report["verdict"]


def test_a_batch_without_a_fault_is_reported_in_words(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    text = replayed(run, BATCH, capsys)
    assert "everything is finite with these weights" in text
    assert all(id_ in text for id_ in BATCH.ids)


def test_broken_weights_are_not_blamed_on_the_data(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    model = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=0)
    name, weight = next((name, weight) for name, weight in model.named_parameters() if weight.ndim == 2)
    weight.data[0, 0] = float("inf")
    optimizer = optim.make_optimizer(model, Config().train)
    checkpoint.save(run, model, optimizer, optim.Average(), State(step=2), Config().train)
    report = json.loads(replayed(run, BATCH, capsys, "--json"))
    assert report["weights_not_finite"] == [name]
    assert "resume from an older one" in report["verdict"]


def test_a_batch_that_cannot_be_replayed_is_an_error(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", str(tmp_path), "--batch", "none"]) == 2
    assert cli.main(["doctor", str(run.path), "--batch", str(run.config)]) == 3
    message = capsys.readouterr().err
    assert "is not an experiment" in message
    assert "is not a saved batch" in message


def test_a_step_of_a_classification_is_replayed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg, run = Config(student=Student(task="classes", target="dialect")), RunDir(tmp_path / "exp")
    run.corpus.mkdir(parents=True)
    run.config.write_text(config.dump(cfg))
    (run.corpus / "classes.json").write_text('["east", "west"]')
    model = classifiers.new(cfg.student, ["east", "west"], 0, {})
    optimizer = optim.make_optimizer(model, cfg.train)
    checkpoint.save(run, model, optimizer, optim.Average(), State(step=1), cfg.train)
    num, weight_B = len(BATCH.ids), torch.ones(len(BATCH.ids))
    weight_B[1] = float("nan")
    one = {"tokens_BU": torch.arange(num)[:, None] % 2, "token_len_B": torch.ones(num, dtype=torch.long)}
    batch = dataclasses.replace(BATCH, **one, times_BU2=torch.full((num, 1, 2), -1), weight_B=weight_B)
    report = json.loads(replayed(run, batch, capsys, "--json"))
    assert report["at_fault"] == [BATCH.ids[1]]


@pytest.mark.parametrize("own", [Pretrain(size="tiny", mask_ms=60), Pretrain(method="best_rq", mask_ms=160, codes=64)])
def test_a_step_of_a_pre_training_is_replayed_too(
    own: Pretrain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg, run = Config(pretrain=own.model_copy(update={"min_masks": 1, "negatives": 10})), RunDir(tmp_path / "exp")
    run.path.mkdir()
    run.config.write_text(config.dump(cfg))
    run.environment.write_text(json.dumps({"method": own.method}))
    _, model, task = pretraining.begun(cfg)
    optimizer = optim.make_optimizer(model, cfg.train)
    checkpoint.save(run, model, optimizer, optim.Average(), State(step=1), cfg.train)
    num_B, weight_B = task.masks.num_masked(BATCH.audio_len_B), torch.ones(len(BATCH.ids))
    assert bool((num_B > 0).all())
    share = StepContext(0.5, int(num_B.sum()), int(task.frontend.num_frames(BATCH.audio_len_B).sum()), 5)
    weight_B[2] = float("nan")
    path = run.skipped / "step=5-rank=0.safetensors"
    for batch, at_fault in ((BATCH, []), (dataclasses.replace(BATCH, weight_B=weight_B), [BATCH.ids[2]])):
        guard.save(path, [batch], share, step=5, rank=0)
        assert cli.main(["doctor", str(run.path), "--batch", str(path), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["at_fault"] == at_fault
        assert (report["batches"][0]["loss"] is None) is bool(at_fault)
