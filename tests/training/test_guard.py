"""A step that would break the weights is skipped and named; a training that only has such steps ends."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tones import TEXTS, batch_of, context_of
from voxstill.core.errors import DataError, TrainingError
from voxstill.storage.rundir import RunDir
from voxstill.text import tokenizer
from voxstill.training import guard as guarding
from voxstill.training.guard import LIMIT, Guard, MemoryGuard

INFINITE, NOTHING = float("inf"), float("nan")
BATCH = batch_of(tokenizer.train(TEXTS, "word", 9))
SHARE = context_of(BATCH)
BROKEN = [(INFINITE, 1.0), (-INFINITE, 1.0), (NOTHING, 1.0), (1.0, INFINITE), (1.0, NOTHING)]


def advise(is_loss_finite: bool) -> str:
    return "lower the precision" if is_loss_finite else "lower the rate"


def passes(guard: Guard, loss: float, norm: float, ids: tuple[str, ...] = BATCH.ids) -> bool:
    return guard.passes(loss, norm, 7, [dataclasses.replace(BATCH, ids=ids)], SHARE)


@pytest.mark.parametrize(("loss", "norm"), BROKEN)
def test_a_step_that_is_not_finite_does_not_pass(tmp_path: Path, loss: float, norm: float) -> None:
    guard = Guard(RunDir(tmp_path), 0, advise)
    assert not passes(guard, loss, norm)
    assert passes(guard, -3.0, 0.0)


def test_ten_broken_steps_in_a_row_end_the_training_with_the_utterances_at_fault(tmp_path: Path) -> None:
    assert LIMIT == 10
    guard = Guard(RunDir(tmp_path), 0, advise)
    for _ in range(9):
        assert not passes(guard, NOTHING, 1.0)
    assert passes(guard, 1.0, 1.0)  # and one good step starts the count anew
    for _ in range(9):
        assert not passes(guard, NOTHING, 1.0)
    with pytest.raises(TrainingError, match="10 steps in a row") as caught:
        passes(guard, NOTHING, 1.0, tuple(f"u{i}" for i in range(6)))
    assert "u0, u1, u2, u3 and 2 more" in caught.value.why
    assert caught.value.exit_code == 6
    assert caught.value.fix.startswith("lower the rate; ")


def test_what_is_saved_of_a_skipped_step_comes_back_whole(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert not Guard(run, 3, advise).passes(NOTHING, 1.0, 7, [BATCH, BATCH], SHARE)
    (path,) = run.skipped.iterdir()
    batches, share, step, rank = guarding.load(path)
    assert (len(batches), share, step, rank) == (2, SHARE, 7, 3)
    for batch in batches:
        assert batch.ids == BATCH.ids
        for field in dataclasses.fields(BATCH):
            if field.name != "ids":
                assert torch.equal(getattr(batch, field.name), getattr(BATCH, field.name))
    path.write_bytes(b"torn")
    with pytest.raises(DataError, match="not a saved batch"):
        guarding.load(path)


def test_out_of_memory_is_recognised_by_the_message_of_torch() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert guarding.out_of_memory(caught.value)
    assert guarding.out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not guarding.out_of_memory(RuntimeError("shapes differ"))
    error = guarding.oom_error(BATCH, 5, 120_000, 900, caught.value)
    assert "step 5" in error.what
    assert "`plan.budget_ms` to 900" in error.fix


def too_large(memory: MemoryGuard) -> None:
    with memory.in_step(5):
        memory.before_batch(BATCH)
        torch.empty(1 << 50, dtype=torch.uint8)


def test_a_batch_that_does_not_fit_is_named_with_the_budget_that_did() -> None:
    memory, small = MemoryGuard(60_000), dataclasses.replace(BATCH, audio_BT=BATCH.audio_BT[:, :8000])
    with memory.in_step(4):
        memory.before_batch(small)
    with pytest.raises(TrainingError, match="memory ran out in step 5: a batch of 4 utterances") as caught:
        too_large(memory)
    assert "`plan.budget_ms` to 2000 (the largest that passed)" in caught.value.fix
    with pytest.raises(ValueError, match="something else"), memory.in_step(6):
        raise ValueError("something else")
