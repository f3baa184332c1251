"""Students from checkpoints, of a training or of the Hugging Face Hub, and the frontend that each one needs."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from voxstill.core.config import Augment, Normalization
from voxstill.core.errors import ConfigError, DataError, first_line
from voxstill.nn.augment_waveform import NoiseBank
from voxstill.nn.conformer_gpu import fuse
from voxstill.nn.conv_cpu import grouped_in_fp32, padding_ignored
from voxstill.nn.conv_gpu import plan_free
from voxstill.nn.frontends import Frontend, LogMelFrontend, WaveformFrontend, WhisperFrontend
from voxstill.nn.loading import Loadable, load_config, load_model, loading_weights
from voxstill.nn.log_mel import UNNORMALISED_EXTRACTOR, LogMel
from voxstill.nn.students import (
    KINDS,
    PARAKEET_TYPES,
    PREDICTOR,
    SAMPLES_TYPES,
    STREAMING,
    TRANSDUCERS,
    Kind,
    from_encoder,
    transducer_class,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def load(folder: Path, *, new_head: bool = False) -> PreTrainedModel:
    """Load the student saved in `folder`; DataError if there is none.

    With `new_head` what stands above its encoder may be missing or of another shape, and is then drawn at random.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCTC, ParakeetForCTC, WhisperForConditionalGeneration

    try:
        config = read_config(str(folder))
        if config.model_type in SAMPLES_TYPES:
            return grouped_in_fp32(padding_ignored(load_model(AutoModelForCTC, folder, new_head=new_head)))
        classes: dict[str, Loadable] = {
            "ctc": ParakeetForCTC,
            "seq2seq": WhisperForConditionalGeneration,
        }
        name = TRANSDUCERS.get(config.model_type)
        loaded_class = transducer_class(name) if name else classes[KINDS[config.model_type]]
        model: PreTrainedModel = load_model(loaded_class, folder, new_head=new_head)
        return fuse(plan_free(model))
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"`{folder}` contains no student",
            code="no-model",
            why=first_line(error),
            fix="give the `model` folder of an experiment, or the experiment folder itself",
        ) from None


def read_config(checkpoint: str, also: Sequence[str] = ()) -> PretrainedConfig:
    """Read the `config.json` of a checkpoint, a folder or a name on the Hugging Face Hub.

    DataError if there is none, or its `model_type` is neither in `KINDS` nor in `also`.
    """
    try:
        config = load_config(checkpoint)
        if config.model_type not in (*KINDS, *also):
            raise ValueError(f"it is a `{config.model_type}`; supported are {', '.join(KINDS)}")
        if getattr(config, "add_adapter", False):
            raise ValueError("it has an adapter, which is not supported")
    except (OSError, ValueError) as error:
        raise DataError(
            f"`{checkpoint}` contains no student",
            code="no-model",
            why=first_line(error),
            fix="give the `model` folder of an experiment, or a folder with config.json and model.safetensors",
        ) from None
    return config


def weights_digest(checkpoint: str | None) -> str | None:
    """SHA-256 of the weights in a folder; a name on the Hub, and None, are returned as they are.

    Beside a `model.safetensors` no index and no pickled weights are read, and so they do not count.
    """
    if checkpoint is None or not Path(checkpoint).is_dir():
        return checkpoint
    weights, folder = hashlib.sha256(), Path(checkpoint)
    others = () if (folder / "model.safetensors").is_file() else ("*.safetensors.index.json", "pytorch_model*")
    for path in sorted(path for pattern in ("*.safetensors", *others) for path in folder.glob(pattern)):
        with path.open("rb") as file:
            weights.update(hashlib.file_digest(file, "sha256").digest())
    return weights.hexdigest()


def make_frontend(
    config: PretrainedConfig | None,
    cfg: Augment,
    noise_bank: NoiseBank | None = None,
    checkpoint: str | None = None,
    normalization: Normalization | None = None,
    *,
    is_streaming: bool = False,
) -> Frontend:
    """The frontend for the model of a `config`, log-mel for a new one (None).

    The extractor saved in `checkpoint` says how a waveform or log-mels are normalised; for a new model it is
    `normalization`. ConfigError if that is set, and the checkpoint has another. `is_streaming` is of a new model.
    """
    if config is None:
        log_mel = LogMel(normalization=normalization or "utterance")
        return LogMelFrontend(cfg, noise_bank, log_mel, is_streaming=is_streaming)
    if is_streaming and config.model_type != STREAMING:
        raise ConfigError(
            f"`student.streaming` cannot be used with `{checkpoint}`",
            code="start-checkpoint",
            why=f"it is a `{config.model_type}`, which processes whole utterances",
            fix="leave `student.checkpoint` out, or start from a streaming student",
        )
    frontend = _of_checkpoint(config, cfg, noise_bank, checkpoint)
    its_own = frontend.log_mel.normalization if isinstance(frontend, LogMelFrontend) else None
    if normalization not in (None, its_own):
        raise ConfigError(
            f"`student.normalization: {normalization}` cannot be used with `{checkpoint}`",
            code="start-checkpoint",
            why=f"it was trained with `{its_own}`"
            if its_own
            else f"a `{config.model_type}` has no log-mels to normalise",
            fix="leave `student.normalization` out: a checkpoint has its own",
        )
    return frontend


