"""The fused FastConformer: outputs, gradients and statistics of the modules of transformers."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from voxstill.nn import conformer_gpu, students

COMPARE = """
import copy, json, sys
import torch
from voxstill.nn import conformer_gpu, students

device, biased = torch.device(sys.argv[1]), sys.argv[2] == "biased"
torch.manual_seed(0)
torch.backends.cudnn.allow_tf32 = False  # on a GPU, convolutions of the modules would be less exact than the products
if device.type == "cpu":  # the interpreter of Triton takes the place of the GPU
    conformer_gpu.is_fused = lambda module, inputs: module.training and torch.is_grad_enabled()
fused = students.build("tiny", 30, dropout=0.0, seed=0)
if not biased:
    config = copy.deepcopy(fused.config)
    config.encoder_config.attention_bias = config.encoder_config.convolution_bias = False
    weights = fused.state_dict()
    fused = students.from_encoder("ctc", config.encoder_config, 30, 0)
    fused.load_state_dict({name: weights[name] for name in fused.state_dict()})
for norm in (module for module in fused.modules() if isinstance(module, torch.nn.BatchNorm1d | torch.nn.LayerNorm)):
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    torch.nn.init.normal_(norm.bias)
plain = type(fused)(fused.config)
plain.load_state_dict(fused.state_dict())
len_B = torch.tensor([61, 40, 9], device=device)
features_BFD = torch.randn(3, 61, 80, device=device)
features_BFD *= (torch.arange(61, device=device) < len_B[:, None])[..., None]
results = []
for model in (plain, fused):
    model.to(device).train()
    logits_BFV, frames_B = students.logits(model, features_BFD, len_B)
    own_BF = torch.arange(logits_BFV.shape[1], device=device) < frames_B[:, None]
    weights = torch.randn(logits_BFV.shape, generator=torch.Generator().manual_seed(1)).to(device)
    (logits_BFV * weights)[own_BF].sum().backward()
    buffers = {name: value.float() for name, value in model.named_buffers()}
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    results.append({"logits": logits_BFV[own_BF].detach(), **buffers, **gradients})
one, two = results
of_norms = torch.stack([value.norm() for value in one.values()]).median()
print(json.dumps({name: float((one[name] - two[name]).norm() / (one[name].norm() + 1e-3 * of_norms)) for name in one}))
"""


def compared(device: str, biases: str, **environment: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", COMPARE, device, biases]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment})
    errors = json.loads(process.stdout)
    assert len(errors) > 100
    # without an influence on the output, these have a gradient of rounding errors: BatchNorm and softmax take it away
    without = [name for name in errors if name.endswith(("depthwise_conv.bias", "k_proj.bias"))]
    assert max(error for name, error in errors.items() if name not in without) < 2e-4


@pytest.mark.parametrize("biases", ["biased", "plain"])
def test_a_fused_student_has_the_outputs_and_gradients_of_the_modules(biases: str) -> None:
    pytest.importorskip("triton", minversion="3.7")  # the interpreter of 3.6 cannot do with NumPy 2.4
    compared("cpu", biases, TRITON_INTERPRET="1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("biases", ["biased", "plain"])
def test_a_fused_student_on_a_gpu_has_the_outputs_and_gradients_of_the_modules(biases: str) -> None:
    compared("cuda", biases)


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
