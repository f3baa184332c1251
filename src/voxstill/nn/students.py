"""The students, as `transformers` has them: FastConformer with a CTC or a transducer head, new or from a checkpoint,
and wav2vec 2.0 and its kin with CTC from a checkpoint. A saved one needs nothing of ours to run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from voxstill.config import Augment
from voxstill.errors import ConfigError, DataError
from voxstill.nn.frontend import NUM_MELS, SUBSAMPLING, frame_mask, output_frames
from voxstill.nn.hearing import Hearing, Mels, Samples, Windows, conv_frames
from voxstill.nn.waves import NoiseBank

Size = Literal["tiny", "small", "medium", "large"]
Kind = Literal["ctc", "rnnt", "tdt", "seq2seq"]
PARAKEET_TYPES = ("parakeet_ctc", "parakeet_rnnt", "parakeet_tdt")
SAMPLES_TYPES = ("wav2vec2", "wav2vec2-conformer", "hubert", "wavlm")
"""What `config.json` calls the models that hear samples."""
KINDS: dict[str, Kind] = {
    "parakeet_ctc": "ctc",
    "parakeet_rnnt": "rnnt",
    "parakeet_tdt": "tdt",
    "whisper": "seq2seq",
    **dict.fromkeys(SAMPLES_TYPES, "ctc"),
}
"""The head that goes with what `config.json` says."""
TRANSDUCERS: dict[Kind, str] = {"rnnt": "ParakeetForRNNT", "tdt": "ParakeetForTDT"}
"""Their classes in `transformers`."""
PREDICTOR = 640
"""Width of the predictor where an encoder of CTC becomes that of a transducer."""
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
        model = _NEW[kind](encoder, num_pieces, shape)
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
    from transformers import AutoModelForCTC, ParakeetForCTC, WhisperForConditionalGeneration
    from transformers.utils import logging

    logging.disable_progress_bar()  # two lines of noise for half a second of loading
    try:
        config = described(str(folder))
        if config.model_type in SAMPLES_TYPES:
            return padding_ignored(AutoModelForCTC.from_pretrained(folder, local_files_only=True))
        known = {
            "ctc": ParakeetForCTC,
            "seq2seq": WhisperForConditionalGeneration,
            **{kind: _transducer(name) for kind, name in TRANSDUCERS.items()},
        }
        return known[KINDS[config.model_type]].from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"`{folder}` holds no student",
            why=str(error).splitlines()[0],
            fix="give the `model` folder of an experiment, or the experiment folder itself",
        ) from None


def described(checkpoint: str, also: Sequence[str] = ()) -> Any:
    """The configuration of a checkpoint, a folder or a name on the Hugging Face Hub; DataError where there is none, or
    it is of no kind known here, nor one of those `also` taken."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(checkpoint, local_files_only=Path(checkpoint).is_dir())
        if config.model_type not in (*KINDS, *also):
            raise ValueError(f"it is a `{config.model_type}`; known are {', '.join(KINDS)}")
        if getattr(config, "add_adapter", False):
            raise ValueError("its frames pass through an adapter, which is not known here")
    except (OSError, ValueError) as error:
        raise DataError(
            f"`{checkpoint}` holds no student",
            why=str(error).splitlines()[0],
            fix="give the `model` folder of an experiment, or a folder with config.json and model.safetensors",
        ) from None
    return config


def digest(checkpoint: str | None) -> str | None:
    """What tells the weights of a folder from others; a name on the Hub stands for itself."""
    if checkpoint is None or not Path(checkpoint).is_dir():
        return checkpoint
    found = hashlib.sha256()
    for path in sorted(Path(checkpoint).glob("*.safetensors")):
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def hearing(config: Any, cfg: Augment, noise_bank: NoiseBank | None = None, checkpoint: str | None = None) -> Hearing:
    """How the students of a configuration hear; `checkpoint` says whether they want samples scaled."""
    if config is None:
        return Mels(cfg, noise_bank)
    if config.model_type == "whisper":
        return Windows(cfg, noise_bank, config.num_mel_bins)
    if config.model_type not in SAMPLES_TYPES:
        return Mels(cfg, noise_bank, getattr(config, "encoder_config", config).num_mel_bins)
    normalises = _normalises(checkpoint) if checkpoint else True
    return Samples(cfg, noise_bank, kernels=config.conv_kernel, strides=config.conv_stride, normalises=normalises)


