"""The students: FastConformer with a CTC or a transducer head, as `transformers` has them: a saved one needs nothing
of ours to run.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from voxstill.errors import DataError
from voxstill.nn.frontend import NUM_MELS, SUBSAMPLING, frame_mask, output_frames

Size = Literal["tiny", "small", "medium", "large"]
Kind = Literal["ctc", "rnnt"]
MODEL_TYPES: dict[str, Kind] = {"parakeet_ctc": "ctc", "parakeet_rnnt": "rnnt"}
"""What `config.json` calls them."""


Memory = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Width, depth and stem of an encoder, and the width of the predictor and the joint of a transducer."""

    hidden: int
    layers: int
    heads: int
    stem: int
    predictor: int


SHAPES: dict[Size, Shape] = {
    "tiny": Shape(128, 4, 4, 32, 128),
    "small": Shape(176, 10, 4, 64, 256),
    "medium": Shape(288, 15, 8, 128, 320),
    "large": Shape(512, 17, 8, 256, 640),
}


def build(size: Size, num_pieces: int, *, dropout: float, seed: int, kind: Kind = "ctc") -> Any:
    """A new Parakeet student; equal arguments give equal weights. The blank is piece `num_pieces`.

    Fast Conformer (Rekesh et al. 2023, section 3); a transducer's predictor is an LSTM of one layer. The initialisation
    differs from the library's N(0, 0.02), which leaves the stem's output without deviation: He for its convolutions,
    Xavier for its linear layer, zero biases.
    """
    from transformers import ParakeetEncoderConfig

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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (_new_ctc if kind == "ctc" else _new_transducer)(encoder, num_pieces, shape)
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
    from transformers import AutoConfig, ParakeetForCTC
    from transformers.utils import logging

    logging.disable_progress_bar()  # two lines of noise for half a second of loading
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if config.model_type not in MODEL_TYPES:
            raise ValueError(f"it is a `{config.model_type}`; known are {', '.join(MODEL_TYPES)}")
        known = ParakeetForCTC if MODEL_TYPES[config.model_type] == "ctc" else _transducer()
        return known.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"`{folder}` holds no student",
            why=str(error).splitlines()[0],
            fix="give the `model` folder of an experiment, or the experiment folder itself",
        ) from None


def kind_of(model: Any) -> Kind:
    """What its head is."""
    return MODEL_TYPES[model.config.model_type]


def logits(model: nn.Module, features_BFD: Tensor, frames_B: Tensor) -> tuple[Tensor, Tensor]:
    """Features to (logits (B, F', V), output frames (B,))."""
    out = model(input_features=features_BFD, attention_mask=frame_mask(frames_B, features_BFD.shape[1]))
    return out.logits, output_frames(frames_B)


def transduced(model: nn.Module, features_BFD: Tensor, frames_B: Tensor, tokens_BU: Tensor) -> tuple[Tensor, ...]:
    """Features and tokens of a transducer to (encoded (B, F', P), output frames (B,), states (B, U + 1, P)).

    There is a state before the first token, and one after each.
    """
    mask_BF = frame_mask(frames_B, features_BFD.shape[1])
    encoded_BFP, predicted_BUP = model(features_BFD, mask_BF, tokens_BU.clamp(min=0))
    return encoded_BFP, output_frames(frames_B), predicted_BUP


def predict(model: Any, tokens_BU: Tensor, memory: Memory | None) -> tuple[Tensor, Memory]:
    """A transducer's states after each token (B, U, P), and what it remembers then."""
    decoder = model.decoder
    states_BUP, memory = decoder.lstm(decoder.embedding(tokens_BU), memory)
    return decoder.decoder_projector(states_BUP), memory


def joint(model: Any, encoded: Tensor, predicted: Tensor) -> Tensor:
    """A transducer's logits where a frame and a state meet."""
    found: Tensor = model.joint(decoder_hidden_states=predicted, encoder_hidden_states=encoded)
    return found


def _new_ctc(encoder: Any, num_pieces: int, _: Shape) -> Any:
    from transformers import ParakeetCTCConfig, ParakeetForCTC

    return ParakeetForCTC(ParakeetCTCConfig(encoder_config=encoder, vocab_size=num_pieces + 1, pad_token_id=num_pieces))


def _new_transducer(encoder: Any, num_pieces: int, shape: Shape) -> Any:
    from transformers import ParakeetRNNTConfig

    model = _transducer()(
        ParakeetRNNTConfig(
            encoder_config=encoder,
            vocab_size=num_pieces + 1,
            blank_token_id=num_pieces,
            pad_token_id=num_pieces,
            decoder_hidden_size=shape.predictor,
            num_decoder_layers=1,
        )
    )
    model.generation_config.decoder_start_token_id = num_pieces  # the blank stands before the first token
    return model


@functools.cache
def _transducer() -> Any:
    """The class of `transformers`, but `forward` stops before the joint, whose logits never fit into memory at once."""
    import transformers

    class ParakeetForRNNT(transformers.ParakeetForRNNT):  # type: ignore[misc]
        """Saved under the name that `transformers` knows."""

        def forward(self, input_features: Tensor, attention_mask: Tensor, tokens_BU: Tensor) -> tuple[Tensor, Tensor]:
            heard = self.get_audio_features(input_features=input_features, attention_mask=attention_mask)
            before_B1 = tokens_BU.new_full((len(tokens_BU), 1), self.config.blank_token_id)
            predicted_BUP, _ = predict(self, torch.cat([before_B1, tokens_BU], dim=1), None)
            return heard.pooler_output, predicted_BUP

    return ParakeetForRNNT


def num_parameters(model: nn.Module) -> int:
    """Weights that are learnt."""
    return sum(weight.numel() for weight in model.parameters())
