"""What the steps of a training take of memory and of operations, as a function of the shapes of their batches.

A few small batches are made for their shapes alone (`live_bytes`). What is alive in a moment of a step is a polynomial:
of degree 1 in the number of utterances and 2 in their length, for the scores of the attention. So three lengths and two
numbers of utterances tell it of all batches.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.records import Batch
from voxstill.data.batching import Ints
from voxstill.data.plan import EpochPlan
from voxstill.training.live_bytes import LiveBytes, Moment
from voxstill.training.parallel import checkpoint_activations
from voxstill.training.task import StepContext, Task, make_generator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Floats = NDArray[np.float64]
_UNIT_MS = 1_280
"""Lengths are multiples of it: whole output frames of all students, and longer than the spans that are masked."""
_LENGTHS = (1, 2, 3)
_UTTERANCES = (2, 3)
"""One alone is treated otherwise by some models: it has no padding."""
_FRAME_MS = 80
_MOST_OF_HELD = 1.5
"""The most that is alive in a backward pass, gradients aside, as a share of what the forward pass keeps: 1.14 was
measured, with one utterance of a minute."""
_PREFIX = 8
"""Most tokens that stand before a text."""
_MOST_TOKENS = 48
"""In the longest of these batches, of a vocabulary of characters."""
_HALF = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Shapes:
    """Batches (N,): their utterances, and the length that these are padded to."""

    num_utterances_N: Ints
    duration_ms_N: Ints

    @classmethod
    def of_plan(cls, plan: EpochPlan) -> Shapes:
        """The batches of an epoch."""
        return cls(np.diff(plan.bounds), plan.longest_ms_by_batch)

    def at(self, k: int) -> Shapes:
        """One of them."""
        return Shapes(self.num_utterances_N[k : k + 1], self.duration_ms_N[k : k + 1])


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes and floating-point operations of a batch by its shape, beside the weights and what the optimizer remembers.

    `gradients` is what the backward pass leaves behind.
    """

    gradients: int
    operations: int
    """Kernels of a step, forward and backward; a transducer has more with each frame."""
    prepared_C: Floats
    held_C: Floats
    peak_CM: Floats
    """Of each moment of a step."""
    flops_C: Floats

    def prepared(self, shapes: Shapes) -> Ints:
        """The most bytes that it takes to augment a batch and to compute its features (N,)."""
        return _bytes(_terms(shapes) @ self.prepared_C)

    def held(self, shapes: Shapes) -> Ints:
        """Bytes that are held from the forward to the backward pass (N,)."""
        return _bytes(_terms(shapes) @ self.held_C)

    def peak(self, shapes: Shapes) -> Ints:
        """The most bytes in a step (N,), the gradients that there are by then included."""
        return _bytes(np.maximum((_terms(shapes) @ self.peak_CM).max(axis=1), self.gradients))

    def flops(self, shapes: Shapes) -> Floats:
        """Floating-point operations of matrices and convolutions, forward and backward (N,)."""
        return np.maximum(_terms(shapes) @ self.flops_C, 0.0)


