"""Convolutions with time first, beside those of transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from voxstill.nn.convolutions import time_first


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_samples", [400, 5003, 16_001])
def test_they_hear_what_those_of_transformers_hear_and_learn_alike(bias: bool, num_samples: int) -> None:
    from transformers import Wav2Vec2Config
    from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2FeatureEncoder

    torch.manual_seed(num_samples)
    shape = {"conv_dim": (24,) * 7, "conv_bias": bias, "feat_extract_norm": "layer", "do_stable_layer_norm": True}
    theirs: Any = Wav2Vec2FeatureEncoder(Wav2Vec2Config(**shape)).train()
    ours = copy.deepcopy(theirs)
    time_first(ours)
    samples_BT = torch.randn(3, num_samples)
    expected_BCF, found_BCF = theirs(samples_BT.clone()), ours(samples_BT)
    assert torch.allclose(found_BCF, expected_BCF, atol=1e-4)
    towards_BCF = torch.randn_like(expected_BCF)
    for each_BCF in (expected_BCF, found_BCF):
        (each_BCF * towards_BCF).sum().backward()  # type: ignore[no-untyped-call]
    for one, two in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert float((one.grad - two.grad).norm()) <= 1e-3 * float(one.grad.norm())


def test_where_layers_are_to_be_computed_again_they_are_left_alone() -> None:
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
