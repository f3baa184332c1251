"""Losses of distillation, against plain sums over all probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from voxstill.nn import distillation, losses


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
    assert distillation.divergence(student_NV, teacher_NV, temperature).tolist() == pytest.approx(wanted, rel=1e-4)
    assert distillation.divergence(teacher_NV, teacher_NV, temperature).tolist() == pytest.approx([0.0] * 3, abs=1e-6)


def test_own_frames_alone_count_and_are_compared_with_those_at_their_middle() -> None:
    random = torch.Generator().manual_seed(0)
    student_BFV, teacher_BFV = torch.randn(2, 4, 5, generator=random), torch.randn(2, 8, 5, generator=random)
    frames_B, teacher_frames_B = torch.tensor([4, 3]), torch.tensor([8, 3])
    loss_B = distillation.of_frames(student_BFV, frames_B, teacher_BFV, teacher_frames_B, 2.0)
    # twice as many frames: the middle of frame 0 is where frame 1 begins; as many: one by one
    places = [[1, 3, 5, 7], [0, 1, 2]]
    wanted = [
        sum(kl(teacher_BFV[b, t].tolist(), student_BFV[b, f].tolist(), 2.0) for f, t in enumerate(places[b]))
        for b in range(2)
    ]
    assert loss_B.tolist() == pytest.approx(wanted, rel=1e-4)
    fewer_B = distillation.of_frames(student_BFV, frames_B, teacher_BFV, torch.tensor([2, 1]), 1.0)
    places = [[0, 0, 1, 1], [0, 0, 0]]
    wanted = [
        sum(kl(teacher_BFV[b, t].tolist(), student_BFV[b, f].tolist(), 1.0) for f, t in enumerate(places[b]))
        for b in range(2)
    ]
    assert fewer_B.tolist() == pytest.approx(wanted, rel=1e-4)


def test_the_teacher_gets_no_gradient_and_the_student_that_of_its_probabilities() -> None:
    student_V, teacher_V = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    distillation.divergence(student_V, teacher_V, 1.0).backward()  # type: ignore[no-untyped-call]
    assert teacher_V.grad is None
    assert student_V.grad is not None
    torch.testing.assert_close(student_V.grad, (student_V.softmax(-1) - teacher_V.softmax(-1)).detach())


def lattice_of(logits_BFUV: torch.Tensor, tokens_BU: torch.Tensor, blank_id: int, durations: int) -> losses.Lattice:
    """The lattice of a joint that adds what stands at a frame and at a state, which are one-hot here."""
    num, frames, states, _ = logits_BFUV.shape

    def joint(encoded_BF1E: torch.Tensor, predicted_B1UP: torch.Tensor) -> torch.Tensor:
        place = torch.arange(num)[:, None, None], encoded_BF1E[..., 0].long(), predicted_B1UP[..., 0].long()
        return logits_BFUV[place]

    encoded_BFE = torch.arange(frames).float()[None, :, None].expand(num, -1, 1).clone().requires_grad_()
    predicted_BUP = torch.arange(states).float()[None, :, None].expand(num, -1, 1)
    return losses.lattice(joint, encoded_BFE, predicted_BUP, tokens_BU, blank_id, durations, with_rest=True, chunk=3)


def node_divergence(
    student_V: torch.Tensor, teacher_V: torch.Tensor, token: int | None, blank_id: int, temperature: float
) -> torch.Tensor:
    """Of one node: the blank, the next token and the rest, and then the durations."""
    total = torch.zeros((), dtype=torch.float64)
    student_D, teacher_D = student_V[blank_id + 1 :], teacher_V[blank_id + 1 :]
    pairs = []
    for values_V in (student_V, teacher_V):
        p_V = values_V[: blank_id + 1].softmax(-1)
        taken = [blank_id] if token is None else [blank_id, token]
        rest = sum(p_V[v] for v in range(blank_id + 1) if v not in taken)
        pairs.append(torch.stack([*(p_V[v] for v in taken), torch.as_tensor(rest)]).log())
    pairs = [*pairs, student_D, teacher_D] if len(student_D) else pairs
    for student, teacher in zip(pairs[::2], pairs[1::2], strict=True):
        q, p = (student / temperature).softmax(-1), (teacher / temperature).softmax(-1)
        total = total + temperature**2 * (p * (p / q).log()).sum()
    return total


@pytest.mark.parametrize(("durations", "temperature", "seed"), [(0, 1.0, 0), (0, 2.5, 1), (3, 1.0, 2), (2, 0.7, 3)])
def test_the_divergence_of_a_lattice_and_its_gradient_are_those_of_each_node(
    durations: int, temperature: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    shape, blank_id = (3, 7, 4, 6 + durations), 5
    frames_B, tokens = torch.tensor([7, 4, 1]), [[0, 3, 3], [4], []]
    tokens_BU = torch.tensor([row + [-1] * (3 - len(row)) for row in tokens])
    token_len_B = torch.tensor([len(row) for row in tokens])
    student_BFUV, teacher_BFUV = (3 * torch.randn(shape, generator=random) for _ in range(2))
    exact_BFUV = student_BFUV.double().requires_grad_()
    wanted = [
        sum(
            node_divergence(exact_BFUV[b, f, u], teacher_BFUV[b, f, u].double(), [*row, None][u], blank_id, temperature)
            for f in range(int(frames_B[b]))
            for u in range(len(row) + 1)
        )
        / (len(row) + 1)
        for b, row in enumerate(tokens)
    ]
    student_BFUV.requires_grad_()
    student, teacher = (lattice_of(x, tokens_BU, blank_id, durations) for x in (student_BFUV, teacher_BFUV))
    loss_B = distillation.of_lattice(student, teacher, frames_B, token_len_B, temperature)
    assert loss_B.tolist() == pytest.approx([float(value.detach()) for value in wanted], rel=1e-4, abs=1e-6)
    weight_B = torch.arange(1.0, 4.0)
    (loss_B * weight_B).sum().backward()  # type: ignore[no-untyped-call]
    sum(value * weight for value, weight in zip(wanted, weight_B, strict=True)).backward()  # type: ignore[union-attr]
    assert student_BFUV.grad is not None
    assert exact_BFUV.grad is not None
    assert (student_BFUV.grad - exact_BFUV.grad).abs().max() <= 1e-4 * exact_BFUV.grad.abs().max()
    itself_B = distillation.of_lattice(student, student, frames_B, token_len_B, temperature)
    assert itself_B.tolist() == pytest.approx([0.0] * 3, abs=1e-5)


def test_a_lattice_of_sure_nodes_or_of_a_single_token_gives_finite_gradients() -> None:
    tokens_BU, one_B = torch.zeros(1, 2, dtype=torch.long), torch.ones(1, dtype=torch.long)
    for vocabulary in (1, 3):
        logits_BFUV = torch.zeros(1, 2, 3, vocabulary + 1)
        logits_BFUV[..., 0] = 60.0  # the rest is e^-60
        teacher = lattice_of(logits_BFUV.flip(-1), tokens_BU, vocabulary, 0)
        student_BFUV = logits_BFUV.clone().requires_grad_()
        student = lattice_of(student_BFUV, tokens_BU, vocabulary, 0)
        loss_B = distillation.of_lattice(student, teacher, 2 * one_B, 2 * one_B, 1.0)
        loss_B.sum().backward()  # type: ignore[no-untyped-call]
        assert student_BFUV.grad is not None
        assert loss_B.isfinite().all()
        assert student_BFUV.grad.isfinite().all()
        assert loss_B > 1


def test_the_distance_of_layers_is_that_of_normalised_frames_matched_by_their_middle() -> None:
    random = torch.Generator().manual_seed(0)
    state_BFE, teacher_BFE = (torch.randn(2, frames, 6, generator=random) for frames in (4, 8))
    teacher_BFE = (100 * teacher_BFE + 7).requires_grad_()
    frames_B, teacher_frames_B = torch.tensor([4, 3]), torch.tensor([8, 3])
    exact_BFE = state_BFE.double().requires_grad_()

    def normal(values_E: torch.Tensor) -> torch.Tensor:
        return (values_E - values_E.mean()) / values_E.var(correction=0).add(1e-5).sqrt()

    wanted = [
        sum(
            (normal(exact_BFE[b, f]) - normal(teacher_BFE[b, t].detach().double())).square().mean()
            for f, t in enumerate(places)
        )
        for b, places in enumerate([[1, 3, 5, 7], [0, 1, 2]])
    ]
    state_BFE.requires_grad_()
    loss_B = distillation.of_layer(state_BFE, frames_B, teacher_BFE, teacher_frames_B)
    assert loss_B.tolist() == pytest.approx([float(value.detach()) for value in wanted], rel=1e-4, abs=1e-6)
    loss_B.sum().backward()  # type: ignore[no-untyped-call]
    sum(wanted).backward()  # type: ignore[union-attr]
    assert teacher_BFE.grad is None
    assert state_BFE.grad is not None
    assert exact_BFE.grad is not None
    assert torch.allclose(state_BFE.grad.double(), exact_BFE.grad, atol=1e-5)
    # a layer is like itself at any scale, and frames that a teacher does not take do not count
    scaled_B = distillation.of_layer(state_BFE, frames_B, 3 * state_BFE, frames_B)
    assert scaled_B.tolist() == pytest.approx([0.0, 0.0], abs=1e-4)
    half_B = distillation.of_layer(state_BFE, frames_B, state_BFE.flip(-1)[:, :2], frames_B)
    short_B = distillation.of_layer(state_BFE, torch.tensor([2, 2]), state_BFE.flip(-1)[:, :2], torch.tensor([2, 2]))
    assert half_B.tolist() == pytest.approx(short_B.tolist(), rel=1e-5)
