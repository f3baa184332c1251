"""Small checkpoints with random weights, as people find them on the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

KERNELS, STRIDES = (10, 3, 3, 2), (5, 4, 4, 4)  # 20 ms, with fewer layers than the real ones


def write_samples_checkpoint(folder: Path, family: str, *, norm: str = "group", head: str = "ForCTC") -> Path:
    """A model of the family that hears samples, `Wav2Vec2`, `Hubert` or `WavLM`, with the vocabulary of letters."""
    import transformers

    config = getattr(transformers, f"{family}Config")(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        conv_dim=(32,) * len(KERNELS),
        conv_kernel=KERNELS,
        conv_stride=STRIDES,
        feat_extract_norm=norm,
        num_feat_extract_layers=len(KERNELS),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0,
        vocab_size=32,
        layerdrop=0.1,
        do_stable_layer_norm=norm == "layer",
    )
    torch.manual_seed(0)
    model: Any = getattr(transformers, f"{family}{head}")(config)
    model.save_pretrained(folder)
    extractor = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": norm == "layer"}
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    return folder
