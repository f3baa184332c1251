"""What a worker hands over arrives as it was, errors too, and nobody waits for a thread that is not needed any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from voxstill.core.records import Batch
from voxstill.data.transfer import DevicePrefetcher, PackedStep, Step, pack, tensors_in, unpack


def a_batch(num: int, samples: int, tokens: int) -> Batch:
    return Batch(
        ids=tuple(f"u{i}" for i in range(num)),
        audio_BT=torch.randint(-100, 100, (num, samples), dtype=torch.int16),
        audio_len_B=torch.full((num,), samples),
        tokens_BU=torch.randint(0, 9, (num, tokens)),
        token_len_B=torch.full((num,), tokens),
        times_BU2=torch.randint(0, 9, (num, tokens, 2)),
        tempo_B=torch.rand(num),
        weight_B=torch.rand(num),
    )


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 99), st.integers(0, 7)), max_size=4))
def test_a_packed_step_is_unpacked_unchanged(shapes: list[tuple[int, int, int]]) -> None:
    step = Step([a_batch(*shape) for shape in shapes], ["one"], 1.0, 2.0)
    unpacked = unpack(pack(step))
    assert (unpacked.unread, unpacked.read_s, unpacked.decode_s) == (step.unread, 1.0, 2.0)
    assert len(unpacked.batches) == len(shapes)
    for batch, before in zip(unpacked.batches, step.batches, strict=True):
        assert batch.ids == before.ids
        for name in Batch.__dataclass_fields__:
            if name != "ids":
                tensor, expected = getattr(batch, name), getattr(before, name)
                assert tensor.dtype == expected.dtype
                assert torch.equal(tensor, expected)


def steps(end: Exception | None = None) -> Iterator[PackedStep]:
    for k in range(3):
        yield pack(Step([a_batch(1, k + 1, 1)], [], 0.0, 0.0))
    if end is not None:
        raise end


def as_it_is(step: Step) -> Step:
    return step


def test_tensors_are_found_wherever_they_are() -> None:
    batch, tensor = a_batch(2, 9, 3), torch.zeros(1)
    own = [value for name in Batch.__dataclass_fields__ if torch.is_tensor(value := getattr(batch, name))]
    assert len(own) == 7
    tensors = list(tensors_in((Step([batch], ["one"], 1.0, 2.0), {"one": [tensor]}, None, ValueError("two"))))
    assert all(one is two for one, two in zip(tensors, [*own, tensor], strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_what_a_gpu_prepares_aside_is_whole_when_it_is_taken_and_stays_until_it_is_used() -> None:
    size = 1 << 22

    def make(step: Step) -> Tensor:
        value = step.batches[0].audio_BT.shape[1]
        slow = torch.randn(2048, 2048, device="cuda")
        for _ in range(9):
            slow = torch.tanh(slow @ slow)
        return torch.full((size,), value, device="cuda") + 0 * slow.sum()

    results, busy = [], torch.randn(4096, 4096, device="cuda")
    with DevicePrefetcher(steps(), make) as ahead:
        for _, prepared in ahead:
            for _ in range(9):  # the GPU is behind: the tensor is given up before it is read
                busy = torch.tanh(busy @ busy)
            results.append((prepared + 0 * busy.sum()).clone())
            del prepared
    for value, result in enumerate(results, start=1):
        assert bool((result == value).all())


def test_steps_are_taken_in_order_and_end() -> None:
    with DevicePrefetcher(steps(), as_it_is) as ahead:
        assert [step.batches[0].audio_BT.shape[1] for step, _ in ahead] == [1, 2, 3]


def test_an_error_comes_after_the_steps_before_it() -> None:
    with DevicePrefetcher(steps(OSError("gone")), as_it_is) as ahead:
        assert len([next(ahead) for _ in range(3)]) == 3
        with pytest.raises(OSError, match="gone"):
            next(ahead)


def test_a_prepared_step_comes_in_order_and_an_error_of_its_preparation_in_its_place() -> None:
    def shortest(step: Step) -> int:
        length = step.batches[0].audio_BT.shape[1]
        if length == 3:
            raise ValueError("too long")
        return length

    with DevicePrefetcher(steps(), shortest) as ahead:
        assert [next(ahead)[1] for _ in range(2)] == [1, 2]
        with pytest.raises(ValueError, match="too long"):
            next(ahead)


def test_stopping_early_leaves_no_thread() -> None:
    with DevicePrefetcher(steps(), as_it_is) as ahead:
        next(ahead)
    assert not [thread for thread in threading.enumerate() if thread.name == "batches"]
