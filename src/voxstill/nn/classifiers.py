"""Students for audio classification and speaker verification: a head on wav2vec 2.0 and its kin, or on a FastConformer.

The former are classes of `transformers`, which loads a saved one alone. It has no such heads for a FastConformer:
they are defined here, and `transformers` loads the encoder of a saved student.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from voxstill.core.config import Student
from voxstill.core.errors import ConfigError, DataError, first_line
from voxstill.nn import checkpoints, students
from voxstill.nn.conformer_gpu import fuse
from voxstill.nn.conv_cpu import padding_ignored, time_first
from voxstill.nn.conv_gpu import plan_free
from voxstill.nn.heads import HEADS, Task
from voxstill.nn.loading import load_model, loading_weights
from voxstill.nn.log_mel import frame_mask, output_frames

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_FAMILIES = {"wav2vec2": "Wav2Vec2", "wav2vec2-conformer": "Wav2Vec2Conformer", "hubert": "Hubert", "wavlm": "WavLM"}
_EMBEDDING = 256
"""Dimensions of a speaker embedding, or the width of the encoder where that is less."""
_ENCODER = "parakeet_encoder"


def new(cfg: Student, names: Sequence[str], seed: int, about: Mapping[str, str]) -> PreTrainedModel:
    """A student for the classes `names`, its encoder new or from `cfg.checkpoint`, its head initialised from `seed`.

    `about` is kept in its `config.json`. ConfigError if there is no such head for the checkpoint, DataError if
    there is no checkpoint.
    """
    task: Task = "speakers" if cfg.task == "speakers" else "classes"
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if cfg.checkpoint is None:
            normalization = cfg.normalization or "utterance"
            options: dict[str, Any] = {"dropout": cfg.dropout or 0.0, "seed": seed, "normalization": normalization}
            encoder = students.build(cfg.size, 1, **options).encoder
            model = _with_head(encoder, task, labels)
        else:
            config = read_config(cfg.checkpoint)
            start = _wav2vec2 if config.model_type in _FAMILIES else _fast_conformer
            with loading_weights(cfg.checkpoint):
                model = start(cfg, config, task, labels)
    for name, value in about.items():
        setattr(model.config, name, value)
    return model


def read_config(checkpoint: str) -> PretrainedConfig:
    """Read the configuration of a checkpoint; ConfigError if no classification head can be put on its model."""
    config = checkpoints.read_config(checkpoint, (_ENCODER,))
    if config.model_type not in (*_FAMILIES, *students.PARAKEET_TYPES, _ENCODER):
        raise ConfigError(
            f"`{checkpoint}` cannot be used for classification",
            code="start-checkpoint",
            why=f"there is no head for a `{config.model_type}`",
            fix="start from a wav2vec 2.0, HuBERT, WavLM or Parakeet, or leave `student.checkpoint` out",
        )
    return config


def task_of(config: PretrainedConfig) -> Task | None:
    """The task of a saved classifier, by the architecture that its configuration names; None for other models."""
    architecture = (getattr(config, "architectures", None) or [""])[0]
    return next((task for task, head in HEADS.items() if architecture.endswith(head)), None)


def names_of(model: PreTrainedModel) -> list[str]:
    """Names of a classifier's classes, in the order of its scores."""
    return [model.config.id2label[i] for i in range(len(model.config.id2label))]


def load(folder: Path) -> PreTrainedModel:
    """Load the classifier saved in `folder`; DataError if there is none."""
    from safetensors import SafetensorError

    try:
        config = checkpoints.read_config(str(folder), (_ENCODER,))
        task = task_of(config)
        if task is None:
            raise ValueError(f"it is a `{config.model_type}` without classes")
        if config.model_type in _FAMILIES:
            return _without_padding(load_model(_class_of_transformers(config.model_type, task), folder))
        model: PreTrainedModel = load_model(_fast_conformer_class(task), folder)
        return fuse(plan_free(model))
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"`{folder}` contains no student that classifies",
            code="no-model",
            why=first_line(error),
            fix="give an experiment of `student.task: classes` or `speakers`, or the `model` folder in it",
        ) from None


