"""Convolutions with time first, beside those of transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from voxstill.nn.conv_cpu import grouped_in_fp32, time_first


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_samples", [400, 5003, 16_001])
def test_outputs_and_gradients_are_those_of_transformers(bias: bool, num_samples: int) -> None:
    from transformers import Wav2Vec2Config
    from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2FeatureEncoder

    torch.manual_seed(num_samples)
    shape = {"conv_dim": (24,) * 7, "conv_bias": bias, "feat_extract_norm": "layer", "do_stable_layer_norm": True}
    reference: Any = Wav2Vec2FeatureEncoder(Wav2Vec2Config(**shape)).train()
    extractor = copy.deepcopy(reference)
    time_first(extractor)
    samples_BT = torch.randn(3, num_samples)
    expected_BCF, output_BCF = reference(samples_BT.clone()), extractor(samples_BT)
    assert torch.allclose(output_BCF, expected_BCF, atol=1e-4)
    weight_BCF = torch.randn_like(expected_BCF)
    for features_BCF in (expected_BCF, output_BCF):
        (features_BCF * weight_BCF).sum().backward()  # type: ignore[no-untyped-call]
    for expected, weight in zip(reference.parameters(), extractor.parameters(), strict=True):
        assert float((expected.grad - weight.grad).norm()) <= 1e-3 * float(expected.grad.norm())


def test_layers_with_gradient_checkpointing_are_left_as_they_are() -> None:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    model: Any = Wav2Vec2Model(
        Wav2Vec2Config(
            hidden_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=24,
            conv_dim=(24,) * 7,
            feat_extract_norm="layer",
            num_conv_pos_embedding_groups=2,
        )
    )
    time_first(model.feature_extractor)
    model.gradient_checkpointing_enable()
    called = []
    model.feature_extractor.conv_layers[1].register_forward_hook(lambda *_: called.append(1))
    model.train()(torch.randn(1, 8000))
    assert called


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16, None], ids=["bf16", "fp16", "autocast"])
def test_grouped_convolutions_in_half_precision_are_those_in_fp32(half: torch.dtype | None) -> None:
    from transformers import Wav2Vec2Config
    from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2PositionalConvEmbedding

    torch.manual_seed(0)
    shape = {"hidden_size": 48, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    whole: Any = Wav2Vec2PositionalConvEmbedding(Wav2Vec2Config(**shape)).eval()
    hidden_BFC = torch.randn(2, 60, 48)
    expected_BFC = whole(hidden_BFC)
    model = grouped_in_fp32(copy.deepcopy(whole))
    if half is None:
        with torch.autocast("cpu", torch.bfloat16):
            output_BFC = model(hidden_BFC)
    else:
        output_BFC = model.to(half)(hidden_BFC.to(half))
    assert float((output_BFC.float() - expected_BFC).norm()) <= 0.02 * float(expected_BFC.norm())
    assert torch.equal(grouped_in_fp32(copy.deepcopy(whole))(hidden_BFC), expected_BFC)
