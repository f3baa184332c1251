"""Heads on encoders: padding changes nothing, and `transformers` says the same of what was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpoints import write_waveform_checkpoint, write_whisper_checkpoint
from voxstill.core.config import Augment, Student
from voxstill.core.errors import ConfigError, DataError
from voxstill.nn import checkpoints, classifiers, losses, students
from voxstill.nn.heads import Task
from voxstill.nn.log_mel import frame_mask

NAMES = ["left", "right", "up"]
LENGTHS = (5000, 3000, 7001, 1200)
ABOUT = {"target": "text", "text": "basic"}
TASKS: tuple[Task, ...] = ("classes", "speakers")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A checkpoint of each family."""
    folders = {}
    for family, norm, head in (
        ("Wav2Vec2", "layer", "ForPreTraining"),
        ("Wav2Vec2", "group", "ForCTC"),
        ("Wav2Vec2Conformer", "layer", "ForCTC"),
        ("WavLM", "layer", "ForCTC"),
        ("Hubert", "group", "ForCTC"),
    ):
        folder = tmp_path_factory.mktemp("checkpoint")
        folders[f"{family} {norm}"] = str(write_waveform_checkpoint(folder, family, norm=norm, head=head, masks=0.5))
    folder = tmp_path_factory.mktemp("parakeet")
    students.build("tiny", 12, dropout=0.1, seed=3).save_pretrained(folder)
    return {**folders, "parakeet": str(folder)}


def student(task: Task, checkpoint: str | None) -> Any:
    return classifiers.new(Student(task=task, checkpoint=checkpoint), NAMES, 0, ABOUT).eval()


def audio() -> tuple[Tensor, Tensor]:
    len_B = torch.tensor(LENGTHS)
    audio_BT = torch.randn(len(LENGTHS), max(LENGTHS), generator=torch.Generator().manual_seed(0)) * 3000
    return (audio_BT * frame_mask(len_B, max(LENGTHS))).to(torch.int16), len_B


def run(model: Any, checkpoint: str | None) -> tuple[Tensor, Tensor | None]:
    frontend = checkpoints.make_frontend(model.config, Augment(), None, checkpoint)
    with torch.no_grad():
        return classifiers.scores(model, *frontend.extract(*audio()))


KINDS = ("Wav2Vec2 layer", "Wav2Vec2 group", "WavLM layer", "Hubert group", "parakeet", None)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(folders: dict[str, str], kind: str | None, task: Task) -> None:
    if task == "speakers" and kind == "Hubert group":
        with pytest.raises(ConfigError, match="hubert"):
            student(task, folders[kind])
        return
    checkpoint = None if kind is None else folders[kind]
    model = student(task, checkpoint)
    together_BC, embedding_BE = run(model, checkpoint)
    assert (embedding_BE is None) == (task == "classes")
    frontend = checkpoints.make_frontend(model.config, Augment(), None, checkpoint)
    audio_BT, len_B = audio()
    for b, num in enumerate(LENGTHS):
        with torch.no_grad():
            alone = classifiers.scores(model, *frontend.extract(audio_BT[b : b + 1, :num], len_B[b : b + 1]))
        assert torch.allclose(alone[0][0], together_BC[b], atol=1e-5)
        if embedding_BE is not None and alone[1] is not None:
            assert torch.allclose(alone[1][0], embedding_BE[b], atol=1e-5)
            assert float(embedding_BE[b].norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["Wav2Vec2 layer", "WavLM layer", "Hubert group"])