def _of_checkpoint(
    config: PretrainedConfig, cfg: Augment, noise_bank: NoiseBank | None, checkpoint: str | None
) -> Frontend:
    if config.model_type == "whisper":
        return WhisperFrontend(cfg, noise_bank, config.num_mel_bins)
    if config.model_type not in SAMPLES_TYPES:
        num_mels = getattr(config, "encoder_config", config).num_mel_bins
        log_mel = _log_mel(checkpoint, num_mels)
        return LogMelFrontend(cfg, noise_bank, log_mel, is_streaming=config.model_type == STREAMING)
    normalises = bool(_extractor(checkpoint).get("do_normalize", True))
    return WaveformFrontend(
        cfg, noise_bank, kernels=config.conv_kernel, strides=config.conv_stride, normalises=normalises
    )


def from_checkpoint(
    checkpoint: str,
    num_pieces: int,
    *,
    keep_vocabulary: bool,
    dropout: float | None,
    seed: int,
    kind: Kind,
    freeze_convolutions: bool,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
) -> PreTrainedModel:
    """A student with the weights of a checkpoint: all of them with `keep_vocabulary`, else those of its encoder.

    New weights are drawn from `seed`. `freeze_convolutions` is for a student that takes a waveform. A Whisper keeps
    `encoder_layers` and `decoder_layers` of its layers, evenly spaced; None keeps all. ConfigError if this kind of
    student cannot be made from the checkpoint, DataError if there is none.
    """
    config = read_config(checkpoint)
    checkpoint_kind = KINDS[config.model_type]
    if kind != checkpoint_kind and (kind == "seq2seq" or config.model_type not in PARAKEET_TYPES):
        raise ConfigError(
            f"`student.kind: {kind}` cannot be made from `{checkpoint}`",
            code="start-checkpoint",
            why=f"it is a `{config.model_type}`, whose kind is `{checkpoint_kind}`",
            fix=f"set `student.kind: {checkpoint_kind}`, or start from another checkpoint",
        )
    with loading_weights(checkpoint), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if config.model_type in SAMPLES_TYPES:
            return _wav2vec2(checkpoint, num_pieces, keep_vocabulary, dropout, freeze_convolutions)
        if checkpoint_kind == "seq2seq":
            return _whisper(checkpoint, dropout, encoder_layers, decoder_layers)
        return _parakeet(checkpoint, config, num_pieces, keep_vocabulary, dropout, kind)


def _wav2vec2(
    checkpoint: str, num_pieces: int, keep_vocabulary: bool, dropout: float | None, freeze_convolutions: bool
) -> PreTrainedModel:
    from transformers import AutoModelForCTC

    # LayerDrop leaves a layer without a gradient, which stops training on several devices
    changes: dict[str, Any] = {"layerdrop": 0.0, "vocab_size": num_pieces + 1, "pad_token_id": num_pieces}
    if dropout is not None:
        names = ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
        changes |= dict.fromkeys(names, dropout)
    model = load_model(AutoModelForCTC, checkpoint, new_head=not keep_vocabulary, dtype=torch.float32, **changes)
    if not keep_vocabulary:
        nn.init.normal_(model.lm_head.weight, std=model.config.initializer_range)
        nn.init.zeros_(model.lm_head.bias)
    if freeze_convolutions:
        model.freeze_feature_encoder()
    mask = getattr(model.base_model, "masked_spec_embed", None)
    if mask is not None:  # it gets no gradient from a batch without a mask
        mask.requires_grad_(False)
    return grouped_in_fp32(padding_ignored(model))


