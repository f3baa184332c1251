"""The fused FastConformer: outputs, gradients and statistics of the modules of transformers."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nn import fused_once, gpu_builds
from voxstill.nn import conformer_gpu, students


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the interpreter of Triton computes, in a process of its own: Triton is imported for it, or for a GPU."""
    pytest.importorskip("triton", minversion="3.7")  # the interpreter of 3.6 cannot do with NumPy 2.4
    output = tmp_path_factory.mktemp("interpreted") / "output.json"
    command = [sys.executable, "-W", "ignore", fused_once.__file__, str(output)]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    computed: dict[str, Any] = json.loads(output.read_text())
    return computed


def check_distances(distances: list[dict[str, float]]) -> None:
    for errors in distances:
        assert len(errors) > 70
        # without an influence on the output, these have a gradient of rounding errors: BatchNorm and softmax take it
        without = [name for name in errors if name.endswith(("depthwise_conv.bias", "k_proj.bias"))]
        assert max(error for name, error in errors.items() if name not in without) < 2e-4


def test_a_fused_student_has_the_outputs_and_gradients_of_the_modules(interpreted: dict[str, Any]) -> None:
    check_distances(interpreted["distances"])


def test_a_fused_block_takes_what_the_modules_take_and_gives_their_precision(interpreted: dict[str, Any]) -> None:
    facts = interpreted["block"]
    assert facts["same"]  # of a slice of memory
    assert facts["finite"]  # statistics of BatchNorm after a single frame
    assert facts["refused"].startswith("Expected more than 1 value per channel when training")
    assert facts["alone"] == "torch.bfloat16"
    assert facts["mixed"] == ["torch.float32"] * 2  # as the last norm of a block under autocast


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_fused_block_on_a_gpu_takes_many_short_utterances() -> None:
    model: Any = students.build("tiny", 9, dropout=0.0, seed=0).cuda().train()
    hidden_BFE = torch.randn(1 << 15, 2, 128, device="cuda", requires_grad=True)  # CUDA has 65,535 blocks on two axes
    positions = model.encoder.encode_positions(hidden_BFE)
    out_BFE = model.encoder.layers[0](hidden_BFE, attention_mask=None, position_embeddings=positions)
    out_BFE.square().sum().backward()
    assert hidden_BFE.grad is not None
    assert bool(hidden_BFE.grad.isfinite().all())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_fused_student_on_a_gpu_has_the_outputs_and_gradients_of_the_modules() -> None:
    check_distances(fused_once.distances(torch.device("cuda")))


CONSTANTS: dict[str, float] = {
    **{"WIDTH": 512, "LANES": 512, "CHANNELS": 256, "TAPS": 9, "HEADS": 8, "HEAD": 64, "ROWS": 4, "BLOCK": 1024},
    **{"BLOCK_N": 16, "BLOCK_F": 16, "BLOCK_E": 64, "BLOCK_C": 64, "BLOCK_G": 64, "BLOCK_P": 64},
    **{"HAS_DELTA": True, "HAS_GRAD_SUM": True, "HAS_BIAS": True, "IS_BACKWARD": False},
    **{"eps": 1e-5, "scale": 0.125, "least": -3e38},
}


def type_of(name: str, dtype: str) -> str:
    """The type of a parameter of a kernel; those with axes are tensors, and statistics are in fp32."""
    if name.rsplit("_", 1)[-1].isupper():
        is_statistic = name.startswith(("mean", "rstd", "part", "running", "sum"))
        return {"frames_B": "*i64", "is_own_N": "*u8"}.get(name, "*fp32" if is_statistic else f"*{dtype}")
    return "fp32" if name in ("scale", "momentum") else "i32"


@pytest.mark.parametrize(("capability", "dtype"), [(80, "fp32"), (90, "bf16")])
def test_all_kernels_can_be_built_for_a_gpu(
    capability: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from voxstill.nn import attention_triton, conformer_triton, convolution_triton, subsampling_triton

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels: list[Any] = [
        kernel
        for module in (attention_triton, conformer_triton, convolution_triton, subsampling_triton)
        for name, kernel in vars(module).items()
        if name.endswith("_kernel")
    ]
    assert len(kernels) == 23
    for kernel in kernels:
        gpu_builds.build(kernel, lambda name: type_of(name, dtype), CONSTANTS, capability)


def test_a_student_on_a_cpu_runs_its_modules() -> None:
    fused = students.build("tiny", 9, dropout=0.0, seed=0)
    plain: Any = type(fused)(fused.config).to(memory_format=torch.channels_last)
    plain.load_state_dict(fused.state_dict())
    features_BFD, frames_B = torch.randn(2, 50, 80), torch.tensor([50, 30])
    copied = copy.deepcopy(fused)
    logits, of_copy, of_plain = (
        students.logits(model.train(), features_BFD, frames_B)[0] for model in (fused, copied, plain)
    )
    assert torch.equal(logits, of_plain)
    assert torch.equal(logits, of_copy)


def test_dropout_frozen_norms_and_other_activations_are_left_to_the_modules() -> None:
    def block_of(dropout: float) -> Any:
        return students.build("tiny", 9, dropout=dropout, seed=0).train().encoder.layers[0]

    assert conformer_gpu.is_known(block_of(0.0))
    assert not conformer_gpu.is_known(block_of(0.1))
    frozen, other, synced = (block_of(0.0) for _ in range(3))
    frozen.conv.norm.eval()
    other.self_attn.config.hidden_act = "relu"
    synced.conv.norm = nn.SyncBatchNorm(128)
    assert not any(map(conformer_gpu.is_known, (frozen, other, synced)))
