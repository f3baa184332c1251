"""A loss that rises is told once, with the command that goes on from before; noise and another kind of loss are not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from voxstill.core.config import Config
from voxstill.storage.rundir import RunDir
from voxstill.training.divergence import advice, follow
from voxstill.training.state import State


def counted(*losses: float, parts: tuple[str, ...] = (), state: State | None = None) -> tuple[State, int]:
    """The state after these losses, and how often one of them was told."""
    state = state or State()
    return state, sum(follow(state, loss, parts) for loss in losses)


def test_a_loss_that_stays_or_is_noisy_is_not_told() -> None:
    assert counted(*[5.0, 4.0, 3.0, *[2.0, 4.5, 1.0] * 40])[1] == 0


def test_small_batches_of_an_easy_and_a_hard_data_set_in_turn_are_not_told() -> None:
    rng = random.Random(0)
    losses = [rng.gammavariate(2, 1.25 if rng.random() < 0.35 else 0.25) for _ in range(5_000)]
    state, times = counted(*losses)
    assert times == 0
    assert counted(*[8.0] * 50, state=state)[1] == 1


def test_a_loss_that_rises_and_stays_is_told_once() -> None:
    state, times = counted(*[2.0] * 50, *[20.0] * 10, *[5.0] * 500)
    assert (times, state.risen_from) == (1, 2.0)


def test_a_loss_that_has_come_down_again_is_well_and_may_rise_again() -> None:
    state, times = counted(*[2.0] * 50, *[20.0] * 10, *[2.0] * 200)
    assert (times, state.risen_from) == (1, None)
    assert counted(*[20.0] * 10, state=state)[1] == 1


def test_a_loss_of_other_parts_counts_anew() -> None:
    state, _ = counted(*[0.5] * 50, parts=("align", "ctc"))
    assert counted(*[3.0] * 50, state=state) == (state, 0)
    assert state.loss == pytest.approx(3.0)


def advised(folder: Path, *, segment: object = None, is_stepped: bool = True, overflows: bool = False) -> str:
    run = RunDir(folder)
    if segment is not None:
        run.environment.write_text(json.dumps({"segments": [{"step": 5, "changed": segment}]}))
    cfg = Config.model_validate({"train": {"lr": 0.005, "precision": "fp16"}})
    return advice(run, cfg, "train", is_stepped=is_stepped, overflows=overflows)


def test_what_the_last_segment_has_changed_is_taken_back(tmp_path: Path) -> None:
    changed = {"train.steps": [5, 9], "train.dataset_weights": [{}, {"a": 1e30}], "train.precision": ["auto", "fp16"]}
    text = advised(tmp_path, segment=changed)
    assert text.endswith("`voxstill train CONFIG --set 'train.dataset_weights={}' --set train.precision=auto`")


def test_without_a_segment_it_is_the_rate_or_the_precision_or_neither(tmp_path: Path) -> None:
    assert advised(tmp_path).endswith("`voxstill train CONFIG --set train.lr=0.0005`")
    assert advised(tmp_path, overflows=True).endswith("--set train.precision=fp32`")
    assert "which is not `train.lr`" in advised(tmp_path, is_stepped=False)