def measure(
    model: PreTrainedModel, task: Task, tokens_per_s: float, precision: str, *, checkpoints_activations: bool = False
) -> StepMemory:
    """Make a few small batches of `tokens_per_s` for their shapes alone; the model is left as it was."""
    shapes = Shapes(
        np.array([num for num in _UTTERANCES for _ in _LENGTHS]),
        np.array([_UNIT_MS * length for _ in _UTTERANCES for length in _LENGTHS]),
    )
    most = getattr(model.config, "max_target_positions", None)  # of the decoder of a Whisper
    tokens_per_unit = max(1, math.ceil(tokens_per_s * _UNIT_MS / 1000))
    if most is not None:
        tokens_per_unit = max(1, min(tokens_per_unit, (most - _PREFIX) // _LENGTHS[-1]))
    with _untouched(model, checkpoints_activations):
        probes = [
            probe(model, task, int(num), int(ms), tokens_per_unit * int(ms) // _UNIT_MS, _HALF[precision])
            for num, ms in zip(shapes.num_utterances_N, shapes.duration_ms_N, strict=True)
        ]
    moments = sorted(set.intersection(*(set(probe.peaks) for probe in probes)))
    values_NK = np.array(
        [[probe.prepared, probe.held, probe.flops, *(probe.peaks[moment] for moment in moments)] for probe in probes],
        np.float64,
    )
    prepared_C, held_C, flops_C, *peaks = np.linalg.solve(_terms(shapes), values_NK).T
    return StepMemory(probes[0].gradients, probes[0].operations, prepared_C, held_C, np.stack(peaks, axis=1), flops_C)


def upper_bound(
    model: PreTrainedModel, task: Task, precision: str, shapes: Shapes, *, checkpoints_activations: bool = False
) -> Ints:
    """More bytes than the steps of these batches can take (N,), by one small batch: see `StepMemory.peak`."""
    num, duration_ms = _UTTERANCES[0], _UNIT_MS * _LENGTHS[-1]
    with _untouched(model, checkpoints_activations):
        most_tokens = getattr(model.config, "max_target_positions", _PREFIX + _MOST_TOKENS) - _PREFIX
        small = probe(model, task, num, duration_ms, min(most_tokens, _MOST_TOKENS), _HALF[precision])
    more_N = np.maximum(shapes.num_utterances_N / num, 1.0)
    longer_N = np.maximum(shapes.duration_ms_N / duration_ms, 1.0)
    return small.gradients + _bytes(_MOST_OF_HELD * small.held * more_N * longer_N**2)


@dataclass(frozen=True, slots=True)
class Probe:
    """What one batch takes: bytes, floating-point operations, and kernels."""

    prepared: int
    held: int
    gradients: int
    flops: int
    operations: int
    peaks: Mapping[Moment, int]


def probe(
    model: PreTrainedModel, task: Task, num_utterances: int, duration_ms: int, num_tokens: int, half: torch.dtype | None
) -> Probe:
    """A step of one batch, of which nothing large is computed."""
    torch.manual_seed(0)
    np.random.seed(0)
    batch = silent_batch(num_utterances, duration_ms, num_tokens)
    context = _context(num_utterances, duration_ms, num_tokens)
    counter = LiveBytes([*model.parameters(), *model.buffers()])
    with counter, counter.moments_of(model):
        model_input = task.prepare(batch, 0.0, make_generator(torch.device("cpu"), 0, 0, 0, 0))
        prepared = max(counter.peaks.values())
        counter.peaks.clear()
        with counter.shapes_only():
            with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
                loss = task.loss(model, model_input, context).value
            held = counter.live
            counter.backward(loss)
    gradients = sum(w.grad.untyped_storage().nbytes() for w in model.parameters() if w.grad is not None)
    model.zero_grad(set_to_none=True)
    return Probe(prepared, held, gradients, counter.flops, counter.operations, counter.peaks)


def step_seconds(model: PreTrainedModel, task: Task, num_utterances: int, duration_ms: int, num_tokens: int) -> float:
    """Make a step of one batch, forward and backward, on this machine; return how long it took. The model is left as it
    was.
    """
    batch = silent_batch(num_utterances, duration_ms, num_tokens)
    with _untouched(model, False):
        start_s = time.perf_counter()
        model_input = task.prepare(batch, 0.0, make_generator(torch.device("cpu"), 0, 0, 0, 0))
        loss = task.loss(model, model_input, _context(num_utterances, duration_ms, num_tokens)).value
        loss.backward()  # type: ignore[no-untyped-call]
        elapsed_s = time.perf_counter() - start_s
        model.zero_grad(set_to_none=True)
    return elapsed_s


def _context(num_utterances: int, duration_ms: int, num_tokens: int) -> StepContext:
    return StepContext(
        progress=0.0,
        num_tokens=num_utterances * num_tokens,
        num_frames=num_utterances * duration_ms // _FRAME_MS,
        num_utterances=num_utterances,
    )


def silent_batch(num_utterances: int, duration_ms: int, num_tokens: int) -> Batch:
    """A batch of utterances of one length, all silence, with tokens that any vocabulary has, and times of these."""
    num_samples = pcm.ms_to_samples(duration_ms)
    token_U = torch.arange(num_tokens) % 2  # CTC needs no blank between them
    bounds = torch.arange(num_tokens + 1) * duration_ms // num_tokens
    time_U2 = torch.stack([bounds[:-1], bounds[1:]], dim=1)
    return Batch(
        ids=tuple(f"silence-{number}" for number in range(num_utterances)),
        audio_BT=torch.zeros(num_utterances, num_samples, dtype=torch.int16),
        audio_len_B=torch.full((num_utterances,), num_samples),
        tokens_BU=token_U.repeat(num_utterances, 1),
        token_len_B=torch.full((num_utterances,), num_tokens),
        times_BU2=time_U2.repeat(num_utterances, 1, 1),
        tempo_B=torch.ones(num_utterances),
        weight_B=torch.ones(num_utterances),
    )


@contextlib.contextmanager
def _untouched(model: PreTrainedModel, checkpoints_activations: bool) -> Iterator[None]:
    """Around steps that leave no trace in a model: neither in its buffers nor in the state of chance."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    drawn: Any = np.random.get_state()
    was_training = model.training
    try:
        with torch.random.fork_rng(devices=[]):
            model.train()
            if checkpoints_activations:
                checkpoint_activations(model)
            yield
    finally:
        if checkpoints_activations:
            disable = getattr(model, "activation_checkpointing_disable", None)  # transformers 6 has this name alone
            (disable or model.gradient_checkpointing_disable)()
        model.train(was_training)
        np.random.set_state(drawn)
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _terms(shapes: Shapes) -> Floats:
    """The terms of the polynomial (N, C)."""
    num_N = shapes.num_utterances_N.astype(np.float64)[:, None]
    whole_ms_N = np.ceil(shapes.duration_ms_N / _FRAME_MS) * _FRAME_MS
    length_N3 = (whole_ms_N / _UNIT_MS)[:, None] ** np.arange(3)
    return np.concatenate([length_N3, num_N * length_N3], axis=1)


def _bytes(number_N: Floats) -> Ints:
    return np.maximum(np.ceil(number_N), 0).astype(np.int64)
