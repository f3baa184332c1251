"""What a batch of classes means: parts of a step add up, weights count, pairs are compared once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tones import PLAIN, TEXTS, batch_of, loss_of
from voxstill.core.config import Student
from voxstill.core.records import Batch
from voxstill.nn import classifiers
from voxstill.nn.frontends import LogMelFrontend
from voxstill.tasks import classify
from voxstill.text import tokenizer
from voxstill.training.task import StepContext

NAMES = ["ba", "du", "ko"]
CONTEXT = StepContext(0.0, num_tokens=7, num_frames=100, num_utterances=7)


def batch() -> Batch:
    spoken, num = batch_of(tokenizer.train(TEXTS, "word", 9)), len(TEXTS)
    return dataclasses.replace(
        spoken,
        tokens_BU=torch.arange(num)[:, None] % len(NAMES),
        token_len_B=torch.ones(num, dtype=torch.long),
        times_BU2=torch.full((num, 1, 2), -1),
    )


def only(whole: Batch, rows: slice, **changes: Any) -> Batch:
    fields = [field.name for field in dataclasses.fields(Batch) if field.name != "ids"]
    return Batch(ids=whole.ids[rows], **({name: getattr(whole, name)[rows] for name in fields} | changes))


@pytest.mark.parametrize("task", ["classes", "speakers"])
def test_the_parts_of_a_step_add_up_to_it_and_weights_count(task: classifiers.Task) -> None:
    model = classifiers.new(Student(task=task), NAMES, 0, {}).eval()
    learnt = classify.ClassifyTask(NAMES, LogMelFrontend(PLAIN), speakers=task == "speakers")

    def loss(part: Batch) -> float:
        return float(loss_of(learnt, model, part, CONTEXT, torch.Generator()).value.detach())

    whole = batch()
    alone = [loss(only(whole, slice(i, i + 1))) for i in range(len(TEXTS))]
    assert loss(whole) == pytest.approx(sum(alone), rel=1e-4)
    weight_B = torch.tensor([0.0, 2.0, 1.0, 0.5])
    wanted = sum(w * loss for w, loss in zip(weight_B.tolist(), alone, strict=True))
    assert loss(dataclasses.replace(whole, weight_B=weight_B)) == pytest.approx(wanted, rel=1e-4)


def test_cosines_are_fp32_in_any_precision() -> None:
    model = classifiers.new(Student(task="speakers"), NAMES, 0, {}).eval()
    inputs, len_B = LogMelFrontend(PLAIN).extract(batch().audio_BT, batch().audio_len_B)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cosine_BC, embedding_BE = classifiers.scores(model, inputs, len_B)
    assert cosine_BC.dtype == torch.float32
    assert embedding_BE is not None
    assert float((embedding_BE.norm(dim=1) - 1).abs().max()) < 1e-5
