"""The students: FastConformer-CTC as `transformers` knows it, so that a saved one needs nothing of ours to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from voxstill.errors import DataError
from voxstill.nn.frontend import NUM_MELS, SUBSAMPLING, frame_mask, output_frames

Size = Literal["tiny", "small", "medium", "large"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Width, depth and stem of an encoder."""

    hidden: int
    layers: int
    heads: int
    stem: int


SHAPES: dict[Size, Shape] = {
    "tiny": Shape(128, 4, 4, 32),
    "small": Shape(176, 10, 4, 64),
    "medium": Shape(288, 15, 8, 128),
    "large": Shape(512, 17, 8, 256),
}


def build(size: Size, num_pieces: int, *, dropout: float, seed: int) -> Any:
    """A new Parakeet-CTC student; equal arguments give equal weights. The blank is piece `num_pieces`.

    Fast Conformer (Rekesh et al. 2023, section 3). The initialisation differs from the library's N(0, 0.02), which
    leaves the stem's output without deviation: He for its convolutions, Xavier for its linear layer, zero biases.
    """
    from transformers import ParakeetCTCConfig, ParakeetEncoderConfig, ParakeetForCTC

    shape = SHAPES[size]
    encoder = ParakeetEncoderConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden,
        conv_kernel_size=9,
        subsampling_factor=SUBSAMPLING,
        subsampling_conv_channels=shape.stem,
        num_mel_bins=NUM_MELS,
        dropout=dropout,
        layerdrop=0.0,
        activation_dropout=dropout,
        attention_dropout=dropout,
        scale_input=False,
    )
    config = ParakeetCTCConfig(encoder_config=encoder, vocab_size=num_pieces + 1, pad_token_id=num_pieces)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ParakeetForCTC(config)
        stem = model.encoder.subsampling
        for module in stem.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    return model.to(memory_format=torch.channels_last)  # a step of a tiny student on a CPU is an eighth faster


def load(folder: Path) -> Any:
    """The student saved in `folder`; DataError where there is none."""
    from safetensors import SafetensorError
    from transformers import ParakeetForCTC
    from transformers.utils import logging

    logging.disable_progress_bar()  # two lines of noise for half a second of loading
    try:
        return ParakeetForCTC.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"`{folder}` holds no student",
            why=str(error).splitlines()[0],
            fix="give the `model` folder of an experiment, or the experiment folder itself",
        ) from None


def logits(model: nn.Module, features_BFD: Tensor, frames_B: Tensor) -> tuple[Tensor, Tensor]:
    """Features to (logits (B, F', V), output frames (B,))."""
    out = model(input_features=features_BFD, attention_mask=frame_mask(frames_B, features_BFD.shape[1]))
    return out.logits, output_frames(frames_B)


def num_parameters(model: nn.Module) -> int:
    """Weights that are learnt."""
    return sum(weight.numel() for weight in model.parameters())
