"""Student models: their sizes, how a new FastConformer is built, and how each kind of student is called.

All are classes of `transformers`: FastConformer with a CTC or a transducer head, wav2vec 2.0 and its kin with CTC, and
Whisper. A saved student runs with `transformers` alone. `voxstill.nn.checkpoints` loads them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from voxstill.core.config import CHUNKS_MS, DEFAULT_CHUNK_MS, Normalization, lookahead
from voxstill.core.errors import DataError
from voxstill.nn.conformer_gpu import fuse
from voxstill.nn.conv_gpu import plan_free
from voxstill.nn.frontends import conv_frames
from voxstill.nn.log_mel import frame_mask, output_frames
from voxstill.nn.mel import NUM_MELS, SUBSAMPLING, causal_output_frames

if TYPE_CHECKING:
    from transformers import Cache, PretrainedConfig, PreTrainedModel

Size = Literal["tiny", "small", "medium", "large"]
Kind = Literal["ctc", "rnnt", "tdt", "seq2seq"]
STREAMING = "nemotron_asr_streaming"
"""`model_type` in `config.json` of a streaming student."""
PARAKEET_TYPES = ("parakeet_ctc", "parakeet_rnnt", "parakeet_tdt", STREAMING)
SAMPLES_TYPES = ("wav2vec2", "wav2vec2-conformer", "hubert", "wavlm")
"""`model_type` in `config.json` of the models that take a waveform."""
KINDS: dict[str, Kind] = {
    "parakeet_ctc": "ctc",
    "parakeet_rnnt": "rnnt",
    "parakeet_tdt": "tdt",
    STREAMING: "rnnt",
    "whisper": "seq2seq",
    **dict.fromkeys(SAMPLES_TYPES, "ctc"),
}
"""The kind of student for each `model_type` in `config.json`."""
TRANSDUCERS = {
    "parakeet_rnnt": "ParakeetForRNNT",
    "parakeet_tdt": "ParakeetForTDT",
    STREAMING: "NemotronAsrStreamingForRNNT",
}
"""The class in `transformers` of each `model_type` of transducers."""
_LEFT_CONTEXT = 56
"""Output frames before a chunk that the attention of a streaming student reads: whole chunks of each length."""
PREDICTOR = 640
"""Default width of the predictor where a transducer is started from the encoder of a CTC model."""
Memory = tuple[Tensor, Tensor]
"""Hidden state and cell of the predictor's LSTM."""
States = tuple[Tensor, ...]
"""Hidden states of some layers of an encoder, (B, F, E) each."""
_MEL_MEAN, _MEL_DEVIATION = -8.0, 4.0
"""About those of log-mels of speech."""
TRAINING_ONLY = "distillation"
"""The name of the part of a student that its training alone needs: it is in checkpoints, and in no model folder."""


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


