"""A student learns the outputs of a teacher: they come nearer, and a teacher that does not fit is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from checkpoints import write_waveform_checkpoint, write_whisper_checkpoint
from tones import PLAIN, TEXTS, batch_of, context_of, loss_of, overfitted_student
from voxstill.core.config import Config, Distill, Train, identity
from voxstill.core.errors import ConfigError
from voxstill.decoding.checkpoint_files import model_folder
from voxstill.nn import checkpoints, students
from voxstill.nn.distillation import divergence
from voxstill.nn.frontends import LogMelFrontend
from voxstill.nn.log_mel import LogMel
from voxstill.storage.rundir import RunDir
from voxstill.tasks import distillation
from voxstill.tasks.ctc import CtcTask
from voxstill.tasks.recognition import new_student, save_student, vocabulary_of
from voxstill.tasks.transducer import TransducerTask
from voxstill.text import tokenizer
from voxstill.training import optim, parallel
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
    optimizer = optim.make_optimizer(model, cfg.train)
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
    teacher_BFV, _ = students.logits(teacher_model.model, inputs, len_B)
    divergence_B = torch.stack(
        [divergence(logits_BFV[b, :n], teacher_BFV[b, :n], 2.0).sum() for b, n in enumerate(frames_B.tolist())]
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


@pytest.mark.parametrize("kind", ["ctc", "streaming"])
def test_a_streaming_student_learns_from_one_that_streams_and_from_one_that_does_not(
    teacher: Path, streaming_tone_student: Path, kind: str
) -> None:
    folder = teacher if kind == "ctc" else streaming_tone_student
    train = {"distill": {"checkpoint": str(folder), "layers": {2: 2}}}
    cfg = config(folder, student={"kind": "rnnt", "streaming": True}, train=train)
    pieces = tokenizer.from_checkpoint(str(model_folder(str(folder))))
    frontend = LogMelFrontend(PLAIN, None, LogMel(normalization="none"), is_streaming=True)
    taught = distillation.load(cfg, pieces)
    assert taught is not None
    new: dict[str, Any] = {"kind": "rnnt", "normalization": "none", "streaming": True}
    model = students.build("tiny", len(pieces.pieces), dropout=0.0, seed=1, **new)
    distillation.attach(model, taught, 0)
    task = TransducerTask(pieces, cfg.train, PLAIN, frontend, teacher=taught)
    loss = loss_of(task, model, batch_of(pieces), context_of(BATCH, 1.0), random())
    loss.value.backward()  # type: ignore[no-untyped-call]
    assert float(loss.figures["distill"]) > 0
    assert float(loss.figures["distill_layers"]) > 0
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


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
    with pytest.raises(ConfigError, match="auxiliary_ctc"):
        distillation.load(config(teacher, student={"kind": "rnnt"}, train=train), WORDS)
    with pytest.raises(ConfigError, match="distill"):
        check(config(teacher, student={"task": "classes"}))
    with pytest.raises(ConfigError, match="has no layers"):
        check(config(teacher, train={"steps": 1, "distill": {"checkpoint": str(teacher), "weight": 0.0}}))


def test_a_teacher_is_part_of_what_is_trained_and_none_changes_no_recipe(teacher: Path) -> None:
    assert identity(Train(distill=Distill())) == {}
    assert "distill" not in train_settings(Config())
    assert train_settings(config(teacher))["distill"]


@pytest.mark.parametrize(("kind", "auxiliary_ctc"), [("rnnt", 0.3), ("tdt", 0.0)])
def test_a_transducer_learns_the_lattice_of_another_one_and_nothing_of_itself(
    kind: Any, auxiliary_ctc: float, tmp_path: Path
) -> None:
    itself, other = (
        students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=seed, kind=kind).eval() for seed in (1, 2)
    )
    run = RunDir(tmp_path / "transducer")
    save_student(run, itself, WORDS, LogMelFrontend(PLAIN), itself.state_dict())
    distill = {"checkpoint": str(run.path), "weight": 0.5}
    train = {"steps": 1, "auxiliary_ctc": auxiliary_ctc, "distill": distill}
    cfg = config(tmp_path, student={"kind": kind}, train=train)
    taught = distillation.load(cfg, WORDS)
    plain, distilled = (TransducerTask(WORDS, cfg.train, PLAIN, teacher=t) for t in (None, taught))
    context, random_ = context_of(BATCH, 1.0), random()
    assert float(loss_of(distilled, itself, BATCH, context, random_).figures["distill"]) == pytest.approx(0, abs=1e-5)
    labels, both = (loss_of(task, other, BATCH, context, random()) for task in (plain, distilled))
    assert float(both.figures["distill"]) > 1e-4
    added = float(both.value.detach()) - float(labels.value.detach())
    assert added == pytest.approx(0.5 * float(both.figures["distill"]), rel=1e-2)
    with pytest.raises(ConfigError, match="of kind ctc"):
        distillation.load(config(run.path), WORDS)


def with_layers(folder: Path, layers: dict[int, int], **student: Any) -> Config:
    """Layers alone, of a teacher with another tokenizer."""
    distill = {"checkpoint": str(folder), "weight": 0.0, "layers": layers, "layer_weight": 0.5}
    return config(folder, student=student, train={"steps": 1, "distill": distill})


@pytest.mark.parametrize("kind", ["ctc", "rnnt"])
@pytest.mark.parametrize("family", ["Wav2Vec2", "Whisper"])
def test_layers_are_drawn_to_those_of_any_encoder_by_a_projection_that_no_model_folder_has(
    kind: Any, family: str, tmp_path: Path
) -> None:
    folder = tmp_path / "teacher"
    if family == "Whisper":
        write_whisper_checkpoint(folder, TEXTS, layers=(2, 1))
    else:
        write_waveform_checkpoint(folder, family, head="Model")  # without a head
    cfg = with_layers(folder, {2: 1, 4: 2}, kind=kind)
    taught = distillation.load(cfg, WORDS)
    assert taught is not None
    model = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=1, kind=kind).eval()
    num_before = students.num_parameters(model)
    distillation.attach(model, taught, seed=0)
    projections: Any = getattr(model, students.TRAINING_ONLY)
    assert {name: (layer.in_features, layer.out_features) for name, layer in projections.items()} == {
        "2": (128, 48),
        "4": (128, 48),
    }
    assert students.num_parameters(model) == num_before
    task = (CtcTask if kind == "ctc" else TransducerTask)(WORDS, cfg.train, PLAIN, teacher=taught)
    plain = type(task)(WORDS, cfg.train, PLAIN)
    context = context_of(BATCH, 1.0)
    labels, both = (loss_of(t, model, BATCH, context, random()) for t in (plain, task))
    distance = float(both.figures["distill_layers"])
    assert 0.5 < distance < 4
    assert "distill" not in both.figures
    assert float(both.value.detach()) == pytest.approx(float(labels.value.detach()) + 0.5 * distance, rel=1e-3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(6):
        optimizer.zero_grad()
        loss = loss_of(task, model, BATCH, context, random())
        loss.value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert projections["2"].weight.grad.abs().sum() > 0
    assert float(loss.figures["distill_layers"]) < 0.9 * distance
    run = RunDir(tmp_path / "run")
    save_student(run, model, WORDS, LogMelFrontend(PLAIN), model.state_dict())
    assert not [name for name in load_file(run.model / "model.safetensors") if students.TRAINING_ONLY in name]


def test_layers_and_outputs_come_from_one_pass_and_equal_widths_need_no_projection(teacher: Path) -> None:
    distill = {"checkpoint": str(teacher), "layers": {1: 1, 4: 4}}
    cfg = config(teacher, train={"steps": 1, "distill": distill})
    taught = distillation.load(cfg, WORDS)
    assert taught is not None
    task, model = CtcTask(WORDS, cfg.train, PLAIN, teacher=taught), checkpoints.load(teacher / "model").eval()
    distillation.attach(model, taught, seed=0)
    assert not hasattr(model, students.TRAINING_ONLY)
    figures = loss_of(task, model, BATCH, context_of(BATCH, 1.0), random()).figures
    assert float(figures["distill"]) == pytest.approx(0, abs=1e-5)
    assert float(figures["distill_layers"]) == pytest.approx(0, abs=1e-5)


def test_a_whisper_is_drawn_to_the_layers_of_a_larger_one(tmp_path: Path) -> None:
    from tasks.test_seq2seq import batch_of as whisper_batch
    from voxstill.tasks.recognition import KINDS, frontend_of

    folder = write_whisper_checkpoint(tmp_path / "whisper", TEXTS, layers=(2, 2))
    for layers, differs in (({2: 2}, False), ({1: 2}, True)):
        distill = {"checkpoint": str(folder), "layers": layers}
        student = {"checkpoint": str(folder), "kind": "seq2seq", "dropout": 0.0}
        cfg = config(folder, student=student, train={"steps": 1, "distill": distill})
        frontend = frontend_of(cfg.model_copy(update={"augment": PLAIN}), None)
        pieces: Any = vocabulary_of(RunDir(tmp_path / "run"), (), cfg, frontend)
        taught = distillation.load(cfg, pieces)
        task = KINDS["seq2seq"](pieces, cfg.train, PLAIN, frontend, taught)
        model, batch = new_student(cfg, pieces).eval(), whisper_batch(pieces)
        figures = loss_of(task, model, batch, context_of(batch, 1.0), random()).figures
        assert (float(figures["distill_layers"]) > 1e-3) == differs


def test_a_layer_that_is_not_there_is_named(teacher: Path, tmp_path: Path) -> None:
    model = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=1)
    for layers, match in (({5: 1}, "layer 5 of the student"), ({1: 0}, "layer 0 of the teacher")):
        taught = distillation.load(with_layers(teacher, layers), WORDS)
        assert taught is not None
        with pytest.raises(ConfigError, match=match) as raised:
            distillation.attach(model, taught, seed=0)
        assert "1 to 4" in raised.value.why


def test_layers_computed_again_in_the_backward_pass_give_the_same_gradients(tmp_path: Path) -> None:
    cfg = with_layers(write_waveform_checkpoint(tmp_path, "Hubert"), {1: 1, 3: 2})
    taught = distillation.load(cfg, WORDS)
    assert taught is not None
    gradients = []
    for again in (False, True):
        model = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=1)
        distillation.attach(model, taught, seed=0)
        if again:
            parallel.checkpoint_activations(model)
        task = CtcTask(WORDS, cfg.train, PLAIN, teacher=taught)
        loss_of(task, model, BATCH, context_of(BATCH, 1.0), random()).value.backward()  # type: ignore[no-untyped-call]
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
