"""Convolutions as matrix products: equal to torch's, forward and backward, and unchanged on a CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from voxstill.nn import conv_gpu, students

SIZES = st.integers(1, 12)


def results(out: Tensor, *inputs: Tensor) -> list[Tensor]:
    """An output, and the gradients of what it was computed from."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return [out, *torch.autograd.grad((out * weights).sum(), inputs)]


@given(SIZES, SIZES, SIZES, SIZES, SIZES, st.booleans())
def test_products_are_equal_to_convolutions(
    num: int, channels: int, outputs: int, frames: int, bands: int, bias: bool
) -> None:
    torch.manual_seed(0)
    for conv, shape in (
        (nn.Conv1d(channels, outputs, 1, bias=bias), (num, channels, frames)),
        (nn.Conv2d(channels, outputs, 1, bias=bias), (num, channels, frames, bands)),
        (nn.Conv2d(1, outputs, 3, stride=2, padding=1, bias=bias), (num, 1, frames, bands)),
        (nn.Conv2d(channels, channels, 3, 2, 1, groups=channels, bias=bias), (num, channels, frames, bands)),
    ):
        conv.double()
        inputs, weights = torch.randn(shape, dtype=torch.float64).requires_grad_(), tuple(conv.parameters())
        forward = conv_gpu.forward_of(conv)
        assert forward is not None
        products = results(forward(inputs, conv.weight, conv.bias), inputs, *weights)
        for one, two in zip(products, results(conv(inputs), inputs, *weights), strict=True):
            assert one.shape == two.shape
            assert torch.allclose(one, two)


@pytest.mark.parametrize("streaming", [False, True])
def test_all_convolutions_of_a_student_do_without_plans(streaming: bool) -> None:
    model = students.build("tiny", 9, dropout=0.0, seed=0, kind="rnnt", streaming=streaming)
    convs = [module for module in model.modules() if isinstance(module, nn.Conv1d | nn.Conv2d)]
    plain = [conv for conv in convs if "_conv_forward" not in vars(conv)]
    assert len(plain) == 4  # one in each layer
    assert all(isinstance(conv, nn.Conv1d) and conv.groups == conv.in_channels for conv in plain)


def test_a_student_on_a_cpu_is_as_before() -> None:
    model = students.build("tiny", 9, dropout=0.0, seed=0).eval()
    plain = copy.deepcopy(model)
    for module in plain.modules():
        vars(module).pop("_conv_forward", None)
    features_BFD, frames_B = torch.randn(2, 50, 80), torch.tensor([50, 30])
    logits, of_plain = (students.logits(one, features_BFD, frames_B)[0] for one in (model, plain))
    assert torch.equal(logits, of_plain)
    assert list(model.state_dict()) == list(plain.state_dict())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("streaming", [False, True])
def test_a_student_on_a_gpu_is_as_on_a_cpu(streaming: bool) -> None:
    model = students.build("small", 9, dropout=0.0, seed=0, kind="rnnt", streaming=streaming).eval()
    features_BFD = torch.randn(3, 333, 80, generator=torch.Generator().manual_seed(0))
    frames_B, tokens_BU = torch.tensor([333, 200, 90]), torch.tensor([[1, 2], [3, 4], [5, 6]])
    answers = []
    for device in ("cpu", "cuda"):
        twin = copy.deepcopy(model).to(device)
        inputs = (tensor.to(device) for tensor in (features_BFD, frames_B, tokens_BU))
        encoded_BFP, *_ = students.encode_and_predict(twin, *inputs)
        encoded_BFP[0].square().mean().backward()
        gradients = [weight.grad for weight in twin.encoder.parameters() if weight.grad is not None]
        answers.append([encoded_BFP.detach().cpu(), *(gradient.cpu() for gradient in gradients)])
    for one, two in zip(*answers, strict=True):
        assert (one - two).norm() <= 1e-3 * one.norm() + 1e-6
