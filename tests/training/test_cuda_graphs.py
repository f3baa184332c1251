"""CUDA graphs: few shapes, no graph where there cannot be one, and what the padded batches give without graphs."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from voxstill.core.config import Train
from voxstill.core.errors import ConfigError
from voxstill.nn import students
from voxstill.training import cuda_graphs


@given(st.integers(1, 100_000), st.sampled_from([8, 16]))
def test_sizes_are_padded_a_little_to_few(size: int, steps: int) -> None:
    whole = cuda_graphs.padded_size(size, steps)
    assert size <= whole <= size * (1 + 1 / steps)
    assert cuda_graphs.padded_size(whole, steps) == whole
    octave = 1 << (size.bit_length() - 1)
    assert len({cuda_graphs.padded_size(number, steps) for number in range(octave, 2 * octave)}) <= steps + 1


def test_a_padded_batch_has_the_logits_of_its_own_frames() -> None:
    model: Any = students.build("tiny", 9, dropout=0.0, seed=0).eval()
    features_BFD, mask_BF = torch.randn(9, 77, 80), torch.arange(77) < torch.tensor([77, 60, 9] * 3)[:, None]
    features_BFD = features_BFD * mask_BF[..., None]
    more_BFD, more_BF = cuda_graphs.padded(features_BFD, mask_BF)
    assert more_BFD.shape == (9, 80, 80)
    with torch.no_grad():
        hidden_BFE, more_BFE = (
            model.encoder(features, mask).last_hidden_state
            for features, mask in ((features_BFD, mask_BF), (more_BFD, more_BF))
        )
    own_BF = torch.arange(hidden_BFE.shape[1]) < ((mask_BF.sum(1) + 7) // 8)[:, None]
    assert torch.allclose(hidden_BFE[own_BF], more_BFE[:9, : hidden_BFE.shape[1]][own_BF], atol=1e-5)


def test_it_is_refused_where_there_is_no_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="cannot be used here"):
        cuda_graphs.capture(students.build("tiny", 9, dropout=0.0, seed=0), Train(cuda_graphs=True), 1)


def test_it_is_refused_where_processes_train_together_though_each_has_a_machine_of_its_own() -> None:
    with pytest.raises(ConfigError, match="2 processes train together"):
        cuda_graphs.capture(students.build("tiny", 9, dropout=0.0, seed=0), Train(cuda_graphs=True), 2)


def test_operations_are_counted_of_the_padded_batch_and_once() -> None:
    model: Any = students.build("tiny", 9, dropout=0.0, seed=0).train()
    batch = torch.randn(9, 77, 80), torch.ones(9, 77, dtype=torch.bool)

    def operations(*batch: torch.Tensor) -> int:
        with FlopCounterMode(display=False) as counter:
            model.encoder(*batch).last_hidden_state.sum().backward()
        return counter.get_total_flops()

    padded = operations(*cuda_graphs.padded(*batch))
    model.encoder.forward = cuda_graphs._GraphedEncoder(model.encoder)
    assert [operations(*batch) for _ in range(3)] == [padded] * 3


def test_gradients_side_by_side_start_from_those_that_weights_have_and_are_clipped_as_one() -> None:
    model: Any = students.build("tiny", 9, dropout=0.0, seed=0)
    encoder = model.encoder
    graphed: Any = cuda_graphs._GraphedEncoder(encoder)
    encoder.forward = graphed
    weights = list(encoder.parameters())
    assert all(map(operator.is_, cuda_graphs.weights_to_clip(model), model.parameters()))
    gradients = graphed.gradients = cuda_graphs._Gradients(encoder)
    parts = [torch.randn(weight.shape[::-1]).T if weight.ndim == 2 else torch.randn(weight.shape) for weight in weights]
    before = [torch.randn_like(weight) if i % 3 else None for i, weight in enumerate(weights)]
    for start in ([None] * len(weights), before):  # no batch before, then one by the modules
        for weight, gradient in zip(weights, start, strict=True):
            weight.grad = gradient
        gradients.attach()
        for _ in range(2):
            gradients.add(parts)
            gradients.attach()  # of the next batch
        for weight, part, gradient in zip(weights, parts, start, strict=True):
            assert weight.grad is not None
            assert torch.equal(weight.grad, (torch.zeros_like(weight) if gradient is None else gradient) + part + part)
            assert weight.grad.stride() == weight.stride()
    for weight in model.ctc_head.parameters():
        weight.grad = torch.randn_like(weight)
    few = cuda_graphs.weights_to_clip(model)
    assert len(few) == 1 + len(list(model.ctc_head.parameters()))
    norm = float(torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()]))
    assert float(torch.nn.utils.clip_grad_norm_(few, 1.0)) == pytest.approx(norm, rel=1e-4)
    assert float(torch.nn.utils.get_total_norm([w.grad for w in model.parameters()])) == pytest.approx(1.0, rel=1e-4)
    weights[0].grad = None  # as of a frozen layer
    assert len(cuda_graphs.weights_to_clip(model)) == len(list(model.parameters()))


def test_a_gradient_of_nan_leaves_nothing_between_the_weights_for_a_step_that_begins_with_the_modules() -> None:
    class Narrow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.LayerNorm(3)  # sizes that leave gaps

    model: Any = Narrow()
    graphed: Any = cuda_graphs._GraphedEncoder(model.encoder)
    model.encoder.forward = graphed
    gradients = graphed.gradients = cuda_graphs._Gradients(model.encoder)
    for value in (float("nan"), 1.0):
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, value)
        gradients.attach()
        norm = torch.nn.utils.clip_grad_norm_(cuda_graphs.weights_to_clip(model), 1.0)
        model.zero_grad(set_to_none=True)
    assert float(norm) == pytest.approx(6**0.5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_capture_leaves_chance_alone_and_another_thread_at_work() -> None:
    results = []
    for graphs in (False, True):
        model: Any = students.build("tiny", 9, dropout=0.1, seed=0).cuda().train()
        if graphs:
            cuda_graphs.capture(model, Train(cuda_graphs=True), 1)
        batch = torch.randn(9, 80, 80, generator=torch.Generator().manual_seed(1)), torch.ones(9, 80, dtype=torch.bool)
        batch = batch[0].cuda(), batch[1].cuda()
        with _busy_gpu():
            for step in range(3):
                torch.manual_seed(step)
                hidden_BFE = model.encoder(*batch).last_hidden_state
                hidden_BFE.square().sum().backward()
                results.append((hidden_BFE.detach().clone(), torch.rand(9, device="cuda")))
                model.zero_grad(set_to_none=True)
    for one, two in zip(results[:3], results[3:], strict=True):
        assert all(map(torch.equal, one, two))


@contextlib.contextmanager
def _busy_gpu() -> Iterator[None]:
    """A thread that takes memory, copies to the GPU and waits for it, as one that prepares batches."""
    ends, errors = threading.Event(), list[Exception]()

    def work() -> None:
        held = []
        try:
            while not ends.is_set():
                held.append(torch.zeros(1 << 20).pin_memory().to("cuda", non_blocking=True))
                held[-1].sum().item()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
    assert not errors


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_graphs_give_the_gradients_of_the_padded_batches_also_where_they_accumulate() -> None:
    results = []
    for graphs in (False, True):
        torch.manual_seed(0)
        model: Any = students.build("tiny", 9, dropout=0.0, seed=0).cuda().train()
        if graphs:
            cuda_graphs.capture(model, Train(cuda_graphs=True), 1)
        steps = []
        for step in range(4):
            model.zero_grad(set_to_none=True)
            for batch in range(3):  # of two shapes, the second of which comes twice in a step
                frames = (77, 150, 150)[batch]
                generator = torch.Generator().manual_seed(10 * step + batch)
                features_BFD = torch.randn(9, frames, 80, generator=generator).cuda()
                mask_BF = torch.ones(9, frames, dtype=torch.bool, device="cuda")
                if not graphs:
                    features_BFD, mask_BF = cuda_graphs.padded(features_BFD, mask_BF)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    hidden_BFE = model.encoder(features_BFD, mask_BF).last_hidden_state
                hidden_BFE[:9, : (frames + 7) // 8].float().square().sum().backward()
            steps.append({name: weight.grad.clone() for name, weight in model.encoder.named_parameters()})
        results.append((steps, {name: value.float() for name, value in model.named_buffers()}))
    for one, two in zip(results[0][0], results[1][0], strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[0][1])
