"""A student learns the outputs of a teacher: they come nearer, and a teacher that does not fit is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import write_whisper_checkpoint
from tones import PLAIN, TEXTS, batch_of, context_of, loss_of, overfitted_student
from voxstill.core.config import Config, Distill, Train, identity
from voxstill.core.errors import ConfigError
from voxstill.nn import losses, students
from voxstill.nn.frontends import LogMelFrontend
from voxstill.storage.rundir import RunDir
from voxstill.tasks import distillation
from voxstill.tasks.ctc import CtcTask
from voxstill.tasks.recognition import new_student, save_student, vocabulary_of
from voxstill.tasks.transducer import TransducerTask
from voxstill.text import tokenizer
from voxstill.training import optim
from voxstill.training.check import check
from voxstill.training.experiment import train_settings

WORDS = tokenizer.train(TEXTS, "word", 9)
BATCH = batch_of(WORDS)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with a student that has learnt a little."""
    run = RunDir(tmp_path_factory.mktemp("teacher"))
    model, _ = overfitted_student(WORDS, timed=True, num_steps=25)
    save_student(run, model, WORDS, LogMelFrontend(PLAIN), model.state_dict())
    return run.path


def config(teacher: Path, **changes: Any) -> Config:
    tree: dict[str, Any] = {"train": {"steps": 1, "distill": {"checkpoint": str(teacher)}}}
    return Config.model_validate({**tree, **changes})


def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_outputs_of_a_student_come_nearer_to_those_of_its_teacher(teacher: Path) -> None:
    cfg = config(teacher)
    task = CtcTask(WORDS, cfg.train, PLAIN, teacher=distillation.load(cfg, WORDS))
    model = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=1)
    optimizer = optim.adamw(model, cfg.train)
    figures = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(task, model, BATCH, context_of(BATCH, 1.0), random())
        loss.value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.train.clip_norm)
        optimizer.step()
        figures.append(float(loss.figures["distill"]))
    assert figures[-1] < 0.3 * figures[0]


def test_the_loss_is_that_of_the_labels_and_the_weighted_divergence_to_each_frame(teacher: Path) -> None:
    distill = Distill(checkpoint=str(teacher), weight=0.5, temperature=2.0)
    cfg = config(teacher, train={"steps": 1, "distill": distill})
    plain, distilled = (CtcTask(WORDS, cfg.train, PLAIN, teacher=t) for t in (None, distillation.load(cfg, WORDS)))
    model = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=1).eval()
    batch = dataclasses.replace(BATCH, weight_B=torch.tensor([1.0, 0.0, 0.5, 1.0]))
    context = context_of(batch, 1.0)
    labels, both = (loss_of(task, model, batch, context, random()) for task in (plain, distilled))
    teacher_model: Any = distillation.load(cfg, WORDS)
    inputs, len_B = plain.frontend.extract(batch.audio_BT, batch.audio_len_B)
    logits_BFV, frames_B = students.logits(model, inputs, len_B)
    teacher_BFV, _ = students.logits(teacher_model._model, inputs, len_B)
    divergence_B = torch.stack(
        [losses.divergence(logits_BFV[b, :n], teacher_BFV[b, :n], 2.0).sum() for b, n in enumerate(frames_B.tolist())]
    )
    wanted = float((divergence_B.detach() * batch.weight_B).sum() / context.num_frames)
    assert float(both.figures["distill"]) == pytest.approx(wanted, rel=1e-3)
    assert float(both.value.detach()) == pytest.approx(float(labels.value.detach()) + 0.5 * wanted, rel=1e-3)


def test_a_transducer_learns_the_frames_by_its_auxiliary_ctc(teacher: Path) -> None:
    cfg = config(teacher)
    plain, distilled = (
        TransducerTask(WORDS, cfg.train, PLAIN, teacher=t) for t in (None, distillation.load(cfg, WORDS))
    )
    model = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=1, kind="rnnt").eval()
    context = context_of(BATCH, 1.0)
    labels, both = (loss_of(task, model, BATCH, context, random()) for task in (plain, distilled))
    part = cfg.train.auxiliary_ctc * float(both.figures["distill"])
    assert part > 0
    assert float(both.value.detach()) == pytest.approx(float(labels.value.detach()) + part, rel=1e-3)


def test_a_whisper_that_is_its_own_teacher_differs_in_nothing_and_a_smaller_one_does(tmp_path: Path) -> None:
    from tasks.test_seq2seq import batch_of as whisper_batch
    from voxstill.tasks.recognition import KINDS, frontend_of

    folder = write_whisper_checkpoint(tmp_path / "whisper", TEXTS, layers=(2, 2))
    for changes, differs in (({}, False), ({"decoder_layers": 1}, True)):
        cfg = config(folder, student={"checkpoint": str(folder), "kind": "seq2seq", "dropout": 0.0, **changes})
        frontend = frontend_of(cfg.model_copy(update={"augment": PLAIN}), None)
        pieces: Any = vocabulary_of(RunDir(tmp_path / "run"), (), cfg, frontend)
        task = KINDS["seq2seq"](pieces, cfg.train, PLAIN, frontend, distillation.load(cfg, pieces))
        model, batch = new_student(cfg, pieces).eval(), whisper_batch(pieces)
        loss = loss_of(task, model, batch, context_of(batch, 1.0), random())
        assert (float(loss.figures["distill"]) > 1e-4) == differs


def test_the_student_takes_the_tokenizer_of_its_teacher(teacher: Path, tmp_path: Path) -> None:
    cfg = config(teacher)
    taken = vocabulary_of(RunDir(tmp_path / "auto"), ["other words"], cfg, LogMelFrontend(PLAIN))
    assert taken == WORDS
    own = config(teacher, student={"units": "word"})
    other = vocabulary_of(RunDir(tmp_path / "own"), ["other words"], own, LogMelFrontend(PLAIN))
    with pytest.raises(ConfigError, match="another tokenizer"):
        distillation.load(own, other)


def test_a_teacher_of_another_kind_is_refused(teacher: Path, tmp_path: Path) -> None:
    folder = write_whisper_checkpoint(tmp_path, TEXTS)
    with pytest.raises(ConfigError, match="whisper"):
        distillation.load(config(folder), WORDS)
    transducer = config(teacher, student={"kind": "rnnt"})
    check(transducer)
    train = {"steps": 1, "auxiliary_ctc": 0.0, "distill": transducer.train.distill}
    with pytest.raises(ConfigError, match="distill"):
        check(config(teacher, student={"kind": "rnnt"}, train=train))
    with pytest.raises(ConfigError, match="distill"):
        check(config(teacher, student={"task": "classes"}))


def test_a_teacher_is_part_of_what_is_trained_and_none_changes_no_recipe(teacher: Path) -> None:
    assert identity(Train(distill=Distill())) == {}
    assert "distill" not in train_settings(Config())
    assert train_settings(config(teacher))["distill"]
