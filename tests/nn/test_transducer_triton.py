"""The Triton kernels: interpreted and compared with plain torch, compiled for GPUs, and run where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nn import gpu_builds
from voxstill.nn import losses

RNNT = ((1, 0), (0, 1))
TDT = ((0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (1, 0), (2, 0), (3, 0), (4, 0))

# the kernels are interpreted only where the variable is set before Triton is imported
COMPARE = """
import functools, json, sys
import torch
from voxstill.nn import losses

device = torch.device(sys.argv[1])
plain, kernels = lambda _: False, losses._triton_runs if device.type == "cuda" else lambda _: True
assert kernels(device)
for frames, lengths, durations in json.loads(sys.argv[2]):
    torch.manual_seed(0)
    num, shape = len(frames), (max(frames) + 1, max(lengths) + 1)
    encoded, predicted = (torch.randn(num, size, 5 + len(durations)).requires_grad_() for size in shape)
    tokens = torch.randint(0, 4, (num, max(lengths)))
    loss = functools.partial(losses.duration_transducer, durations=durations) if durations else losses.transducer
    results = []
    for kernel, place in ((plain, torch.device("cpu")), (kernels, device)):
        losses._triton_runs = kernel
        arguments = (tensor.to(place) for tensor in (encoded, predicted, tokens))
        lattice = losses.lattice(torch.mul, *arguments, 4, len(durations))
        nll = loss(lattice, torch.tensor(frames).to(place), torch.tensor(lengths).to(place))
        weight = torch.arange(1, num + 1, device=place).where(nll.isfinite(), 0)
        nll = nll.where(nll.isfinite(), 1e9)
        results.append((nll.detach().cpu(), *torch.autograd.grad((nll * weight).sum(), (encoded, predicted))))
    errors = [float((b - a).abs().max() / a.abs().max()) for a, b in zip(*results)]
    print(json.dumps([errors, int((results[0][0] == 1e9).sum())]))
"""
CASES = [
    # frames, tokens, durations, and how many utterances no path fits
    ([3, 4, 1, 6], [33, 5, 0, 1], [], 0),  # 34 states: two more than a warp has lanes
    ([6, 2, 1], [0, 0, 0], [], 0),  # one state
    ([9], [3], [], 0),
    ([7, 1, 5], [4, 1, 0], [0, 1, 2, 3, 4], 0),
    ([3, 1], [4, 1], [0, 2, 1], 0),
    ([5, 1, 4], [3, 0, 1], [0, 2], 2),  # an odd number of frames is not left by twos
]


def compared(device: str, **environment: str) -> None:
    cases = json.dumps([case[:3] for case in CASES])
    command = [sys.executable, "-W", "ignore", "-c", COMPARE, device, cases]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment})
    for case, line in zip(CASES, process.stdout.splitlines(), strict=True):
        errors, num_impossible = json.loads(line)
        assert max(errors) <= 1e-5, (case, errors)
        assert num_impossible == case[3]


def test_the_kernels_give_the_loss_and_the_gradient_of_plain_torch() -> None:
    pytest.importorskip("triton", minversion="3.7")  # the interpreter of 3.6 cannot do with NumPy 2.4
    compared("cpu", TRITON_INTERPRET="1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_loss_and_the_gradient_of_plain_torch() -> None:
    pytest.importorskip("triton")
    compared("cuda")


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("moves", "num_states", "num_barriers"), [(RNNT, 40, 0), (RNNT, 300, 2), (TDT, 300, 2)])
def test_the_kernels_can_be_built_for_a_gpu_and_guard_what_goes_from_warp_to_warp(
    moves: tuple[tuple[int, int], ...],
    num_states: int,
    num_barriers: int,
    capability: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    from voxstill.nn import transducer_triton

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = transducer_triton.shape(moves, num_states)
    num_warps = constants.pop("num_warps")
    types = dict.fromkeys(("frames_B", "token_len_B"), "*i64")
    types |= dict.fromkeys(("num", "num_frames", "num_states"), "i32")
    for kernel in (transducer_triton._log_sum_kernel, transducer_triton._gradient_kernel):
        built = gpu_builds.build(
            kernel, lambda name: types.get(name, "*fp32"), constants, capability, num_warps=num_warps
        )
        # one before the lanes are written, one before they are read; a warp alone needs none
        assert built.asm["ptx"].count("bar.sync") == num_barriers


@pytest.mark.skipif(torch.cuda.is_available(), reason="here they run")
def test_a_gpu_on_which_the_kernels_do_not_run_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    losses._triton_runs.cache_clear()
    with caplog.at_level("WARNING", "voxstill"):
        assert [losses._triton_runs(torch.device("cuda")) for _ in range(3)] == [False] * 3
    assert len(caplog.messages) == 1
    assert not losses._triton_runs(torch.device("cpu"))
    assert len(caplog.messages) == 1
