"""What a batch of classes means: parts of a step add up, weights count, pairs are compared once."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tones import PLAIN, TEXTS, batch_of, loss_of
from voxstill.config import Student
from voxstill.nn import classifiers
from voxstill.nn.hearing import Mels
from voxstill.records import Batch
from voxstill.score import verification
from voxstill.tasks import classify
from voxstill.tasks.task import Share
from voxstill.text import tokenizer

NAMES = ["ba", "du", "ko"]
SHARE = Share(0.0, num_tokens=7, num_frames=100)


def batch() -> Batch:
    spoken, num = batch_of(tokenizer.train(TEXTS, "word", 9)), len(TEXTS)
    return dataclasses.replace(
        spoken,
        tokens_BU=torch.arange(num)[:, None] % len(NAMES),
        token_len_B=torch.ones(num, dtype=torch.long),
        times_BU2=torch.full((num, 1, 2), -1),
    )


def only(whole: Batch, some: slice, **changes: Any) -> Batch:
    fields = [each.name for each in dataclasses.fields(Batch) if each.name != "ids"]
    return Batch(ids=whole.ids[some], **({name: getattr(whole, name)[some] for name in fields} | changes))


@pytest.mark.parametrize("task", ["classes", "speakers"])
def test_the_parts_of_a_step_add_up_to_it_and_weights_count(task: classifiers.Task) -> None:
    model = classifiers.new(Student(task=task), NAMES, 0, {}).eval()
    learnt = classify.ClassifyTask(NAMES, Mels(PLAIN), speakers=task == "speakers")

    def loss(part: Batch) -> float:
        return float(loss_of(learnt, model, part, SHARE, torch.Generator()).value.detach())

    whole = batch()
    alone = [loss(only(whole, slice(i, i + 1))) for i in range(len(TEXTS))]
    assert loss(whole) == pytest.approx(sum(alone), rel=1e-4)
    weight_B = torch.tensor([0.0, 2.0, 1.0, 0.5])
    wanted = sum(w * each for w, each in zip(weight_B.tolist(), alone, strict=True))
    assert loss(dataclasses.replace(whole, weight_B=weight_B)) == pytest.approx(wanted, rel=1e-4)


def test_cosines_are_fp32_in_any_precision() -> None:
    model = classifiers.new(Student(task="speakers"), NAMES, 0, {}).eval()
    inputs, len_B = Mels(PLAIN).plain(batch().audio_BT, batch().audio_len_B)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cosine_BC, embedding_BE = classifiers.scores(model, inputs, len_B)
    assert cosine_BC.dtype == torch.float32
    assert embedding_BE is not None
    assert float((embedding_BE.norm(dim=1) - 1).abs().max()) < 1e-5


@settings(deadline=None)
@given(st.lists(st.sampled_from(["ann", "bob", None]), min_size=2, max_size=12), st.integers(0, 5))
def test_all_pairs_of_known_speakers_are_compared_once(speakers: list[str | None], seed: int) -> None:
    embedding_ND = np.random.default_rng(seed).normal(size=(len(speakers), 3)).astype(np.float32)
    score_N, same_N = classify.compared(embedding_ND, speakers, seed)
    first_N, second_N, expected_N = verification.trials(speakers)
    assert np.array_equal(same_N, expected_N)
    assert np.allclose(score_N, (embedding_ND[first_N] * embedding_ND[second_N]).sum(1), atol=1e-5)


def test_of_many_utterances_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classify, "MOST_COMPARED", 5)
    embedding_ND = np.eye(20, dtype=np.float32)
    speakers = [f"s{i % 3}" for i in range(20)]
    one, two, other = (classify.compared(embedding_ND, speakers, seed) for seed in (0, 0, 1))
    assert len(one[0]) == 10
    assert np.array_equal(one[1], two[1])
    assert len(other[0]) == 10