def from_checkpoint(
    checkpoint: str, num_pieces: int, *, same_pieces: bool, dropout: float | None, seed: int, kind: Kind, frozen: bool
) -> Any:
    """A student with the weights of a checkpoint: all of them where it spells with the `same_pieces`, else its encoder.

    What is new is drawn from `seed`. A student that hears samples has its convolutions `frozen` or not. ConfigError
    where its kind cannot be had from the checkpoint, DataError where there is none.
    """
    config = described(checkpoint)
    own = KINDS[config.model_type]
    if kind != own and (kind == "seq2seq" or config.model_type not in PARAKEET_TYPES):
        raise ConfigError(
            f"`student.kind: {kind}` cannot be made from `{checkpoint}`",
            why=f"it is a `{config.model_type}`, whose kind is `{own}`",
            fix=f"set `student.kind: {own}`, or start from another checkpoint",
        )
    with loading(checkpoint), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if config.model_type in SAMPLES_TYPES:
            return _hearing_samples(checkpoint, num_pieces, same_pieces, dropout, frozen)
        if own == "seq2seq":
            return _whisper(checkpoint, dropout)
        return _parakeet(checkpoint, config, num_pieces, same_pieces, dropout, kind)


@contextlib.contextmanager
def loading(checkpoint: str) -> Iterator[None]:
    """`transformers` loads weights and is silent, for that a head is new is no news; DataError where it cannot."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"the weights of `{checkpoint}` cannot be loaded",
            why=str(error).splitlines()[0],
            fix="give a folder with config.json and model.safetensors, or a name on the Hugging Face Hub",
        ) from None
    finally:
        logging.set_verbosity(before)


def _hearing_samples(checkpoint: str, num_pieces: int, same_pieces: bool, dropout: float | None, frozen: bool) -> Any:
    from transformers import AutoModelForCTC

    # a layer that is dropped gets no gradient, which stops training on several devices
    changes: dict[str, Any] = {"layerdrop": 0.0, "vocab_size": num_pieces + 1, "pad_token_id": num_pieces}
    if dropout is not None:
        names = ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
        changes |= dict.fromkeys(names, dropout)
    local = Path(checkpoint).is_dir()
    model = AutoModelForCTC.from_pretrained(
        checkpoint, **changes, ignore_mismatched_sizes=True, local_files_only=local, dtype=torch.float32
    )
    if not same_pieces:
        nn.init.normal_(model.lm_head.weight, std=model.config.initializer_range)
        nn.init.zeros_(model.lm_head.bias)
    if frozen:
        model.freeze_feature_encoder()
    mask = getattr(model.base_model, "masked_spec_embed", None)
    if mask is not None:  # a batch without a mask gives it no gradient
        mask.requires_grad_(False)
    return padding_ignored(model)


def _parakeet(
    checkpoint: str, config: Any, num_pieces: int, same_pieces: bool, dropout: float | None, kind: Kind
) -> Any:
    import transformers

    known = getattr(transformers, {"ctc": "ParakeetForCTC", **TRANSDUCERS}[KINDS[config.model_type]])
    local = Path(checkpoint).is_dir()
    old = known.from_pretrained(checkpoint, local_files_only=local, dtype=torch.float32)
    encoder = old.encoder.config
    if dropout is not None:
        encoder.dropout = encoder.activation_dropout = encoder.attention_dropout = dropout
    encoder.layerdrop = 0.0
    shape = Shape(encoder.hidden_size, 0, 0, 0, getattr(config, "decoder_hidden_size", PREDICTOR))
    model = _NEW[kind](encoder, num_pieces, shape)
    whole = same_pieces and KINDS[config.model_type] == kind
    weights = {name: value for name, value in old.state_dict().items() if whole or name.startswith("encoder.")}
    model.load_state_dict(weights, strict=whole)
    return model.to(memory_format=torch.channels_last)


def _whisper(checkpoint: str, dropout: float | None) -> Any:
    from transformers import WhisperForConditionalGeneration

    changes: dict[str, Any] = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    if dropout is not None:
        changes |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), dropout)
    local = Path(checkpoint).is_dir()
    model = WhisperForConditionalGeneration.from_pretrained(
        checkpoint, **changes, local_files_only=local, dtype=torch.float32
    )
    says, end_id = model.generation_config, model.config.eos_token_id
    says.begin_suppress_tokens = None  # a student may say nothing at all
    says.suppress_tokens = list(range(end_id + 1, model.config.vocab_size))  # they command and do not spell
    return model


def _normalises(checkpoint: str) -> bool:
    from transformers import AutoFeatureExtractor

    try:
        found = AutoFeatureExtractor.from_pretrained(checkpoint, local_files_only=Path(checkpoint).is_dir())
    except (OSError, ValueError):  # it says nothing
        return True
    return bool(getattr(found, "do_normalize", True))


class _OwnFramesNorm(nn.GroupNorm):
    """The norm of wav2vec 2.0's first convolution, over an utterance's own frames: else padding would change it."""

    frames_B: Tensor

    def forward(self, heard_BCF: Tensor) -> Tensor:
        """(B, C, F) to the same; each channel is a group."""
        own_B1F = frame_mask(self.frames_B, heard_BCF.shape[2])[:, None]
        count_B11 = self.frames_B[:, None, None].clamp(min=1)
        heard = heard_BCF.float()
        centred = heard - (heard * own_B1F).sum(2, keepdim=True) / count_B11
        variance = (centred.square() * own_B1F).sum(2, keepdim=True) / count_B11
        scaled = centred * (variance + self.eps).rsqrt() * self.weight[:, None] + self.bias[:, None]
        return scaled.to(heard_BCF.dtype)


def padding_ignored(model: Any) -> Any:
    """The model, whose first norm looks at own frames only; weights keep their names."""
    first = model.base_model.feature_extractor.conv_layers[0]
    if not isinstance(getattr(first, "layer_norm", None), nn.GroupNorm):
        return model
    norm = _OwnFramesNorm(first.layer_norm.num_groups, first.layer_norm.num_channels, first.layer_norm.eps)
    norm.load_state_dict(first.layer_norm.state_dict())
    norm.requires_grad_(first.layer_norm.weight.requires_grad)
    first.layer_norm = norm

    def told(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        config = model.config
        norm.frames_B = conv_frames(named["attention_mask"].sum(1), config.conv_kernel[:1], config.conv_stride[:1])

    model.register_forward_pre_hook(told, with_kwargs=True)
    return model


def kind_of(model: Any) -> Kind:
    """What its head is."""
    return KINDS[model.config.model_type]


def blank_of(model: Any) -> int:
    """The token of a CTC student or a transducer that says nothing; DataError where a transducer has it amid others."""
    config = model.config
    if kind_of(model) == "ctc":
        return int(config.pad_token_id)
    if config.blank_token_id != config.vocab_size - 1:
        raise DataError(
            f"the blank of this `{config.model_type}` is token {config.blank_token_id} of {config.vocab_size}",
            why="what is decoded here has it behind all others",
            fix="take another checkpoint",
        )
    return int(config.blank_token_id)


def logits(model: Any, inputs: Tensor, len_B: Tensor) -> tuple[Tensor, Tensor]:
    """Features (B, F, D) or samples (B, T), as the model takes them, to (logits (B, F', V), output frames (B,))."""
    mask = frame_mask(len_B, inputs.shape[1])
    if inputs.ndim == 3:
        return model(input_features=inputs, attention_mask=mask).logits, output_frames(len_B)
    frames_B = conv_frames(len_B, model.config.conv_kernel, model.config.conv_stride)
    return model(input_values=inputs, attention_mask=mask.long()).logits, frames_B


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


def next_tokens(model: Any, inputs: Tensor, given_BU: Tensor) -> Tensor:
    """Features (B, D, F) and tokens to logits of the token after each (B, U, V)."""
    found: Tensor = model(input_features=inputs, decoder_input_ids=given_BU, use_cache=False).logits
    return found


def step_of(model: Any, inputs: Tensor) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
    """What an encoder-decoder says next, given the newest tokens (B, U) and what it remembers: logits (B, V)."""
    heard = model.get_encoder()(inputs)

    def step(newest_BU: Tensor, memory: Any) -> tuple[Tensor, Any]:
        out = model(encoder_outputs=heard, decoder_input_ids=newest_BU, past_key_values=memory, use_cache=True)
        return out.logits[:, -1], out.past_key_values

    return step


def durations(model: Any) -> tuple[int, ...]:
    """How many frames a token of a TDT student may last; none where it does not say."""
    return tuple(getattr(model.config, "durations", ()))


def _new_ctc(encoder: Any, num_pieces: int, _: Shape) -> Any:
    from transformers import ParakeetCTCConfig, ParakeetForCTC

    return ParakeetForCTC(ParakeetCTCConfig(encoder_config=encoder, vocab_size=num_pieces + 1, pad_token_id=num_pieces))


def _new_rnnt(encoder: Any, num_pieces: int, shape: Shape) -> Any:
    from transformers import ParakeetRNNTConfig

    return _with_predictor("ParakeetForRNNT", ParakeetRNNTConfig, encoder, num_pieces, shape)


def _new_tdt(encoder: Any, num_pieces: int, shape: Shape) -> Any:
    from transformers import ParakeetTDTConfig

    return _with_predictor("ParakeetForTDT", ParakeetTDTConfig, encoder, num_pieces, shape)


_NEW = {"ctc": _new_ctc, "rnnt": _new_rnnt, "tdt": _new_tdt}


def _with_predictor(name: str, config: Any, encoder: Any, num_pieces: int, shape: Shape) -> Any:
    model = _transducer(name)(
        config(
            encoder_config=encoder,
            vocab_size=num_pieces + 1,
            blank_token_id=num_pieces,
            pad_token_id=num_pieces,
            decoder_hidden_size=shape.predictor,
            num_decoder_layers=1,
        )
    )
    model.generation_config.decoder_start_token_id = num_pieces  # the blank stands before the first token
    if lasting := len(durations(model)):  # they come after the tokens, and `generate` must not take them for some
        model.generation_config.suppress_tokens = list(range(num_pieces + 1, num_pieces + 1 + lasting))
    return model


@functools.cache
def _transducer(name: str) -> Any:
    """A class of `transformers`, but `forward` stops before the joint, whose logits never fit into memory at once."""
    import transformers

    def forward(self: Any, input_features: Tensor, attention_mask: Tensor, tokens_BU: Tensor) -> tuple[Tensor, Tensor]:
        heard = self.get_audio_features(input_features=input_features, attention_mask=attention_mask)
        before_B1 = tokens_BU.new_full((len(tokens_BU), 1), self.config.blank_token_id)
        predicted_BUP, _ = predict(self, torch.cat([before_B1, tokens_BU], dim=1), None)
        return heard.pooler_output, predicted_BUP

    return type(name, (getattr(transformers, name),), {"forward": forward})  # saved under the name that it has there


def num_parameters(model: nn.Module) -> int:
    """Weights that are learnt."""
    return sum(weight.numel() for weight in model.parameters())
