"""CTC in Triton beside torch in fp64, on a GPU, or by the interpreter of Triton in its place.

Run as a program with a device and cases as JSON, it writes a line for each case: the relative errors of the losses and
of the gradients, and how many utterances have no path. Without a GPU it needs `TRITON_INTERPRET`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from voxstill.nn import losses


@contextlib.contextmanager
def without_waits(device: torch.device) -> Iterator[None]:
    """An error where the host waits for the GPU."""
    if device.type == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check(
    device: torch.device, frames: list[int], texts: list[list[int]], num_labels: int, blank_id: int, dtype: str
) -> tuple[list[float], int]:
    """The errors, and how many utterances have no path; lengths and tokens are integers of that type."""
    torch.manual_seed(0)
    lengths = [len(text) for text in texts]
    logits_BFV = torch.randn(num_labels, max(frames) + 1, len(frames)).transpose(0, 2).requires_grad_()
    tokens_BU = torch.tensor([(text + [-1, 10**9] * 99)[: max(lengths) + 1] for text in texts])
    weight_B = torch.arange(1.0, len(frames) + 1)
    expected_B = functional.ctc_loss(
        logits_BFV.double().log_softmax(-1).transpose(0, 1),
        tokens_BU,
        torch.tensor(frames),
        torch.tensor(lengths),
        blank_id,
        "none",
    )
    (expected_BFV,) = torch.autograd.grad(expected_B, logits_BFV, weight_B)

    frames_B, token_len_B = (torch.tensor(numbers, dtype=getattr(torch, dtype)) for numbers in (frames, lengths))
    arguments = [tensor.to(device) for tensor in (frames_B, tokens_BU.to(frames_B.dtype), token_len_B)]
    logits_BFV, weight_B = logits_BFV.detach().to(device).requires_grad_(), weight_B.to(device)
    results = []
    for _ in range(1 if device.type == "cpu" else 2):
        with without_waits(device):
            loss_B = losses.ctc(logits_BFV, *arguments, blank_id)
            (gradient_BFV,) = torch.autograd.grad(loss_B, logits_BFV, weight_B)
        results.append((loss_B.detach().cpu(), gradient_BFV.cpu()))
    loss_B, gradient_BFV = results[0]
    assert torch.equal(loss_B, results[-1][0])
    assert torch.equal(gradient_BFV, results[-1][1])

    has_path_B = expected_B.isfinite()
    assert (loss_B[~has_path_B] == torch.inf).all()
    assert not gradient_BFV[~has_path_B].any()
    if device.type == "cuda" or 0 < max(lengths) < 9:  # the interpreter takes seconds
        check_padding(loss_B, logits_BFV.detach(), arguments, blank_id)
    pairs = ((loss_B, expected_B), (gradient_BFV, expected_BFV))
    errors = [float((one - two)[has_path_B].abs().max() / two[has_path_B].abs().max()) for one, two in pairs]
    return errors, int((~has_path_B).sum())


def check_padding(loss_B: Tensor, logits_BFV: Tensor, arguments: list[Tensor], blank_id: int) -> None:
    """Padding is not read and has no gradient; the gradients of an own frame add up to the one of the loss."""
    from voxstill.nn import ctc_triton

    frames_B, tokens_BU, token_len_B = arguments
    is_own_BF = torch.arange(logits_BFV.shape[1], device=frames_B.device) < frames_B[:, None]
    log_probs_BFV = logits_BFV.log_softmax(-1).where(is_own_BF[..., None], torch.nan).requires_grad_()
    padded_B = ctc_triton.loss(log_probs_BFV, tokens_BU, frames_B, token_len_B, blank_id)
    assert torch.equal(padded_B.detach().cpu(), loss_B)
    weight_B = torch.arange(1.0, len(loss_B) + 1, device=frames_B.device)
    (gradient_BFV,) = torch.autograd.grad(padded_B, log_probs_BFV, weight_B)
    expected_BF = torch.where(is_own_BF & padded_B.isfinite()[:, None], -weight_B[:, None], 0)
    torch.testing.assert_close(gradient_BFV.sum(-1), expected_BF)


if __name__ == "__main__":
    place = torch.device(sys.argv[1])
    if place.type == "cpu":
        vars(losses)["_triton_runs"] = lambda _: True
    assert losses._triton_runs(place)
    for case in json.loads(sys.argv[2]):
        sys.stdout.write(json.dumps(check(place, *case)) + "\n")
