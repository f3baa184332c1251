"""Losses against plain loops in double precision and against values known from elsewhere."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
    tokens_BU = torch.tensor([each + [-1] * (longest - len(each)) for each in tokens], dtype=torch.long)
    found_B = losses.ctc(logits_BFV, torch.tensor(frames), tokens_BU, torch.tensor([len(t) for t in tokens]), 5)
    assert found_B.dtype == torch.float32
    for i, (num_frames, each) in enumerate(zip(frames, tokens, strict=True)):
        wanted = forward_nll(logits_BFV[i, :num_frames].double().numpy(), each, 5)
        feasible = num_frames >= len(each) + sum(a == b for a, b in itertools.pairwise(each))
        assert np.isfinite(wanted) == feasible
        assert found_B[i].item() == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_half_precision_logits_lose_nothing_in_the_loss_itself() -> None:
    logits_BFV = torch.randn(2, 20, 9).bfloat16()
    arguments = torch.tensor([20, 15]), torch.tensor([[1, 2, 3], [4, 4, -1]]), torch.tensor([3, 2]), 8
    assert torch.equal(losses.ctc(logits_BFV, *arguments), losses.ctc(logits_BFV.float(), *arguments))


def test_ctc_and_its_gradient_are_the_values_known_from_warp_ctc(shared_data: Callable[[str], Path]) -> None:
    known = json.loads((shared_data("peer-vectors") / "ctc_loss_known.json").read_text())
    logits_FBV = torch.tensor(known["probs"]).log().requires_grad_()
    lengths = [len(each) for each in known["labels"]]
    tokens_BU = torch.tensor([each + [-1] * (max(lengths) - len(each)) for each in known["labels"]])
    found_B = losses.ctc(
        logits_FBV.transpose(0, 1),
        torch.tensor(known["input_lengths"]),
        tokens_BU,
        torch.tensor(lengths),
        known["blank"],
    )
    assert found_B.tolist() == pytest.approx(known["expected_nll"], abs=1e-4)
    found_B.sum().backward()
    assert logits_FBV.grad is not None
    assert torch.allclose(logits_FBV.grad, torch.tensor(known["expected_grad_wrt_logits"]), atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    spans=st.lists(
        st.lists(st.integers(0, 900), min_size=2, max_size=8).map(sorted).filter(lambda each: len(each) % 2 == 0),
        min_size=1,
        max_size=3,
    ),
    frame_ms=st.sampled_from([72.0, 80.0, 88.5]),
)
def test_a_frames_target_is_the_token_said_at_its_middle(spans: list[list[int]], frame_ms: float) -> None:
    longest = max(len(each) for each in spans) // 2
    times_BU2 = torch.full((len(spans), longest, 2), -1)
    tokens_BU = torch.zeros(len(spans), longest, dtype=torch.long)
    for b, each in enumerate(spans):
        for u in range(len(each) // 2):
            times_BU2[b, u] = torch.tensor(each[2 * u : 2 * u + 2])
            tokens_BU[b, u] = u + 1
    frame_ms_B = torch.full((len(spans),), frame_ms)
    found_BF = losses.alignment_targets(times_BU2, tokens_BU, frame_ms_B, 12, 9)
    for b, each in enumerate(spans):
        for frame in range(12):
            said = [u + 1 for u in range(len(each) // 2) if each[2 * u] <= (frame + 0.5) * frame_ms < each[2 * u + 1]]
            assert found_BF[b, frame] == (said[0] if said else 9)


@settings(max_examples=30, deadline=None)
@given(frames=st.lists(st.integers(0, 7), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_cross_entropy_counts_an_utterances_own_frames_and_no_padding(frames: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_BFV = torch.randn(len(frames), 7, 5, generator=generator)
    targets_BF = torch.randint(0, 5, (len(frames), 7), generator=generator)
    found_B = losses.frame_cross_entropy(logits_BFV, torch.tensor(frames), targets_BF)
    probs_BFV = logits_BFV.double().softmax(-1)
    for b, num_frames in enumerate(frames):
        wanted = sum(-float(probs_BFV[b, f, targets_BF[b, f]].log()) for f in range(num_frames))
        assert found_B[b].item() == pytest.approx(wanted, abs=1e-4)
