"""The schedule, the optimizer's groups and the mean of weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from voxstill.core.config import Train
from voxstill.training import optim

shares = st.floats(0, 0.95)
schedules = st.builds(
    Train,
    warmup=shares,
    hold=st.floats(0, 1),
    final_lr=st.floats(1e-3, 1),
    lr=st.floats(1e-5, 1),
    schedule=st.sampled_from(["cosine", "tri_stage"]),
)


@given(schedules, st.floats(0, 1))
def test_the_learning_rate_is_positive_and_never_above_its_peak(cfg: Train, progress: float) -> None:
    lr = optim.lr_at(progress, cfg)
    assert 0 <= lr <= cfg.lr * (1 + 1e-9)
    if progress >= cfg.warmup:
        assert lr >= cfg.lr * cfg.final_lr * (1 - 1e-9)


@given(schedules, st.floats(0, 1))
def test_the_learning_rate_has_no_jumps(cfg: Train, progress: float) -> None:
    step = 1e-6
    start = max(cfg.warmup, cfg.hold)
    fall = np.pi / 2 if cfg.schedule == "cosine" else -np.log(cfg.final_lr)
    steepest = max(1 / cfg.warmup if cfg.warmup else 0, fall / (1 - start) if start < 1 else 0)
    jump = abs(optim.lr_at(min(progress + step, 1.0), cfg) - optim.lr_at(progress, cfg))
    assert jump <= cfg.lr * (steepest * step * 1.01 + 1.01e-3 * (progress < cfg.warmup * 1e-3 + step) + 1e-9)


def test_the_learning_rate_rises_holds_and_falls_to_its_end() -> None:
    cfg = Train(lr=1.0, warmup=0.1, hold=0.5, final_lr=0.01)
    places = (0.0, 0.05, 0.1, 0.5, 0.75, 1.0)
    assert [optim.lr_at(progress, cfg) for progress in places] == pytest.approx(
        [1e-3, 0.5, 1.0, 1.0, 0.505, 0.01], rel=1e-6
    )
    cfg = cfg.model_copy(update={"schedule": "tri_stage"})
    assert [optim.lr_at(progress, cfg) for progress in places] == pytest.approx(
        [1e-3, 0.5, 1.0, 1.0, 0.1, 0.01], rel=1e-6
    )


def test_norms_and_biases_do_not_decay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    groups = optim.make_optimizer(model, Train(weight_decay=0.2)).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.2, 1), (0.0, 3)]


def test_the_average_is_the_mean_of_weights_and_buffers_and_counts_stay_whole() -> None:
    model, average = nn.BatchNorm1d(3), optim.Average()
    shown = []
    for seed in range(5):
        torch.manual_seed(seed)
        for value in (model.weight.data, model.bias.data, model.running_mean, model.running_var):
            assert value is not None
            value.copy_(torch.randn(3))
        assert model.num_batches_tracked is not None
        model.num_batches_tracked += 1
        shown.append({name: value.clone() for name, value in model.state_dict().items()})
        average.add(model)
    average.apply(model)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            assert torch.allclose(value, torch.stack([weights[name] for weights in shown]).mean(0), atol=1e-6)
    assert int(model.state_dict()["num_batches_tracked"]) == 5


def test_with_a_decay_the_average_is_the_exponential_mean_of_what_it_was_shown() -> None:
    model, average = nn.Linear(1, 1, bias=False), optim.Average(decay=0.5)
    for value in (1.0, 2.0, 6.0):
        nn.init.constant_(model.weight, value)
        average.add(model)
    average.apply(model)
    assert model.weight.item() == pytest.approx((0.25 * 1 + 0.5 * 2 + 1 * 6) / 1.75)


def test_an_average_of_nothing_changes_nothing() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    optim.Average().apply(model)
    assert torch.equal(model.weight, before)


@given(st.floats(0, 0.99), st.integers(1, 30), st.floats(-1e3, 1e3, width=32))
def test_the_average_of_what_never_changed_is_itself(decay: float, times: int, value: float) -> None:
    model, average = nn.Linear(5, 5), optim.Average(decay)
    nn.init.constant_(model.weight, value)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(times):
        average.add(model)
    average.apply(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_quick_step_gives_the_bits_of_torch_also_where_a_gradient_is_missing() -> None:
    torch.manual_seed(0)
    quick = nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    plain = copy.deepcopy(quick)
    ours = optim.make_optimizer(quick, Train(lr=1e-2, weight_decay=0.2))
    assert type(ours) is optim.FusedAdamW
    theirs = torch.optim.AdamW(
        [
            {
                "params": [weight for weight in plain.parameters() if (weight.ndim > 1) == is_matrix],
                "weight_decay": decay,
            }
            for is_matrix, decay in ((True, 0.2), (False, 0.0))
        ],
        lr=1e-2,
        betas=optim.BETAS,
        fused=True,
    )
    for step in range(6):
        for one, two in zip(quick.parameters(), plain.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            two.grad = one.grad.clone()
        if step % 2:  # as of layers that are frozen
            quick[2].zero_grad(set_to_none=True)
            plain[2].zero_grad(set_to_none=True)
        for optimizer in (ours, theirs):
            optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
            optimizer.step()
        assert all(map(torch.equal, quick.parameters(), plain.parameters()))
    moments = zip(ours.state.values(), theirs.state.values(), strict=True)
    assert all(torch.equal(one[name], two[name]) for one, two in moments for name in two)
