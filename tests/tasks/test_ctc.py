"""The CTC task: it learns, it says what it learnt, and what it cuts stays consistent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tones import PLAIN, TEXTS, batch_of, context_of, loss_of, overfitted_student
from voxstill.core.config import Augment, Train
from voxstill.core.records import Batch
from voxstill.nn import losses, students
from voxstill.tasks.ctc import CtcTask, is_timed
from voxstill.text import tokenizer
from voxstill.training.task import Loss

WORDS = tokenizer.train(TEXTS, "word", 9)
LETTERS = tokenizer.train(TEXTS, "character", 0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_loss(task: CtcTask, model: Any, batch: Batch, progress: float = 0.0, seed: int = 0) -> Loss:
    return loss_of(task, model, batch, context_of(batch, progress), generator(seed))


@pytest.mark.parametrize("timed", [True, False], ids=["with word times", "from labels alone"])
def test_a_tiny_student_overfits_four_utterances(timed: bool) -> None:
    task, batch = CtcTask(WORDS, Train(), PLAIN), batch_of(WORDS, timed=timed)
    new = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=0)
    before = float(one_loss(task, new, batch, 1.0).value.detach())
    model, _ = overfitted_student(WORDS, timed=timed, num_steps=58)
    assert float(one_loss(task, model, batch, 1.0).value.detach()) < before / 5
    hypotheses = task.decode(model, batch)
    assert [hypothesis.id for hypothesis in hypotheses] == list(batch.ids)
    assert [hypothesis.text for hypothesis in hypotheses] == list(TEXTS)


@pytest.fixture(scope="module")
def model() -> Any:
    return students.build("tiny", len(LETTERS.pieces), dropout=0.0, seed=0).eval()


def test_losses_of_parts_add_up_to_the_loss_of_the_whole(model: Any) -> None:
    batch = batch_of(LETTERS)
    task, context = CtcTask(LETTERS, Train(), PLAIN), context_of(batch)
    whole = loss_of(task, model, batch, context, generator()).value.detach()
    halves = [
        loss_of(
            task,
            model,
            Batch(
                **{  # type: ignore[arg-type]
                    field.name: getattr(batch, field.name)[part] for field in dataclasses.fields(Batch)
                }
            ),
            context,
            generator(),
        ).value.detach()
        for part in (slice(0, 2), slice(2, 4))
    ]
    assert sum(map(float, halves)) == pytest.approx(float(whole), rel=1e-4)


def test_an_utterance_of_weight_zero_has_no_gradient(model: Any) -> None:
    batch = batch_of(LETTERS)
    task, context = CtcTask(LETTERS, Train(), PLAIN), context_of(batch)
    for progress in (0.0, 1.0):
        at = dataclasses.replace(context, progress=progress)
        weight_B = torch.tensor([1.0, 0.0, 1.0, 0.0])
        weighted = loss_of(task, model, dataclasses.replace(batch, weight_B=weight_B), at, generator()).value
        others = loss_of(task, model, dataclasses.replace(batch, weight_B=1 - weight_B), at, generator()).value
        both = loss_of(task, model, batch, at, generator()).value
        assert float((weighted + others).detach()) == pytest.approx(float(both.detach()), rel=1e-4)
        none = loss_of(task, model, dataclasses.replace(batch, weight_B=weight_B * 0), at, generator()).value
        assert float(none.detach()) == 0


def test_without_word_times_the_loss_is_ctc_alone_from_the_start(model: Any) -> None:
    task, batch = CtcTask(LETTERS, Train(), PLAIN), batch_of(LETTERS, timed=False)
    assert not is_timed(batch).any()
    early, late = one_loss(task, model, batch, 0.0), one_loss(task, model, batch, 1.0)
    assert float(early.value) == pytest.approx(float(late.value), rel=1e-5)
    assert float(early.figures["align"]) == 0
    logits_BFV, out_B = students.logits(model, *task.frontend.extract(batch.audio_BT, batch.audio_len_B))
    plain_B = losses.ctc(logits_BFV, out_B, batch.tokens_BU, batch.token_len_B, LETTERS.blank_id)
    assert float(late.value) == pytest.approx(float(plain_B.sum() / batch.token_len_B.sum()), rel=1e-4)


def test_two_views_that_are_equal_cost_what_one_does_and_unequal_ones_are_drawn_together(model: Any) -> None:
    batch, noisy = batch_of(LETTERS), Augment(noise_prob=1.0, tempo=0.0)
    once, twice = CtcTask(LETTERS, Train(), PLAIN), CtcTask(LETTERS, Train(consistency=0.2), PLAIN)
    for progress in (0.0, 1.0):
        one, two = (one_loss(task, model, batch, progress) for task in (once, twice))
        assert float(two.value.detach()) == pytest.approx(float(one.value.detach()), rel=1e-4)
        assert float(two.figures["apart"]) == pytest.approx(0, abs=1e-6)
    noisy_loss = one_loss(CtcTask(LETTERS, Train(consistency=0.2), noisy), model, batch, 1.0)
    assert float(noisy_loss.figures["apart"]) > 1e-4
    whole, parts = float(noisy_loss.value.detach()), []
    for weight_B in torch.eye(4):
        part = one_loss(
            CtcTask(LETTERS, Train(consistency=0.2), noisy), model, dataclasses.replace(batch, weight_B=weight_B), 1.0
        )
        parts.append(float(part.value.detach()))
    assert sum(parts) == pytest.approx(whole, rel=1e-4)


def test_label_smoothing_reaches_the_loss(model: Any) -> None:
    batch = batch_of(LETTERS)
    plain, smooth = (one_loss(CtcTask(LETTERS, Train(label_smoothing=s), PLAIN), model, batch, 1.0) for s in (0.0, 0.5))
    assert float(smooth.value.detach()) < 0.7 * float(plain.value.detach())


def test_the_loss_is_a_function_of_the_generator(model: Any) -> None:
    task, batch = CtcTask(LETTERS, Train(), Augment(run_prob=0.5, noise_prob=1.0)), batch_of(LETTERS)
    values = [float(one_loss(task, model, batch, 0.5, seed).value) for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("vocabulary", [WORDS, LETTERS], ids=["words", "characters"])
@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from(["ba", "du", "ko", "mi"]), min_size=1, max_size=5), min_size=1, max_size=4),
    seed=st.integers(0, 999),
)
def test_a_run_of_words_keeps_tokens_times_and_audio_together(
    vocabulary: tokenizer.Vocabulary, texts: list[list[str]], seed: int
) -> None:
    phrases = [" ".join(words) for words in texts]
    batch = batch_of(vocabulary, phrases)
    task = CtcTask(vocabulary, Train(), plain_but(run_prob=1.0))
    shorter = task._shortened(batch, generator(seed))
    for b, phrase in enumerate(phrases):
        num, samples = int(shorter.token_len_B[b]), int(shorter.audio_len_B[b])
        ids = shorter.tokens_BU[b, :num].tolist()
        run = vocabulary.decode(ids)
        assert run
        assert f" {run} " in f" {phrase} "
        assert (shorter.tokens_BU[b, num:] == -1).all()
        times_U2 = shorter.times_BU2[b, :num]
        assert (shorter.times_BU2[b, num:] == -1).all()
        assert 0 < samples <= int(batch.audio_len_B[b])
        assert (times_U2 >= 0).all()
        assert (times_U2 * 16 <= samples).all()
        own_T = shorter.audio_BT[b, :samples]
        assert not shorter.audio_BT[b, samples:].any()
        first = range(0, int(batch.audio_len_B[b]) - samples + 1, 160)
        starts = [start for start in first if torch.equal(batch.audio_BT[b, start : start + samples], own_T)]
        assert len(starts) == 1
        times_as_they_were = (times_U2 + starts[0] // 16).tolist()
        everything = [tuple(times) for times in batch.times_BU2[b].tolist()]
        assert all(tuple(times) in everything for times in times_as_they_were)
    assert is_timed(shorter).all()
    assert shorter.audio_BT.shape[1] == int(shorter.audio_len_B.max())


def plain_but(**changes: Any) -> Augment:
    return Augment(**{**PLAIN.model_dump(), **changes})


def test_utterances_without_times_are_never_cut() -> None:
    batch = batch_of(WORDS, timed=False)
    task = CtcTask(WORDS, Train(), plain_but(run_prob=1.0))
    shorter = task._shortened(batch, generator())
    assert torch.equal(shorter.audio_len_B, batch.audio_len_B)
    assert torch.equal(shorter.tokens_BU, batch.tokens_BU)
    assert torch.equal(shorter.times_BU2, batch.times_BU2)
    assert torch.equal(shorter.audio_BT, batch.audio_BT)


def test_a_run_never_makes_a_label_that_ctc_cannot_learn(model: Any) -> None:
    texts = ["bada ba", "kodumiba mi"]  # 240 ms a word are three frames: too few for eight characters
    vocabulary = tokenizer.train(texts, "character", 0)
    batch = batch_of(vocabulary, ["ba ba", "mi mi"])
    tokens = [vocabulary.encode(text)[0] for text in texts]
    times = [[[120, 360]] * (len(t) - 2) + [[480, 720]] * 2 for t in tokens]
    batch = dataclasses.replace(
        batch,
        tokens_BU=torch.tensor([t + [-1] * (max(map(len, tokens)) - len(t)) for t in tokens]),
        token_len_B=torch.tensor([len(t) for t in tokens]),
        times_BU2=torch.tensor([t + [[-1, -1]] * (max(map(len, tokens)) - len(t)) for t in times]),
    )
    task = CtcTask(vocabulary, Train(), plain_but(run_prob=1.0))
    student = students.build("tiny", len(vocabulary.pieces), dropout=0.0, seed=0).eval()
    for seed in range(20):
        assert one_loss(task, student, batch, 1.0, seed).value.isfinite()
