"""Muon against torch's own, what it learns, and what its checkpoints hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from voxstill.core.config import Train
from voxstill.core.errors import ConfigError
from voxstill.nn import students
from voxstill.storage.rundir import RunDir
from voxstill.training import checkpoint, muon, optim
from voxstill.training.state import State

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
CFG = Train(optimizer="muon", lr=0.02, weight_decay=0.1)


def small_student(seed: int = 0) -> nn.Module:
    return students.build("tiny", 9, dropout=0.0, seed=seed)


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator).to(weight.device)


@given(st.integers(1, 4), st.integers(16, 48), st.integers(0, 48), st.integers(0, 99))
def test_an_update_has_all_singular_values_near_one(batch: int, short: int, more: int, seed: int) -> None:
    matrices = torch.randn(batch, short, short + more + 16, generator=torch.Generator().manual_seed(seed))
    values = torch.linalg.svdvals(muon.orthogonal(matrices))
    assert values.min() > 0.5
    assert values.max() < 1.35
    assert muon.orthogonal(torch.zeros(1, 16, 16)).abs().max() == 0


@pytest.mark.skipif(torch.cpu._is_amx_tile_supported(), reason="bf16, which has three digits")
@given(st.integers(16, 64), st.sampled_from((1, 2, 4)), st.floats(0, 6), st.integers(0, 99))
def test_an_update_is_that_of_five_iterations_in_fp64(short: int, wider: int, decades: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(n, short, generator=generator))[0] for n in (short, wider * short))
    matrix = left * torch.logspace(0, -decades, short) @ right.mT
    expected = matrix.double() / matrix.double().norm()
    a, b, c = muon.COEFFICIENTS
    for _ in range(muon.ITERATIONS):
        gram = expected @ expected.mT
        expected = a * expected + (b * gram + c * gram @ gram) @ expected
    assert torch.allclose(muon.orthogonal(matrix[None])[0].double(), expected, rtol=0, atol=2e-3)


def test_the_matrices_of_the_layers_are_learnt_by_muon_and_the_rest_by_adamw() -> None:
    model = small_student()
    matrices, others = muon.split(model)
    names = {id(weight): name for name, weight in model.named_parameters()}
    inner = {names[id(weight)].removesuffix(".weight").rpartition(".")[2] for weight in matrices}
    assert {"q_proj", "linear1", "linear2", "pointwise_conv1"} <= inner
    assert not inner & {"depthwise_conv", "ctc_head", "subsampling", "linear"}
    assert len(matrices) + len(others) == len(list(model.parameters()))
    optimizer = optim.make_optimizer(model, CFG)
    assert {id(w) for group in optimizer.param_groups for w in group["params"]} == set(names)
    assert optimizer.param_groups[-1]["weight_decay"] == 0.1


def test_it_makes_the_steps_that_torch_makes() -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((32, 16), (16, 64), (24, 24))]
    theirs = [nn.Parameter(weight.detach().clone()) for weight in ours]
    adamw = torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
    one = muon.Muon(ours, adamw, lr=0.02, weight_decay=0.1)
    two = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        for weight, twin in zip(ours, theirs, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.device)
            twin.grad = weight.grad.clone()
        one.step()
        two.step()
    for weight, twin in zip(ours, theirs, strict=True):
        assert torch.allclose(weight, twin, atol=3e-3)  # bf16 rounds differently where matrices are in a batch


def test_the_learning_rate_reaches_all_weights() -> None:
    model = small_student()
    optimizer = optim.make_optimizer(model, CFG)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    give_gradients(model, 0)
    optimizer.step()
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    give_gradients(model, 0)
    optimizer.step()
    assert not any(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_matrices_in_small_batches_are_learnt_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [small_student(), small_student()]
    for model, at_once in zip(models, (1 << 24, 1), strict=True):
        monkeypatch.setattr(muon, "_AT_ONCE", at_once)
        give_gradients(model, 0)
        optim.make_optimizer(model, CFG).step()
    for one, two in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, two, atol=1e-3)


def test_weights_without_a_gradient_stay() -> None:
    model = small_student()
    optimizer = optim.make_optimizer(model, CFG)
    give_gradients(model, 0)
    matrices, _ = muon.split(model)
    matrices[0].grad = None
    before = matrices[0].detach().clone()
    optimizer.step()
    assert torch.equal(matrices[0], before)


@pytest.mark.parametrize("device", DEVICES)
def test_training_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(tmp_path: Path, device: str) -> None:
    run, model = RunDir(tmp_path), small_student().to(device)
    optimizer = optim.make_optimizer(model, CFG)
    for seed in range(2):
        give_gradients(model, seed)
        optimizer.step()
    checkpoint.save(run, model, optimizer, optim.Average(), State(step=2), CFG)
    other = small_student(1).to(device)
    other_optimizer = optim.make_optimizer(other, CFG)
    folder = checkpoint.newest(run)
    assert folder is not None
    checkpoint.load(folder, other, other_optimizer, optim.Average())
    for one, its_optimizer in ((model, optimizer), (other, other_optimizer)):
        give_gradients(one, 2)
        its_optimizer.step()
    for (name, weight), twin in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, twin), name


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to optimise"):
        optim.make_optimizer(nn.Sequential(nn.Linear(32, 32)), CFG)
