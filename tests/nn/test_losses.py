"""Losses against plain loops in double precision and against values known from elsewhere."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import forked
import joint_memory
from voxstill.nn import losses


def forward_nll(logits_FV: np.ndarray, tokens: list[int], blank_id: int) -> float:
    """The forward recursion of Graves et al. 2006, section 4.1, in double precision."""
    log_probs_FV = logits_FV - np.logaddexp.reduce(logits_FV, axis=1, keepdims=True)
    path = [blank_id]
    for token in tokens:
        path += [token, blank_id]
    alpha = np.full(len(path), -np.inf)
    alpha[: min(2, len(path))] = log_probs_FV[0, path[:2]]
    for row in log_probs_FV[1:]:
        before = alpha.copy()
        for s, token in enumerate(path):
            reach = [before[s]]
            if s >= 1:
                reach.append(before[s - 1])
            if s >= 2 and token not in (blank_id, path[s - 2]):
                reach.append(before[s - 2])
            alpha[s] = np.logaddexp.reduce(reach) + row[token]
    return float(-np.logaddexp.reduce(alpha[-2:]))


@settings(max_examples=60, deadline=None)
@given(
    frames=st.lists(st.integers(1, 14), min_size=1, max_size=4),
    tokens=st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=4, max_size=4),
    seed=st.integers(0, 999),
)
def test_ctc_is_the_forward_recursion_whatever_the_padding(
    frames: list[int], tokens: list[list[int]], seed: int
) -> None:
    tokens = tokens[: len(frames)]
    longest = max(map(len, tokens))
    logits_BFV = torch.randn(len(frames), max(frames) + 2, 6, generator=torch.Generator().manual_seed(seed)) * 3
    tokens_BU = torch.tensor([labels + [-1] * (longest - len(labels)) for labels in tokens], dtype=torch.long)
    loss_B = losses.ctc(logits_BFV, torch.tensor(frames), tokens_BU, torch.tensor([len(t) for t in tokens]), 5)
    assert loss_B.dtype == torch.float32
    for i, (num_frames, labels) in enumerate(zip(frames, tokens, strict=True)):
        expected = forward_nll(logits_BFV[i, :num_frames].double().numpy(), labels, 5)
        feasible = num_frames >= len(labels) + sum(a == b for a, b in itertools.pairwise(labels))
        assert np.isfinite(expected) == feasible
        assert loss_B[i].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_half_precision_logits_lose_nothing_in_the_loss_itself() -> None:
    logits_BFV = torch.randn(2, 20, 9).bfloat16()
    arguments = torch.tensor([20, 15]), torch.tensor([[1, 2, 3], [4, 4, -1]]), torch.tensor([3, 2]), 8
    assert torch.equal(losses.ctc(logits_BFV, *arguments), losses.ctc(logits_BFV.float(), *arguments))


def test_ctc_and_its_gradient_are_the_values_known_from_warp_ctc(shared_data: Callable[[str], Path]) -> None:
    vectors = json.loads((shared_data("peer-vectors") / "ctc_loss_known.json").read_text())
    logits_FBV = torch.tensor(vectors["probs"]).log().requires_grad_()
    lengths = [len(labels) for labels in vectors["labels"]]
    tokens_BU = torch.tensor([labels + [-1] * (max(lengths) - len(labels)) for labels in vectors["labels"]])
    loss_B = losses.ctc(
        logits_FBV.transpose(0, 1),
        torch.tensor(vectors["input_lengths"]),
        tokens_BU,
        torch.tensor(lengths),
        vectors["blank"],
    )
    assert loss_B.tolist() == pytest.approx(vectors["expected_nll"], abs=1e-4)
    loss_B.sum().backward()
    assert logits_FBV.grad is not None
    assert torch.allclose(logits_FBV.grad, torch.tensor(vectors["expected_grad_wrt_logits"]), atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    spans=st.lists(
        st.lists(st.integers(0, 900), min_size=2, max_size=8).map(sorted).filter(lambda edges: len(edges) % 2 == 0),
        min_size=1,
        max_size=3,
    ),
    frame_ms=st.sampled_from([72.0, 80.0, 88.5]),
)
def test_the_target_of_a_frame_is_the_token_spoken_at_its_middle(spans: list[list[int]], frame_ms: float) -> None:
    longest = max(len(edges) for edges in spans) // 2
    times_BU2 = torch.full((len(spans), longest, 2), -1)
    tokens_BU = torch.zeros(len(spans), longest, dtype=torch.long)
    for b, edges in enumerate(spans):
        for u in range(len(edges) // 2):
            times_BU2[b, u] = torch.tensor(edges[2 * u : 2 * u + 2])
            tokens_BU[b, u] = u + 1
    frame_ms_B = torch.full((len(spans),), frame_ms)
    targets_BF = losses.alignment_targets(times_BU2, tokens_BU, frame_ms_B, 12, 9)
    for b, edges in enumerate(spans):
        for frame in range(12):
            spoken = [
                u + 1 for u in range(len(edges) // 2) if edges[2 * u] <= (frame + 0.5) * frame_ms < edges[2 * u + 1]
            ]
            assert targets_BF[b, frame] == (spoken[0] if spoken else 9)


@settings(max_examples=30, deadline=None)
@given(frames=st.lists(st.integers(0, 7), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_cross_entropy_counts_an_utterances_own_frames_and_no_padding(frames: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_BFV = torch.randn(len(frames), 7, 5, generator=generator)
    targets_BF = torch.randint(0, 5, (len(frames), 7), generator=generator)
    loss_B = losses.frame_cross_entropy(logits_BFV, torch.tensor(frames), targets_BF)
    probs_BFV = logits_BFV.double().softmax(-1)
    for b, num_frames in enumerate(frames):
        expected = sum(-float(probs_BFV[b, f, targets_BF[b, f]].log()) for f in range(num_frames))
        assert loss_B[b].item() == pytest.approx(expected, abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(frames=st.lists(st.integers(1, 7), min_size=1, max_size=4), smoothing=st.sampled_from([0.1, 0.5]))
def test_smoothed_ctc_adds_the_divergence_from_uniform_over_an_utterances_own_frames(
    frames: list[int], smoothing: float
) -> None:
    logits_BFV = torch.randn(len(frames), 7, 5, generator=torch.Generator().manual_seed(0))
    tokens_BU, token_len_B = torch.ones(len(frames), 1, dtype=torch.long), torch.ones(len(frames), dtype=torch.long)
    arguments = torch.tensor(frames), tokens_BU, token_len_B, 0
    loss_B = losses.ctc(logits_BFV, *arguments, smoothing=smoothing)
    plain_B = losses.ctc(logits_BFV, *arguments)
    log_probs_BFV = logits_BFV.double().log_softmax(-1)
    for b, num_frames in enumerate(frames):
        divergence = sum(float((0.2 * (np.log(0.2) - log_probs_BFV[b, f])).sum()) for f in range(num_frames))
        assert loss_B[b].item() == pytest.approx((1 - smoothing) * plain_B[b].item() + smoothing * divergence, rel=1e-5)


def test_consistency_draws_each_view_to_the_other_and_is_zero_where_they_agree() -> None:
    frames_B = torch.tensor([4, 6])
    one_BFV = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    other_BFV = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert losses.consistency(one_BFV, one_BFV, frames_B).tolist() == pytest.approx([0, 0], abs=1e-6)
    losses.consistency(one_BFV, other_BFV, frames_B).sum().backward()
    # the gradient of KL(q || softmax(x)) by x is softmax(x) - q
    p_BFV, q_BFV = one_BFV.detach().softmax(-1), other_BFV.detach().softmax(-1)
    for gradient, expected in ((one_BFV.grad, (p_BFV - q_BFV) / 2), (other_BFV.grad, (q_BFV - p_BFV) / 2)):
        assert gradient is not None
        assert torch.allclose(gradient[1], expected[1], atol=1e-6)
        assert torch.allclose(gradient[0, :4], expected[0, :4], atol=1e-6)
        assert not gradient[0, 4:].any()


def joint_of(logits_BFUV: torch.Tensor) -> losses.Joint:
    """A joint that looks logits up: encoder and predictor give the place."""

    def joint(encoded_BF1E: torch.Tensor, predicted_B1UP: torch.Tensor) -> torch.Tensor:
        place = (
            torch.arange(len(logits_BFUV))[:, None, None],
            encoded_BF1E[..., 0].long(),
            predicted_B1UP[..., 0].long(),
        )
        return logits_BFUV[place]

    return joint


def transducer_of(
    logits_BFUV: torch.Tensor,
    frames: list[int],
    tokens: list[list[int]],
    blank_id: int,
    chunk: int = 8,
    durations: tuple[int, ...] = (),
) -> torch.Tensor:
    num, num_frames, num_states, _ = logits_BFUV.shape
    lattice = losses.lattice(
        joint_of(logits_BFUV),
        torch.arange(num_frames)[None, :, None].expand(num, -1, 1).float().requires_grad_(),
        torch.arange(num_states)[None, :, None].expand(num, -1, 1).float(),
        torch.tensor([labels + [-1] * (num_states - 1 - len(labels)) for labels in tokens], dtype=torch.long).view(
            num, -1
        ),
        blank_id,
        len(durations),
        chunk=chunk,
    )
    loss = functools.partial(losses.duration_transducer, durations=durations) if durations else losses.transducer
    return loss(lattice, torch.tensor(frames), torch.tensor(list(map(len, tokens))))


def path_nll(logits_FUV: torch.Tensor, tokens: list[int], blank_id: int) -> torch.Tensor:
    """The forward recursion of Graves 2012, section 2.4, cell by cell."""
    log_probs_FUV = logits_FUV.log_softmax(-1)
    alpha: dict[tuple[int, int], torch.Tensor] = {}
    for f in range(len(logits_FUV)):
        for u in range(len(tokens) + 1):
            reach = [alpha[f - 1, u] + log_probs_FUV[f - 1, u, blank_id]] if f else []
            reach += [alpha[f, u - 1] + log_probs_FUV[f, u - 1, tokens[u - 1]]] if u else []
            alpha[f, u] = torch.stack(reach).logsumexp(0) if reach else torch.zeros((), dtype=logits_FUV.dtype)
    return -(alpha[len(logits_FUV) - 1, len(tokens)] + log_probs_FUV[-1, len(tokens), blank_id])


@settings(max_examples=40, deadline=None)
@given(
    frames=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    tokens=st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=3, max_size=3),
    chunk=st.integers(1, 10),
    seed=st.integers(0, 999),
)
def test_transducer_and_its_gradient_are_the_forward_recursion_whatever_padding_and_chunk(
    frames: list[int], tokens: list[list[int]], chunk: int, seed: int
) -> None:
    tokens = tokens[: len(frames)]
    shape = len(frames), max(frames) + 1, max(map(len, tokens)) + 1, 6
    logits_BFUV = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2
    exact_BFUV = logits_BFUV.double().requires_grad_()
    expected = [
        path_nll(exact_BFUV[b, :num, : len(labels) + 1], labels, 5)
        for b, (num, labels) in enumerate(zip(frames, tokens, strict=True))
    ]
    logits_BFUV.requires_grad_()
    loss_B = transducer_of(logits_BFUV, frames, tokens, 5, chunk)
    assert loss_B.dtype == torch.float32
    assert loss_B.tolist() == pytest.approx([nll.item() for nll in expected], rel=1e-5)
    weight_B = torch.arange(1, len(frames) + 1)
    (loss_B * weight_B).sum().backward()
    sum(nll * weight for nll, weight in zip(expected, weight_B, strict=True)).backward()  # type: ignore[union-attr]
    assert logits_BFUV.grad is not None
    assert exact_BFUV.grad is not None
    assert (logits_BFUV.grad - exact_BFUV.grad).abs().max() <= 1e-5 * exact_BFUV.grad.abs().max()


def timed_path_nll(
    logits_FUV: torch.Tensor, tokens: list[int], blank_id: int, durations: tuple[int, ...]
) -> torch.Tensor:
    """The sum over all ways of Xu et al. 2023, section 3.1, cell by cell."""
    say_FUV = logits_FUV[..., : blank_id + 1].log_softmax(-1)
    last_FUD = logits_FUV[..., blank_id + 1 :].log_softmax(-1)
    none = torch.full((), -torch.inf, dtype=logits_FUV.dtype)
    num_frames, alpha, ends = len(logits_FUV), {}, [none]
    for f in range(num_frames):
        for u in range(len(tokens) + 1):
            ways = [none] if f or u else [torch.zeros((), dtype=logits_FUV.dtype)]
            for d, lasting in enumerate(durations):
                if lasting > 0 and f - lasting >= 0:
                    ways.append(alpha[f - lasting, u] + say_FUV[f - lasting, u, blank_id] + last_FUD[f - lasting, u, d])
                if u and f - lasting >= 0:
                    ways.append(
                        alpha[f - lasting, u - 1]
                        + say_FUV[f - lasting, u - 1, tokens[u - 1]]
                        + last_FUD[f - lasting, u - 1, d]
                    )
            possible = [way for way in ways if way > -torch.inf]
            alpha[f, u] = torch.stack(possible).logsumexp(0) if possible else none
    for d, lasting in enumerate(durations):
        f, u = num_frames - lasting, len(tokens)
        if lasting > 0 and f >= 0 and alpha[f, u] > -torch.inf:
            ends.append(alpha[f, u] + say_FUV[f, u, blank_id] + last_FUD[f, u, d])
    return -torch.stack([end for end in ends if end > -torch.inf] or [none]).logsumexp(0)


@settings(max_examples=40, deadline=None)
@given(
    frames=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    tokens=st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=3, max_size=3),
    durations=st.sampled_from([(0, 1, 2, 3, 4), (0, 1), (0, 2, 1)]),
    chunk=st.integers(1, 10),
    seed=st.integers(0, 999),
)
def test_a_transducer_with_durations_is_the_recursion_over_all_ways_and_the_loss_of_transformers(
    frames: list[int], tokens: list[list[int]], durations: tuple[int, ...], chunk: int, seed: int
) -> None:
    from transformers.loss.loss_tdt import tdt_loss

    tokens = tokens[: len(frames)]
    num_states = max(map(len, tokens)) + 1
    shape = len(frames), max(frames) + 1, num_states, 6 + len(durations)
    logits_BFUV = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2
    exact_BFUV = logits_BFUV.double().requires_grad_()
    expected = [
        timed_path_nll(exact_BFUV[b, :num, : len(labels) + 1], labels, 5, durations)
        for b, (num, labels) in enumerate(zip(frames, tokens, strict=True))
    ]
    logits_BFUV.requires_grad_()
    loss_B = transducer_of(logits_BFUV, frames, tokens, 5, chunk, durations)
    assert loss_B.tolist() == pytest.approx([nll.item() for nll in expected], rel=1e-5)
    peer_B = tdt_loss(
        logits_BFUV[..., :6],
        logits_BFUV[..., 6:],
        torch.tensor([labels + [0] * (num_states - 1 - len(labels)) for labels in tokens], dtype=torch.long).view(
            len(tokens), -1
        ),
        torch.tensor(frames),
        torch.tensor(list(map(len, tokens))),
        5,
        list(durations),
        reduction="none",
    )
    assert loss_B.tolist() == pytest.approx(peer_B.tolist(), rel=1e-5)
    total = sum(nll for nll in expected if nll.requires_grad and nll.isfinite())
    if not isinstance(total, torch.Tensor):
        return
    total.backward()
    loss_B[loss_B.isfinite()].sum().backward()
    assert logits_BFUV.grad is not None
    assert exact_BFUV.grad is not None
    assert (logits_BFUV.grad - exact_BFUV.grad).abs().max() <= 1e-5 * exact_BFUV.grad.abs().max()


def test_transducer_and_its_gradient_are_the_values_known_from_warp_transducer(
    shared_data: Callable[[str], Path],
) -> None:
    vectors = json.loads((shared_data("peer-vectors") / "rnnt_loss_known.json").read_text())["cases"]
    for case, logits, costs in (("small_test", "acts", "expected_cost"), ("big_test", "activations", "expected_costs")):
        values = vectors[case]
        logits_BFUV = torch.tensor(values[logits], requires_grad=True)
        tokens = values["labels"]
        loss_B = transducer_of(logits_BFUV, [logits_BFUV.shape[1]] * len(tokens), tokens, 0)
        assert loss_B.tolist() == pytest.approx(np.ravel(values[costs]).tolist(), rel=1e-5)
        loss_B.sum().backward()
        assert logits_BFUV.grad is not None
        assert torch.allclose(logits_BFUV.grad, torch.tensor(values["expected_grads"]), atol=1e-6)


def test_a_chunked_joint_needs_a_third_of_the_memory_at_most(tmp_path: Path) -> None:
    def run(chunk: int) -> list[float]:
        output = tmp_path / f"{chunk}.json"
        forked.call(joint_memory.measure, chunk, output, log=tmp_path / "log")
        values: list[float] = json.loads(output.read_text())
        return values

    chunked, whole = run(8), run(150)
    assert chunked[0] <= whole[0] / 3
    assert chunked[1:] == pytest.approx(whole[1:], rel=1e-5)
