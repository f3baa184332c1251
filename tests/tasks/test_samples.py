"""A student that hears samples: it learns, and `transformers` alone says the same of its folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import write_waveform_checkpoint
from tones import PLAIN, TEXTS, batch_of, loss_of
from voxstill.core.config import Augment, Train
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.nn import checkpoints
from voxstill.tasks.ctc import CtcTask
from voxstill.text import tokenizer
from voxstill.training import optim
from voxstill.training.task import StepContext

WORDS = tokenizer.train(TEXTS, "word", 9)
NUM_STEPS, LR = 110, 6e-3


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_waveform_checkpoint(tmp_path_factory.mktemp("checkpoint"), "Wav2Vec2", norm="layer")


def new(checkpoint: Path, augmentation: Augment = PLAIN) -> tuple[Any, CtcTask]:
    wanted: dict[str, Any] = {
        "keep_vocabulary": False,
        "dropout": 0.0,
        "seed": 0,
        "kind": "ctc",
        "freeze_convolutions": False,
    }
    model = checkpoints.from_checkpoint(str(checkpoint), len(WORDS.pieces), **wanted)
    frontend = checkpoints.make_frontend(model.config, augmentation, checkpoint=str(checkpoint))
    return model, CtcTask(WORDS, Train(), augmentation, frontend)


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student that knows four utterances by heart, as a training leaves it."""
    (model, task), batch = new(checkpoint), batch_of(WORDS)
    context = StepContext(0.0, int(batch.token_len_B.sum()), int(task.frontend.num_frames(batch.audio_len_B).sum()))
    optimizer = optim.make_optimizer(model, Train(lr=LR))
    for k in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1, (k + 1) / 10)
        at = dataclasses.replace(context, progress=k / NUM_STEPS)
        loss_of(task, model, batch, at, torch.Generator().manual_seed(k)).value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
    assert [hypothesis.text for hypothesis in task.decode(model.eval(), batch)] == list(TEXTS)
    student: Path = tmp_path_factory.mktemp("student")
    model.save_pretrained(student)
    WORDS.save(student, task.frontend.extractor)
    return student


@pytest.mark.slow
def test_its_folder_transcribes_the_same_in_transformers_alone_and_as_our_recogniser(folder: Path) -> None:
    from transformers import AutoModelForCTC, AutoProcessor

    batch = batch_of(WORDS)
    clips = [
        (audio_T[:length].numpy(), id_)
        for audio_T, length, id_ in zip(batch.audio_BT, batch.audio_len_B, batch.ids, strict=True)
    ]
    processor, model = AutoProcessor.from_pretrained(folder), AutoModelForCTC.from_pretrained(folder).eval()
    texts = []
    for samples_T, _ in clips:
        inputs = processor(samples_T.astype(np.float32) / 32768, sampling_rate=16_000, return_tensors="pt")
        with torch.no_grad():
            texts.append(processor.decode(model(**inputs).logits.argmax(-1)[0], skip_special_tokens=True))
    assert texts == list(TEXTS)
    recognizer = Recognizer(RecognizerOptions(model=str(folder)))
    recognizer.load()
    hypotheses = recognizer.transcribe_batch([samples_T for samples_T, _ in clips])
    assert [hypothesis.text for hypothesis in hypotheses] == list(TEXTS)
    for text, hypothesis in zip(TEXTS, hypotheses, strict=True):
        starts = [word.start_ms for word in hypothesis.words]
        # a word of the tones begins every 360 ms, and a frame lasts 20
        assert starts == pytest.approx([120 + 360 * i for i in range(len(text.split()))], abs=200)


def test_losses_of_parts_add_up_and_chance_is_the_generators(checkpoint: Path) -> None:
    model, task = new(checkpoint, Augment(noise_prob=1.0, run_prob=0.5, gain_db=3.0))
    model.eval()
    batch = batch_of(WORDS)
    context = StepContext(0.5, int(batch.token_len_B.sum()), 1)

    def loss(seed: int, weight_B: torch.Tensor) -> float:
        part = dataclasses.replace(batch, weight_B=weight_B, tempo_B=torch.tensor([0.9, 1.1, 1.0, 1.05]))
        with torch.no_grad():
            return float(loss_of(task, model, part, context, torch.Generator().manual_seed(seed)).value)

    whole = loss(1, torch.ones(4))
    assert sum(loss(1, weight_B) for weight_B in torch.eye(4)) == pytest.approx(whole, rel=1e-4)
    assert loss(1, torch.ones(4)) == whole != loss(2, torch.ones(4))
