"""CTC in Triton: interpreted and compared with torch in fp64, compiled for GPUs, and run where there is one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nn import ctc_once, gpu_builds


def random_texts(num: int) -> tuple[list[int], list[list[int]]]:
    """Frames, and texts of few labels, so that tokens repeat and some have no path."""
    generator = random.Random(0)
    texts = [generator.choices([0, 1, 3], k=generator.randint(0, 4)) for _ in range(num)]
    return [generator.randint(0, 7) for _ in texts], texts


RANDOM_FRAMES, RANDOM_TEXTS = random_texts(6)
CASES = [
    # frames, texts, labels, blank, type of integers, and how many utterances have no path
    ([34], [[n % 5 + 1 for n in range(33)]], 7, 0, "int64", 0),  # more states than a warp has lanes
    ([6, 2], [[], []], 33, 32, "int32", 0),  # one state
    (
        # as long as frames allow, and one longer; neither frames nor tokens: the path is empty
        [3, 4, 1, 3, 0, 0, *RANDOM_FRAMES],
        [[1, 3, 0], [0, 0, 3], [3], [1, 1, 0], [], [1], *RANDOM_TEXTS],
        *(4, 2, "int64", 4),
    ),
]
LONG = ([200, 180], [[n % 50 for n in range(150)], [1, 2] * 35], 101, 77, "int64", 0)  # lanes of several warps


def compared(device: str, cases: list[Any], tolerance: float, **environment: str) -> None:
    arguments = json.dumps([case[:-1] for case in cases])
    # the kernels are interpreted only where the variable is set before Triton is imported
    command = [sys.executable, "-W", "ignore", ctc_once.__file__, device, arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment})
    for case, line in zip(cases, process.stdout.splitlines(), strict=True):
        errors, num_impossible = json.loads(line)
        assert max(errors) <= tolerance, (case, errors)
        assert num_impossible == case[-1]


def test_the_kernels_give_the_loss_and_the_gradient_of_torch() -> None:
    pytest.importorskip("triton", minversion="3.7")  # the interpreter of 3.6 cannot do with NumPy 2.4
    compared("cpu", CASES, 1e-5, TRITON_INTERPRET="1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_loss_and_the_gradient_of_torch_without_a_wait_of_the_host() -> None:
    pytest.importorskip("triton")
    compared("cuda", CASES, 1e-5)
    compared("cuda", [LONG], 1e-4)  # of 200 frames, torch in fp32 is no closer to fp64


@pytest.mark.parametrize(("capability", "num_states"), [(80, 300), (90, 40)])
def test_the_kernels_can_be_built_for_a_gpu_and_guard_what_goes_from_warp_to_warp(
    capability: int, num_states: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from voxstill.nn import ctc_triton, triton_lanes

    def type_of(name: str) -> str:
        if name in ("tokens_BU", "frames_B", "token_len_B"):
            return "*i64"
        return "*fp32" if name.rsplit("_", 1)[-1].isupper() else "i32"

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    shape = triton_lanes.shape(num_states)
    constants: dict[str, Any] = {"LANES": shape["LANES"], "AHEAD": 1}
    for kernel in (ctc_triton.log_sum_kernel, ctc_triton.posterior_kernel, ctc_triton.gradient_kernel):
        built = gpu_builds.build(kernel, type_of, constants, capability, num_warps=shape["num_warps"])
        # one before lanes are written, one before they are read; a warp alone needs none
        num_barriers = built.asm["ptx"].count("bar.sync")
        assert num_barriers >= 2 if num_states > 64 else num_barriers == 0
