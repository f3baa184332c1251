"""Steps that are made for their shapes alone tell the memory of real ones, of any size and kind."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tones import PLAIN, TEXTS
from voxstill.core.config import Train
from voxstill.nn import students
from voxstill.nn.frontends import LogMelFrontend
from voxstill.tasks.ctc import CtcTask
from voxstill.tasks.transducer import TransducerTask
from voxstill.text import tokenizer
from voxstill.training import optim, step_memory
from voxstill.training.footprint import Footprint, Lengths, largest_budget, states_of
from voxstill.training.live_bytes import LiveBytes
from voxstill.training.parallel import checkpoint_activations
from voxstill.training.step_memory import Shapes, StepMemory
from voxstill.training.task import StepContext, make_generator

WORDS = tokenizer.train(TEXTS, "word", 9)
TOKENS_PER_S = 2.0


def student(kind: students.Kind, *, streaming: bool = False, train: Train | None = None) -> tuple[Any, Any]:
    model = students.build("tiny", len(WORDS.pieces), dropout=0.1, seed=0, kind=kind, streaming=streaming)
    frontend = LogMelFrontend(PLAIN, is_streaming=streaming)
    task = CtcTask if kind == "ctc" else TransducerTask
    return model.train(), task(WORDS, train or Train(), PLAIN, frontend)


@functools.cache
def measured() -> StepMemory:
    """A step of a student of CTC in fp32."""
    return step_memory.measure(*student("ctc"), TOKENS_PER_S, "fp32")


@functools.cache
def footprint() -> Footprint:
    return Footprint(states_of(*student("ctc"), Train()), measured())


def shapes_of(*batches: tuple[int, int]) -> Shapes:
    num_N, duration_ms_N = np.array(batches).T
    return Shapes(num_N, duration_ms_N)


def held_and_peak(model: Any, task: Any, num: int, duration_ms: int, half: bool) -> tuple[int, int, int]:
    """Bytes after the forward pass of a real step, the most in it, and those that autograd saves."""
    num_tokens = int(duration_ms / 1000 * TOKENS_PER_S)
    batch = step_memory.silent_batch(num, duration_ms, num_tokens)
    context = StepContext(0.0, num * num_tokens, num * duration_ms // 80, 0, num)
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, torch.UntypedStorage] = {}

    def loss() -> torch.Tensor:
        torch.manual_seed(0)
        model_input = task.prepare(batch, 0.0, make_generator(torch.device("cpu"), 0, 0, 0, 0))
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            value: torch.Tensor = task.loss(model, model_input, context).value
        return value

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in own:
            saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    counter = LiveBytes([*model.parameters(), *model.buffers()])
    with counter:
        value = loss()
        held = counter.live
        counter.backward(value)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss()
    model.zero_grad(set_to_none=True)
    return held, max(counter.peaks.values()), sum(storage.nbytes() for storage in saved.values())


@pytest.mark.parametrize(
    ("kind", "precision", "streaming"),
    [
        ("ctc", "fp32", False),
        ("ctc", "bf16", False),
        ("rnnt", "fp32", False),
        ("tdt", "fp32", False),
        ("rnnt", "fp32", True),
    ],
)
def test_the_memory_of_a_real_step_is_told_from_smaller_ones(
    kind: students.Kind, precision: str, streaming: bool
) -> None:
    model, task = student(kind, streaming=streaming)
    step = step_memory.measure(model, task, TOKENS_PER_S, precision)
    for num, duration_ms in ((5, 3_040), (2, 8_000)):
        held, peak, saved = held_and_peak(model, task, num, duration_ms, precision == "bf16")
        shapes = shapes_of((num, duration_ms))
        assert step.held(shapes)[0] == pytest.approx(held, rel=0.03)
        assert step.held(shapes)[0] == pytest.approx(saved, rel=0.05)
        assert step.peak(shapes)[0] == pytest.approx(peak, rel=0.1)


def test_checkpointed_activations_are_counted_though_hooks_do_not_see_them() -> None:
    model, task = student("ctc")
    step = step_memory.measure(model, task, TOKENS_PER_S, "fp32", checkpoints_activations=True)
    checkpoint_activations(model)
    held, peak, _ = held_and_peak(model, task, 4, 8_000, half=False)
    shapes = shapes_of((4, 8_000))
    assert step.held(shapes)[0] == pytest.approx(held, rel=0.03)
    assert step.peak(shapes)[0] == pytest.approx(peak, rel=0.1)
    assert step.held(shapes)[0] < 0.5 * measured().held(shapes)[0]


def test_the_model_and_the_state_of_chance_are_left_as_they_were() -> None:
    model, task = student("ctc")
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(7)
    np.random.seed(7)
    drawn = torch.rand(3), np.random.rand(3)
    torch.manual_seed(7)
    np.random.seed(7)
    step_memory.measure(model, task, TOKENS_PER_S, "fp32", checkpoints_activations=True)
    assert torch.equal(torch.rand(3), drawn[0])
    assert np.array_equal(np.random.rand(3), drawn[1])
    assert not model.training
    assert not model.is_activation_checkpointing
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_operations_are_those_of_a_real_step() -> None:
    model, task = student("ctc")
    counter = LiveBytes()
    batch = step_memory.silent_batch(3, 5_120, 10)
    with counter:
        model_input = task.prepare(batch, 0.0, make_generator(torch.device("cpu"), 0, 0, 0, 0))
        counter.backward(task.loss(model, model_input, StepContext(0.0, 30, 190, 0, 3)).value)
    assert measured().flops(shapes_of((3, 5_120)))[0] == pytest.approx(counter.flops, rel=0.02)


def test_one_small_step_bounds_larger_ones_from_above() -> None:
    model, task = student("ctc")
    shapes = shapes_of((1, 1_000), (40, 3_000), (8, 15_000), (1, 120_000))
    assert (step_memory.upper_bound(model, task, "fp32", shapes) > measured().peak(shapes)).all()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_states_are_what_weights_moments_and_average_take(optimizer: str) -> None:
    cfg = Train.model_validate({"optimizer": optimizer})
    model, task = student("ctc", train=cfg)
    states = states_of(model, task, cfg)
    real, average = optim.make_optimizer(model, cfg), optim.Average()
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    real.step()
    average.add(model)
    moments = [value for state in real.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    assert states.optimizer == pytest.approx(sum(moment.nbytes for moment in moments), rel=0.001)
    assert states.average == sum(mean.nbytes for mean in average.mean.values())
    assert states.gradients == sum(weight.nbytes for weight in model.parameters())
    assert states.weights == sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def test_devices_share_what_is_sharded_and_copy_what_is_not() -> None:
    model, task = student("ctc")
    alone = states_of(model, task, Train())
    copied = states_of(model, task, Train(), ranks=4)
    sharded = states_of(model, task, Train(shard_above=0.0), ranks=4)
    assert copied.optimizer == alone.optimizer
    assert copied.gradients == 2 * alone.gradients  # DDP sends a copy
    for name in ("gradients", "optimizer", "average"):
        assert getattr(sharded, name) == pytest.approx(getattr(alone, name) / 4, rel=0.01)
    assert sharded.gathered > 0 == copied.gathered


def test_without_an_average_of_the_last_steps_none_is_held() -> None:
    model, task = student("ctc")
    assert states_of(model, task, Train(average="best")).average == 0


@settings(max_examples=60)
@given(
    durations_ms=st.lists(st.integers(100, 30_000), min_size=1, max_size=40),
    max_utterances=st.integers(1, 64),
    limit_mib=st.integers(30, 2_000),
)
def test_every_batch_of_the_proposed_budget_fits_and_a_second_more_does_not(
    durations_ms: list[int], max_utterances: int, limit_mib: int
) -> None:
    lengths = Lengths(np.array(durations_ms), max_utterances)
    budget_ms = largest_budget(footprint(), lengths, limit_mib << 20)
    most_ms = -(-max(durations_ms) * min(max_utterances, len(durations_ms)) // 1000) * 1000
    if budget_ms is not None:
        assert footprint().total(lengths.batches_of(budget_ms)).max() <= limit_mib << 20
    if budget_ms != most_ms:
        more_ms = (budget_ms or 0) + 1000
        assert footprint().total(lengths.batches_of(more_ms)).max() > limit_mib << 20


def test_the_parts_add_up_to_at_least_the_total() -> None:
    for shapes in (shapes_of((1, 500)), shapes_of((8, 15_000)), shapes_of((1, 60_000))):
        assert sum(footprint().parts(shapes).values()) >= footprint().total(shapes)[0] >= footprint().least(shapes)[0]


def test_batches_that_a_rank_makes_one_after_another_share_the_room_and_keep_their_gradients() -> None:
    shapes = shapes_of((8, 4_000))
    several = Footprint(footprint().states, measured(), batches_per_rank=4)
    more = int(several.least(shapes)[0] - footprint().least(shapes)[0])
    assert more == footprint().states.gradients


def test_a_gradient_is_the_least_that_a_step_takes() -> None:
    nothing = np.zeros(6)
    step = StepMemory(10, 0, nothing, nothing, nothing[:, None], nothing)
    assert step.peak(shapes_of((1, 1_000)))[0] == 10
