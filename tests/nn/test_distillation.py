"""Losses of distillation, against plain sums over all probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from voxstill.nn import losses


def softmax(scores: list[float], temperature: float) -> list[float]:
    powers = [math.exp(score / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


def kl(teacher: list[float], student: list[float], temperature: float) -> float:
    p, q = softmax(teacher, temperature), softmax(student, temperature)
    return temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_divergence_is_that_of_plain_sums(temperature: float) -> None:
    random = torch.Generator().manual_seed(0)
    student_NV, teacher_NV = torch.randn(2, 3, 5, generator=random)
    wanted = [kl(t, s, temperature) for t, s in zip(teacher_NV.tolist(), student_NV.tolist(), strict=True)]
    assert losses.divergence(student_NV, teacher_NV, temperature).tolist() == pytest.approx(wanted, rel=1e-4)
    assert losses.divergence(teacher_NV, teacher_NV, temperature).tolist() == pytest.approx([0.0] * 3, abs=1e-6)


def test_own_frames_alone_count_and_are_compared_with_those_at_their_middle() -> None:
    random = torch.Generator().manual_seed(0)
    student_BFV, teacher_BFV = torch.randn(2, 4, 5, generator=random), torch.randn(2, 8, 5, generator=random)
    frames_B, teacher_frames_B = torch.tensor([4, 3]), torch.tensor([8, 3])
    loss_B = losses.frame_distillation(student_BFV, frames_B, teacher_BFV, teacher_frames_B, 2.0)
    # twice as many frames: the middle of frame 0 is where frame 1 begins; as many: one by one
    places = [[1, 3, 5, 7], [0, 1, 2]]
    wanted = [
        sum(kl(teacher_BFV[b, t].tolist(), student_BFV[b, f].tolist(), 2.0) for f, t in enumerate(places[b]))
        for b in range(2)
    ]
    assert loss_B.tolist() == pytest.approx(wanted, rel=1e-4)
    fewer_B = losses.frame_distillation(student_BFV, frames_B, teacher_BFV, torch.tensor([2, 1]), 1.0)
    places = [[0, 0, 1, 1], [0, 0, 0]]
    wanted = [
        sum(kl(teacher_BFV[b, t].tolist(), student_BFV[b, f].tolist(), 1.0) for f, t in enumerate(places[b]))
        for b in range(2)
    ]
    assert fewer_B.tolist() == pytest.approx(wanted, rel=1e-4)


def test_the_teacher_gets_no_gradient_and_the_student_that_of_its_probabilities() -> None:
    student_V, teacher_V = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    losses.divergence(student_V, teacher_V, 1.0).backward()  # type: ignore[no-untyped-call]
    assert teacher_V.grad is None
    assert student_V.grad is not None
    torch.testing.assert_close(student_V.grad, (student_V.softmax(-1) - teacher_V.softmax(-1)).detach())