def test_transformers_alone_gives_the_same_scores(folders: dict[str, str], kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForAudioClassification

    model = student("classes", folders[kind])
    model.save_pretrained(tmp_path)
    reference = AutoModelForAudioClassification.from_pretrained(tmp_path).eval()
    assert reference.config.id2label == dict(enumerate(NAMES))
    scores_BC, _ = run(model, folders[kind])
    frontend = checkpoints.make_frontend(model.config, Augment(), None, folders[kind])
    for b, num in enumerate(LENGTHS):
        samples_BT, _ = frontend.extract(audio()[0][b : b + 1, :num], torch.tensor([num]))
        with torch.no_grad():
            assert torch.allclose(reference(samples_BT).logits[0], scores_BC[b], atol=1e-5)
    assert torch.equal(run(classifiers.load(tmp_path).eval(), folders[kind])[0], scores_BC)


@pytest.mark.parametrize("family", ["Wav2Vec2 layer", "Wav2Vec2Conformer layer", "WavLM layer"])
def test_transformers_alone_gives_the_same_embeddings_also_of_a_padded_batch(
    folders: dict[str, str], family: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForAudioXVector

    kind = folders[family]
    model = student("speakers", kind)
    model.save_pretrained(tmp_path)
    reference = AutoModelForAudioXVector.from_pretrained(tmp_path).eval()
    _, embedding_BE = run(model, kind)
    frontend = checkpoints.make_frontend(model.config, Augment(), None, kind)
    samples_BT, len_B = frontend.extract(*audio())
    with torch.no_grad():
        out = reference(samples_BT, attention_mask=frame_mask(len_B, samples_BT.shape[1]).long())
    assert embedding_BE is not None
    for reference_BE in (out.embeddings, out.logits):  # its last layer is the identity
        assert torch.allclose(torch.nn.functional.normalize(reference_BE, dim=1), embedding_BE, atol=1e-5)
    assert torch.equal(run(classifiers.load(tmp_path).eval(), kind)[0], run(model, kind)[0])


@pytest.mark.parametrize("task", TASKS)
def test_the_encoder_of_a_fast_conformer_loads_in_transformers(
    folders: dict[str, str], tmp_path: Path, task: Task
) -> None:
    from transformers import AutoModel, ParakeetForCTC

    model = student(task, folders["parakeet"])
    start = ParakeetForCTC.from_pretrained(folders["parakeet"]).encoder.state_dict()
    assert all(torch.equal(value, start[name]) for name, value in model.encoder.state_dict().items())
    model.save_pretrained(tmp_path)
    reference = AutoModel.from_pretrained(tmp_path).state_dict()
    assert reference.keys() == start.keys()
    assert all(torch.equal(value, start[name]) for name, value in reference.items())
    again = classifiers.load(tmp_path).eval()
    assert classifiers.names_of(again) == NAMES
    assert (again.config.target, again.config.text) == ("text", "basic")
    assert torch.allclose(run(again, str(tmp_path))[0], run(model, None)[0], atol=1e-5)
    # and what was learnt of one task is a start for another
    other = student("classes", str(tmp_path)).encoder.state_dict()
    assert all(torch.equal(value, start[name]) for name, value in other.items())


def test_equal_seeds_give_equal_weights(folders: dict[str, str]) -> None:
    for task in TASKS:
        for checkpoint in (folders["Wav2Vec2 layer"], None):
            first, second = (student(task, checkpoint).state_dict() for _ in range(2))
            assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_checkpoint_without_a_head_is_an_error_that_says_why(tmp_path: Path) -> None:
    whisper = write_whisper_checkpoint(tmp_path, ["a b"])
    with pytest.raises(ConfigError, match="whisper"):
        student("classes", str(whisper))
    students.build("tiny", 12, dropout=0.0, seed=3).save_pretrained(tmp_path / "ctc")
    with pytest.raises(DataError, match="without classes"):
        classifiers.load(tmp_path / "ctc")


def test_a_single_frame_has_an_embedding_and_a_gradient() -> None:
    model = student("speakers", None).train()
    features_BFD = torch.randn(2, 20, 80, requires_grad=True)
    cosine_BC, _ = classifiers.scores(model, features_BFD, torch.tensor([20, 3]))
    losses.additive_margin(cosine_BC, torch.tensor([0, 1])).sum().backward()  # type: ignore[no-untyped-call]
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)
    assert features_BFD.grad is not None
    assert bool(features_BFD.grad.isfinite().all())


def test_the_margin_is_that_of_transformers() -> None:
    from transformers.models.wav2vec2.modeling_wav2vec2 import AMSoftmaxLoss

    reference = AMSoftmaxLoss(8, 5, scale=30.0, margin=0.35)
    embedding_BE, class_B = torch.randn(6, 8), torch.tensor([0, 1, 2, 3, 4, 0])
    cosine_BC, _ = classifiers._cosines(embedding_BE, reference.weight)
    expected = reference(embedding_BE, class_B)
    assert torch.allclose(losses.additive_margin(cosine_BC, class_B).mean(), expected, atol=1e-5)