def scores(model: nn.Module, inputs: Tensor, len_B: Tensor) -> tuple[Tensor, Tensor | None]:
    """Class scores (B, C) of features (B, F, D) or samples (B, T), and speaker embeddings (B, E), None without them.

    Embeddings have unit length, and the scores of a speaker student are cosines. Padding changes nothing.
    """
    mask = frame_mask(len_B, inputs.shape[1])
    if inputs.ndim == 3:
        out = model(input_features=inputs, attention_mask=mask)
    else:
        out = model(input_values=inputs, attention_mask=mask.long())
    return out if isinstance(out, tuple) else (out.logits, None)


def _wav2vec2(cfg: Student, config: PretrainedConfig, task: Task, labels: Mapping[str, Any]) -> PreTrainedModel:
    # no masks: an utterance to be classified may be shorter than one
    changes: dict[str, Any] = {"layerdrop": 0.0, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, **labels}
    changes["use_weighted_layer_sum"] = False
    if cfg.dropout is not None:
        names = ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
        changes |= dict.fromkeys(names, cfg.dropout)
    if task == "speakers":
        # kernels of one frame: with dilation `transformers` would count frames wrongly, and pool over padding
        width = config.hidden_size
        changes |= {"tdnn_dim": (width, 2 * width), "tdnn_kernel": (1, 1), "tdnn_dilation": (1, 1)}
        changes["xvector_output_dim"] = min(width, _EMBEDDING)
    assert cfg.checkpoint is not None
    model_class = _class_of_transformers(config.model_type, task)
    model = load_model(model_class, cfg.checkpoint, new_head=True, dtype=torch.float32, **changes)
    heads = [model.projector, model.classifier] if task == "classes" else [model.projector, model.feature_extractor]
    for layer in heads:
        _init_head(layer)
    if task == "speakers":
        for layer in model.tdnn:
            _init_head(layer.kernel)
        nn.init.normal_(model.objective.weight)
        nn.init.eye_(model.classifier.weight)  # what comes before it is the embedding, here and in `transformers`
        nn.init.zeros_(model.classifier.bias)
        model.classifier.requires_grad_(False)
    if cfg.freeze_features:
        model.freeze_feature_encoder()
    return _without_padding(model)


def _without_padding(model: PreTrainedModel) -> PreTrainedModel:
    time_first(model.base_model.feature_extractor)
    return padding_ignored(model)


def _init_head(layer: nn.Linear) -> None:
    """Initialise a layer of a new head: Xavier weights, no bias, so that the variance of its input is kept."""
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)