def _parakeet(
    checkpoint: str, config: PretrainedConfig, num_pieces: int, keep_vocabulary: bool, dropout: float | None, kind: Kind
) -> PreTrainedModel:
    import transformers

    if config.model_type == STREAMING and kind != "rnnt":
        raise ConfigError(
            f"`student.kind: {kind}` cannot be made from `{checkpoint}`",
            code="start-checkpoint",
            why="it is a streaming student",
            fix="set `student.kind: rnnt`",
        )
    checkpoint_class = getattr(transformers, TRANSDUCERS.get(config.model_type, "ParakeetForCTC"))
    whole = keep_vocabulary and KINDS[config.model_type] == kind
    old = load_model(checkpoint_class, checkpoint, new_head=not whole, dtype=torch.float32)
    encoder = old.encoder.config
    if dropout is not None:
        encoder.dropout = encoder.activation_dropout = encoder.attention_dropout = dropout
    encoder.layerdrop = 0.0
    model = from_encoder(kind, encoder, num_pieces, getattr(config, "decoder_hidden_size", PREDICTOR))
    weights = {name: value for name, value in old.state_dict().items() if whole or name.startswith("encoder.")}
    model.load_state_dict(weights, strict=whole)
    return model.to(memory_format=torch.channels_last)


def _whisper(
    checkpoint: str, dropout: float | None, encoder_layers: int | None, decoder_layers: int | None
) -> PreTrainedModel:
    from transformers import WhisperForConditionalGeneration

    changes: dict[str, Any] = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    if dropout is not None:
        changes |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), dropout)
    model: PreTrainedModel = load_model(WhisperForConditionalGeneration, checkpoint, dtype=torch.float32, **changes)
    if encoder_layers is not None or decoder_layers is not None:
        model = shallower_whisper(model, encoder_layers, decoder_layers)
    generation, end_id = model.generation_config, model.config.eos_token_id
    generation.begin_suppress_tokens = None  # a transcript may be empty
    generation.suppress_tokens = list(
        range(end_id + 1, model.config.vocab_size)
    )  # commands, such as the language, are not text
    return model


def shallower_whisper(
    model: PreTrainedModel, encoder_layers: int | None, decoder_layers: int | None
) -> PreTrainedModel:
    """A Whisper with some of the layers of another one, and all its other weights; None keeps all layers.

    Layers are copied at even distances, the last one always (Gandhi et al. 2023, "Distil-Whisper: Robust knowledge
    distillation via large-scale pseudo labelling", section 4). ConfigError if there are fewer layers than asked for.
    """
    config = copy.deepcopy(model.config)
    weights = model.state_dict()
    for part, num in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        num_before = getattr(config, f"{part}_layers")
        kept = _evenly_spaced(num_before, num_before if num is None else num, f"student.{part}_layers")
        setattr(config, f"{part}_layers", len(kept))
        weights = _renumbered(weights, f"model.{part}.layers.", kept)
        if part == "decoder" and getattr(model.generation_config, "alignment_heads", None):
            heads = model.generation_config.alignment_heads
            model.generation_config.alignment_heads = [[kept.index(i), head] for i, head in heads if i in kept] or None
    config.num_hidden_layers = config.encoder_layers
    shallower: PreTrainedModel = type(model)(config)
    shallower.load_state_dict(weights)
    shallower.tie_weights()
    shallower.generation_config = model.generation_config
    return shallower


def _evenly_spaced(num: int, num_kept: int, option: str) -> list[int]:
    if num_kept > num:
        raise ConfigError(
            f"`{option}` is {num_kept}",
            code="option-value",
            why=f"the checkpoint has {num} layers there",
            fix=f"make it at most {num}",
        )
    return [num - 1] if num_kept == 1 else [round(i * (num - 1) / (num_kept - 1)) for i in range(num_kept)]


def _renumbered(weights: dict[str, Tensor], prefix: str, kept: Sequence[int]) -> dict[str, Tensor]:
    """The weights with the layers that are `kept` alone, numbered from 0."""
    renumbered = {}
    for name, value in weights.items():
        if not name.startswith(prefix):
            renumbered[name] = value
            continue
        number, _, rest = name.removeprefix(prefix).partition(".")
        if int(number) in kept:
            renumbered[f"{prefix}{kept.index(int(number))}.{rest}"] = value
    return renumbered


def _log_mel(checkpoint: str | None, num_mels: int) -> LogMel:
    """The log-mels that a model was trained on, by the extractor saved with it; `utterance` where there is none."""
    extractor = _extractor(checkpoint)
    if extractor.get("feature_extractor_type") != UNNORMALISED_EXTRACTOR:
        return LogMel(num_mels)
    level_range_db = extractor.get("level_range_db")
    return LogMel(num_mels, "none") if level_range_db is None else LogMel(num_mels, "level", level_range_db)


def _extractor(checkpoint: str | None) -> Mapping[str, Any]:
    """The configuration of the feature extractor saved with a model; empty if there is none."""
    from transformers.models.auto.feature_extraction_auto import get_feature_extractor_config

    if checkpoint is None:
        return {}
    try:
        extractor: Mapping[str, Any] = get_feature_extractor_config(
            checkpoint, local_files_only=Path(checkpoint).is_dir()
        )
    except (OSError, ValueError):
        return {}
    return extractor