def build(
    size: Size,
    num_pieces: int,
    *,
    dropout: float,
    seed: int,
    kind: Kind = "ctc",
    normalization: Normalization = "utterance",
    streaming: bool = False,
) -> PreTrainedModel:
    """Build a new Parakeet student; equal arguments give equal weights. The blank is piece `num_pieces`.

    Fast Conformer (Rekesh et al. 2023, section 3); a transducer's predictor is an LSTM of one layer. The initialisation
    differs from the library's N(0, 0.02), which leaves the stem's output without deviation: He for its convolutions,
    Xavier for its linear layer, zero biases. Where `normalization` leaves log-mels as they are, the first convolution
    begins with what centres and scales them.
    """
    from transformers import NemotronAsrStreamingEncoderConfig, ParakeetEncoderConfig

    shape = SHAPES[size]
    context = {"sliding_window": _LEFT_CONTEXT + 1, "default_num_lookahead_tokens": lookahead(DEFAULT_CHUNK_MS)}
    encoder = (NemotronAsrStreamingEncoderConfig if streaming else ParakeetEncoderConfig)(
        **(context if streaming else {}),
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
        model = from_encoder(kind, encoder, num_pieces, shape.predictor)
        stem = model.encoder.subsampling
        for module in stem.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if normalization != "utterance":
            _scale_input(stem.conv_in if streaming else stem.layers[0])
    return model.to(memory_format=torch.channels_last)  # a step of a tiny student on a CPU is an eighth faster


@torch.no_grad()
def _scale_input(conv: nn.Conv2d) -> None:
    """Fold (x - mean) / deviation of log-mels x into a convolution without a bias of its own."""
    assert conv.bias is not None
    conv.weight.div_(_MEL_DEVIATION)
    conv.bias.copy_(-_MEL_MEAN * conv.weight.sum((1, 2, 3)))


def from_encoder(kind: Kind, encoder: PretrainedConfig, num_pieces: int, predictor: int) -> PreTrainedModel:
    """Build a student of a kind around an encoder's configuration; `predictor` is the width of a transducer's LSTM."""
    from transformers import (
        NemotronAsrStreamingConfig,
        NemotronAsrStreamingEncoderConfig,
        ParakeetCTCConfig,
        ParakeetForCTC,
        ParakeetRNNTConfig,
        ParakeetTDTConfig,
    )

    if kind == "ctc":
        config = ParakeetCTCConfig(encoder_config=encoder, vocab_size=num_pieces + 1, pad_token_id=num_pieces)
        return fuse(plan_free(ParakeetForCTC(config)))
    config_class: Any = {"rnnt": ParakeetRNNTConfig, "tdt": ParakeetTDTConfig}[kind]
    if isinstance(encoder, NemotronAsrStreamingEncoderConfig):
        config_class = NemotronAsrStreamingConfig
    model = transducer_class(TRANSDUCERS[config_class.model_type])(
        config_class(
            encoder_config=encoder,
            vocab_size=num_pieces + 1,
            blank_token_id=num_pieces,
            pad_token_id=num_pieces,
            decoder_hidden_size=predictor,
            num_decoder_layers=1,
        )
    )
    model.generation_config.decoder_start_token_id = num_pieces  # the blank stands before the first token
    if num_durations := len(durations(model)):  # their logits follow those of the tokens: `generate` must not pick them
        model.generation_config.suppress_tokens = list(range(num_pieces + 1, num_pieces + 1 + num_durations))
    return fuse(plan_free(model))


@functools.cache
def transducer_class(name: str) -> Any:
    """A transducer class of `transformers` whose `forward` stops before the joint: all of its logits at once would not
    fit into memory."""
    import transformers

    def forward(
        self: PreTrainedModel, input_features: Tensor, attention_mask: Tensor, tokens_BU: Tensor, layers: Sequence[int]
    ) -> tuple[Tensor, Tensor, States]:
        encoded = self.get_audio_features(
            input_features=input_features, attention_mask=attention_mask, **_asking_for(layers), **_lookahead(self)
        )
        start_B1 = tokens_BU.new_full((len(tokens_BU), 1), self.config.blank_token_id)
        predicted_BUP, _ = predict(self, torch.cat([start_B1, tokens_BU], dim=1), None)
        return encoded.pooler_output, predicted_BUP, _states(encoded.hidden_states, layers)

    return type(name, (getattr(transformers, name),), {"forward": forward})  # saved under its name in `transformers`


def is_streaming(model: PreTrainedModel) -> bool:
    """Whether a student looks ahead by a chunk at most."""
    return bool(model.config.model_type == STREAMING)


def _lookahead(model: PreTrainedModel) -> dict[str, int]:
    """How far a streaming student looks ahead. In training that is drawn for each batch, as by Noroozi et al. 2024,
    "Stateful Conformer with cache-based inference for streaming automatic speech recognition", section 3.3."""
    if not is_streaming(model):
        return {}
    if model.training:
        return {"num_lookahead_tokens": lookahead(CHUNKS_MS[int(torch.randint(len(CHUNKS_MS), ()))])}
    return {"num_lookahead_tokens": model.encoder.config.default_num_lookahead_tokens}


def student_kind(model: PreTrainedModel) -> Kind:
    """The kind of student that a model is: CTC, RNN-T, TDT or encoder-decoder."""
    return KINDS[model.config.model_type]


def blank_id(model: PreTrainedModel) -> int:
    """Id of the blank of a CTC student or a transducer; DataError if a transducer's is not its last token."""
    config = model.config
    if student_kind(model) == "ctc":
        return int(config.pad_token_id)
    if config.blank_token_id != config.vocab_size - 1:
        raise DataError(
            f"the blank of this `{config.model_type}` is token {config.blank_token_id} of {config.vocab_size}",
            code="model-unloadable",
            why="the decoders expect the blank to be the last token",
            fix="use another checkpoint",
        )
    return int(config.blank_token_id)


def logits(model: PreTrainedModel, inputs: Tensor, len_B: Tensor) -> tuple[Tensor, Tensor]:
    """Features (B, F, D) or samples (B, T), as the model takes them, to (logits (B, F', V), output frames (B,))."""
    logits_BFV, frames_B, _ = logits_and_states(model, inputs, len_B, ())
    return logits_BFV, frames_B


def logits_and_states(
    model: PreTrainedModel, inputs: Tensor, len_B: Tensor, layers: Sequence[int]
) -> tuple[Tensor, Tensor, States]:
    """The same with the hidden states of some layers of the encoder, of which the lowest is 1."""
    output = model(**_frame_inputs(_normalisable(model, inputs), len_B), **_asking_for(layers))
    return output.logits, _output_frames(model, inputs, len_B), _states(output.hidden_states if layers else (), layers)


def encoder_states(
    model: PreTrainedModel, inputs: Tensor, len_B: Tensor, layers: Sequence[int]
) -> tuple[Tensor, States]:
    """Features or samples to (output frames (B,), hidden states of some layers of the encoder), of any kind of student;
    as little as possible of what stands above the encoder is computed."""
    if student_kind(model) == "ctc":
        return logits_and_states(model, inputs, len_B, layers)[1:]
    asked = {"input_features": inputs} if student_kind(model) == "seq2seq" else _frame_inputs(inputs, len_B)
    hidden = encoder_and_stack(model)[0](**asked, **_asking_for(layers), **_lookahead(model)).hidden_states
    return _output_frames(model, inputs, len_B), _states(hidden, layers)


def encoder_and_stack(model: PreTrainedModel) -> tuple[Any, Any]:
    """The encoder with its convolutions, and the module in it that has the transformer layers."""
    if model.config.model_type in SAMPLES_TYPES:
        return model.base_model, model.base_model.encoder
    encoder = model.get_encoder() if model.config.model_type == "whisper" else model.encoder
    return encoder, encoder


def _frame_inputs(inputs: Tensor, len_B: Tensor) -> dict[str, Tensor]:
    mask_BF = frame_mask(len_B, inputs.shape[1])
    if inputs.ndim == 3:
        return {"input_features": inputs, "attention_mask": mask_BF}
    return {"input_values": inputs, "attention_mask": mask_BF.long()}


def _normalisable(model: nn.Module, inputs: Tensor) -> Tensor:
    """Features (B, F, D) with which BatchNorm can train: it refuses a batch of a single frame, so that gets padding."""
    least = SUBSAMPLING + 1  # features of two output frames
    if not model.training or inputs.ndim != 3 or len(inputs) > 1 or inputs.shape[1] >= least:
        return inputs
    return functional.pad(inputs, (0, 0, 0, least - inputs.shape[1]))


def _output_frames(model: PreTrainedModel, inputs: Tensor, len_B: Tensor) -> Tensor:
    if inputs.ndim == 2:
        return conv_frames(len_B, model.config.conv_kernel, model.config.conv_stride)
    if is_streaming(model):
        return causal_output_frames(len_B)
    return whisper_frames(len_B) if model.config.model_type == "whisper" else output_frames(len_B)


def whisper_frames(len_B: Tensor) -> Tensor:
    """Frames of the encoder of a Whisper that hold audio, no silence added to it: one for two of its features."""
    return (len_B + 1) // 2


def _asking_for(layers: Sequence[int]) -> dict[str, list[int]]:
    return {"output_hidden_states": list(layers)} if layers else {}


def _states(hidden: Sequence[Tensor] | None, layers: Sequence[int]) -> States:
    """Those of `layers`, of all hidden states: before them stands the input of the first layer."""
    return tuple(hidden[layer] for layer in layers) if hidden else ()


def encode_and_predict(
    model: nn.Module, features_BFD: Tensor, frames_B: Tensor, tokens_BU: Tensor, layers: Sequence[int] = ()
) -> tuple[Tensor, Tensor, Tensor, States]:
    """Encoder and predictor of a transducer: (encoded (B, F', P), output frames (B,), predictor states (B, U + 1, P),
    hidden states of some layers of the encoder).

    There is a predictor state before the first token, and one after each.
    """
    features_BFD = _normalisable(model, features_BFD)
    mask_BF = frame_mask(frames_B, features_BFD.shape[1])
    encoded_BFP, predicted_BUP, states = model(features_BFD, mask_BF, tokens_BU.clamp(min=0), layers)
    return encoded_BFP, _output_frames(model, features_BFD, frames_B), predicted_BUP, states


def predict(model: PreTrainedModel, tokens_BU: Tensor, memory: Memory | None) -> tuple[Tensor, Memory]:
    """A transducer's predictor states after each token (B, U, P), and the memory of its LSTM then."""
    decoder = model.decoder
    states_BUP, memory = decoder.lstm(decoder.embedding(tokens_BU), memory)
    return decoder.decoder_projector(states_BUP), memory


def joint(model: PreTrainedModel, encoded: Tensor, predicted: Tensor) -> Tensor:
    """A transducer's logits for pairs of an encoder frame and a predictor state."""
    joint_logits: Tensor = model.joint(decoder_hidden_states=predicted, encoder_hidden_states=encoded)
    return joint_logits


def frame_logits(model: PreTrainedModel, encoded_BFP: Tensor, blank_id: int) -> Tensor:
    """A transducer's logits (B, F, V) of each frame without a predictor: a CTC model, with `train.auxiliary_ctc`."""
    no_state_B1P = torch.zeros_like(encoded_BFP[:, :1])
    return joint(model, encoded_BFP, no_state_B1P)[..., : blank_id + 1]


def durations(model: PreTrainedModel) -> tuple[int, ...]:
    """The durations in frames that a TDT student chooses from for each token; empty for other kinds."""
    return tuple(getattr(model.config, "durations", ()))


def teacher_forced(
    model: PreTrainedModel, inputs: Tensor, decoder_input_BU: Tensor, layers: Sequence[int] = ()
) -> tuple[Tensor, States]:
    """Teacher forcing of an encoder-decoder: features (B, D, F) and tokens to (logits of the next one each (B, U, V),
    hidden states of some layers of the encoder)."""
    output = model(input_features=inputs, decoder_input_ids=decoder_input_BU, use_cache=False, **_asking_for(layers))
    return output.logits, _states(output.encoder_hidden_states, layers)


def decoder_step(model: PreTrainedModel, inputs: Tensor) -> Callable[[Tensor, Cache | None], tuple[Tensor, Cache]]:
    """Encode features; returns the decoder's step, newest tokens (B, U) and a cache to logits (B, V) and cache."""
    encoder_outputs = model.get_encoder()(inputs)

    def step(newest_BU: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        out = model(encoder_outputs=encoder_outputs, decoder_input_ids=newest_BU, past_key_values=cache, use_cache=True)
        return out.logits[:, -1], out.past_key_values

    return step


def num_parameters(model: nn.Module) -> int:
    """Number of weights, without buffers and what the training alone needs."""
    named = model.named_parameters()
    return sum(weight.numel() for name, weight in named if not name.startswith(f"{TRAINING_ONLY}."))
