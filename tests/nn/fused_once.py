"""The fused FastConformer beside the modules of transformers, on a GPU, or by the interpreter of Triton in its place.

Run as a program it writes what the interpreter computes into the file of its argument; it needs `TRITON_INTERPRET`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voxstill.nn import conformer_gpu, students


def fuse_on_a_cpu() -> None:
    """Whatever trains is fused: the interpreter of Triton takes the place of the GPU."""
    vars(conformer_gpu)["is_fused"] = lambda module, inputs: module.training and torch.is_grad_enabled()


def distances(device: torch.device) -> list[dict[str, float]]:
    """How far outputs, buffers and gradients are apart, as a share of their norm, with and without biases."""
    torch.backends.cudnn.allow_tf32 = False  # on a GPU, convolutions of the modules would be less exact than products
    return [_distances(device, biased) for biased in (True, False)]


def _distances(device: torch.device, biased: bool) -> dict[str, float]:
    torch.manual_seed(0)
    built = students.build("tiny", 30, dropout=0.0, seed=0)
    config = built.config.encoder_config
    if device.type == "cpu":  # the interpreter's time: most of it is that of mels, the rest that of layers
        config.num_mel_bins, config.num_hidden_layers = 16, 2
    num_mels = config.num_mel_bins
    config.attention_bias = config.convolution_bias = biased
    if not biased:  # heads of 36, as in `medium`, and a width that is no power of 2
        config.hidden_size, config.num_attention_heads, config.num_key_value_heads = 72, 2, 2
    fused: Any = students.from_encoder("ctc", config, 30, 0)
    weights = {name: weight for name, weight in built.state_dict().items() if name in fused.state_dict()}
    weights |= {name: weight for name, weight in fused.state_dict().items() if weight.shape != weights[name].shape}
    fused.load_state_dict(weights)
    for norm in (module for module in fused.modules() if isinstance(module, torch.nn.BatchNorm1d | torch.nn.LayerNorm)):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.normal_(norm.bias)
    plain = type(fused)(fused.config)
    plain.load_state_dict(fused.state_dict())
    len_B = torch.tensor([29, 12], device=device)
    features_BFD = torch.randn(2, 29, num_mels, device=device)
    features_BFD *= (torch.arange(29, device=device) < len_B[:, None])[..., None]
    one, two = (_results(model.to(device).train(), features_BFD, len_B) for model in (plain, fused))
    of_norms = torch.stack([value.norm() for value in one.values()]).median()
    return {name: float((one[name] - two[name]).norm() / (one[name].norm() + 1e-3 * of_norms)) for name in one}


def _results(model: Any, features_BFD: Tensor, len_B: Tensor) -> dict[str, Tensor]:
    logits_BFV, frames_B = students.logits(model, features_BFD, len_B)
    own_BF = torch.arange(logits_BFV.shape[1], device=len_B.device) < frames_B[:, None]
    weights = torch.randn(logits_BFV.shape, generator=torch.Generator().manual_seed(1)).to(len_B.device)
    (logits_BFV * weights)[own_BF].sum().backward()  # type: ignore[no-untyped-call]
    buffers = {name: value.float() for name, value in model.named_buffers()}
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return {"logits": logits_BFV[own_BF].detach(), **buffers, **gradients}


def facts_of_a_block() -> dict[str, object]:
    """What a block makes of a slice of memory, of a single frame, and of other precisions."""
    model: Any = students.build("tiny", 30, dropout=0.0, seed=0).train()
    block, positions = model.encoder.layers[0], model.encoder.encode_positions
    hidden_BFE = torch.randn(1, 9, 256)[..., :128]

    def run(hidden_BFE: Tensor) -> Tensor:
        out_BFE: Tensor = block(hidden_BFE, attention_mask=None, position_embeddings=positions(hidden_BFE))
        return out_BFE

    facts: dict[str, object] = {"same": torch.equal(run(hidden_BFE), run(hidden_BFE.contiguous()))}
    try:
        run(hidden_BFE[:, :1])
    except ValueError as error:
        facts["refused"] = str(error)
    facts["finite"] = bool(block.conv.norm.running_var.isfinite().all())
    facts["alone"] = str(run(hidden_BFE.bfloat16()).dtype)
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    facts["mixed"] = [str(run(hidden_BFE).dtype), str(run(hidden_BFE.bfloat16()).dtype)]
    return facts


if __name__ == "__main__":
    fuse_on_a_cpu()
    computed = {"distances": distances(torch.device("cpu")), "block": facts_of_a_block()}
    Path(sys.argv[1]).write_text(json.dumps(computed))