@functools.cache
def _class_of_transformers(model_type: str, task: Task) -> Any:
    """A classifier class of `transformers`; the one for speakers pools a whole batch at once and returns cosines."""
    import transformers

    name = _FAMILIES[model_type] + HEADS[task]
    base_class = getattr(transformers, name, None)
    if base_class is None:
        raise ConfigError(
            f"`student.task: {task}` cannot be trained from a `{model_type}`",
            code="start-checkpoint",
            why=f"`transformers` has no `{name}`",
            fix="start from a wav2vec 2.0 or a WavLM",
        )
    if task == "classes":
        return base_class

    def forward(self: PreTrainedModel, input_values: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden_BFD = self.projector(self.base_model(input_values, attention_mask=attention_mask).last_hidden_state)
        for layer in self.tdnn:
            hidden_BFD = layer(hidden_BFD)
        # kernels of one frame drop none
        frames_B = self._get_feat_extract_output_lengths(attention_mask.sum(1))
        embedding_BE = self.feature_extractor(_statistics(hidden_BFD, frames_B).to(hidden_BFD.dtype))
        return _cosines(embedding_BE, self.objective.weight)

    return type(name, (base_class,), {"forward": forward})


@functools.cache
def _fast_conformer_class(task: Task) -> Any:
    """A classifier class in the manner of `transformers`, with a `ParakeetEncoder` named as in its own classes.

    Classes: mean pooling and a linear layer. Speakers: mean and deviation pooling and an embedding.
    """
    from transformers import ParakeetEncoder, ParakeetEncoderConfig, ParakeetPreTrainedModel

    def init(self: PreTrainedModel, config: PretrainedConfig) -> None:
        ParakeetPreTrainedModel.__init__(self, config)
        self.encoder = ParakeetEncoder(config)
        num_classes, width = len(config.id2label), config.hidden_size
        if task == "classes":
            self.classifier = nn.Linear(width, num_classes)
        else:
            embedding = min(width, _EMBEDDING)
            self.feature_extractor = nn.Linear(2 * width, embedding)
            self.objective = nn.Linear(num_classes, embedding, bias=False)
        self.post_init()

    def forward(self: PreTrainedModel, input_features: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden_BFD = self.encoder(input_features, attention_mask).last_hidden_state
        frames_B = output_frames(attention_mask.sum(1))
        if task == "classes":
            return self.classifier(_mean(hidden_BFD, frames_B).to(hidden_BFD.dtype)), None
        embedding_BE = self.feature_extractor(_statistics(hidden_BFD, frames_B).to(hidden_BFD.dtype))
        return _cosines(embedding_BE, self.objective.weight)

    members = {
        "__init__": init,
        "forward": forward,
        "config_class": ParakeetEncoderConfig,
        "base_model_prefix": "encoder",
    }
    return type("FastConformer" + HEADS[task], (ParakeetPreTrainedModel,), members)


def _fast_conformer(cfg: Student, config: PretrainedConfig, task: Task, labels: Mapping[str, Any]) -> PreTrainedModel:
    from transformers import ParakeetEncoder

    assert cfg.checkpoint is not None
    shape = getattr(config, "encoder_config", config)
    if cfg.dropout is not None:
        shape.dropout = shape.activation_dropout = shape.attention_dropout = cfg.dropout
    shape.layerdrop = 0.0
    encoder = load_model(ParakeetEncoder, cfg.checkpoint, new_head=True, config=shape, dtype=torch.float32)
    return _with_head(encoder, task, labels)


def _with_head(encoder: PreTrainedModel, task: Task, labels: Mapping[str, Any]) -> PreTrainedModel:
    encoder.config.update(dict(labels))
    model = _fast_conformer_class(task)(encoder.config)
    model.encoder.load_state_dict(encoder.state_dict())
    _init_head(model.classifier if task == "classes" else model.feature_extractor)
    if task == "speakers":
        nn.init.normal_(model.objective.weight)
    return fuse(plan_free(model.to(memory_format=torch.channels_last)))


def _mean(hidden_BFD: Tensor, frames_B: Tensor) -> Tensor:
    """Mean over an utterance's own frames (B, D), in fp32."""
    own_BF1 = frame_mask(frames_B, hidden_BFD.shape[1])[..., None]
    return (hidden_BFD.float() * own_BF1).sum(1) / frames_B.clamp(min=1)[:, None]


def _statistics(hidden_BFD: Tensor, frames_B: Tensor) -> Tensor:
    """Mean and standard deviation over own frames (B, 2 D), in fp32; of a single frame the deviation is 0.

    Snyder et al. 2018, "X-Vectors: Robust DNN Embeddings for Speaker Recognition", section 2.
    """
    mean_BD = _mean(hidden_BFD, frames_B)
    own_BF1 = frame_mask(frames_B, hidden_BFD.shape[1])[..., None]
    squares_BD = ((hidden_BFD.float() - mean_BD[:, None]).square() * own_BF1).sum(1)
    variance_BD = squares_BD / (frames_B - 1).clamp(min=1)[:, None]
    varies_BD = variance_BD > 0  # the gradient of the root of 0 is infinite
    return torch.cat([mean_BD, torch.where(varies_BD, variance_BD, 1).sqrt() * varies_BD], dim=1)


def _cosines(embedding_BE: Tensor, centre_EC: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines with the centre of each class (B, C), and the embeddings scaled to unit length (B, E), in fp32."""
    with torch.autocast(embedding_BE.device.type, enabled=False):
        unit_BE = functional.normalize(embedding_BE.float(), dim=1)
        return unit_BE @ functional.normalize(centre_EC.float(), dim=0), unit_BE
