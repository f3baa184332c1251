"""What is tried before a training has the memory of its largest step, in few batches."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import given
from hypothesis import strategies as st

from tones import batch_of
from voxstill.text import tokenizer
from voxstill.training import probe
from voxstill.training.step import PreparedStep

BATCH = batch_of(tokenizer.train(["ba du"], "word", 9), ["ba du"])


def step_of(sizes: list[tuple[int, int]]) -> PreparedStep:
    """A step of batches with so many samples and tokens; the input of each is its number."""
    batches = [
        dataclasses.replace(BATCH, audio_BT=torch.zeros(1, samples), tokens_BU=torch.zeros(1, tokens))
        for samples, tokens in sizes
    ]
    return PreparedStep(batches, list(range(len(batches))))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=9))
def test_at_most_three_batches_have_the_most_of_all(sizes: list[tuple[int, int]]) -> None:
    step = step_of(sizes)
    largest = probe.largest_batches(step)
    assert isinstance(largest.inputs, list)
    chosen = [sizes[i] for i in largest.inputs]  # type: ignore[index]
    assert [(batch.audio_BT.numel(), batch.tokens_BU.numel()) for batch in largest.batches] == chosen
    assert len(set(largest.inputs)) == len(chosen) == min(3, len(sizes))
    assert chosen[-1][0] == max(samples for samples, _ in sizes)
    assert max(samples * tokens for samples, tokens in chosen) == max(samples * tokens for samples, tokens in sizes)
    first_of_many = chosen[0][0] * chosen[0][1]
    assert len(sizes) < 3 or first_of_many <= max(samples * tokens for samples, tokens in chosen[1:])


def test_what_failed_when_it_was_prepared_is_left_as_it_is() -> None:
    failed = PreparedStep([BATCH] * 5, ValueError("no memory"))
    assert probe.largest_batches(failed) is failed
