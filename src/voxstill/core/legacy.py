"""Names that version 0.1 gave to tables and experiments: what it has made or started is found, and continues under
them.

0.1 hashed every option of a section, whatever its value. Its options are written down here once and for all: an option
that came later must be at its default, or else 0.1 cannot have made the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from voxstill.core import config
from voxstill.core.config import Config, Section
from voxstill.core.records import fingerprint

OPTIONS: Mapping[type[Section], Mapping[str, Any]] = {
    config.Source: {
        "language": None,
        "dataset": None,
        "test_speakers": [],
        "dev_speakers": [],
        "dev_share": 0.1,
        "test_share": 0.1,
    },
    config.Segment: {
        "max_ms": 30000,
        "min_ms": 50,
        "vad": "auto",
        "threshold": 0.5,
        "min_silence_ms": 300,
        "pad_ms": 100,
    },
    config.Filter: {
        "min_chars_per_s": 0.5,
        "max_chars_per_s": 30.0,
        "max_repeats": 4,
        "max_compression_ratio": 2.4,
        "max_word_characters": 40,
        "phrases": [],
        "min_confidence": 0.0,
        "keep_share": 1.0,
        "second_teacher": None,
        "max_disagreement": 0.1,
        "aligner": None,
        "min_alignment": -2.0,
        "frame_ms": 80,
    },
    config.Shard: {
        "utterances": 2000,
        "max_mb": 1024,
        "format": "flac",
    },
    config.Student: {
        "task": "recognition",
        "target": "text",
        "kind": "ctc",
        "checkpoint": None,
        "language": None,
        "freeze_features": True,
        "freeze_layers": 0.0,
        "size": "tiny",
        "units": "auto",
        "bpe_pieces": 512,
        "max_words": 200,
        "text": "basic",
        "dropout": None,
    },
    config.Plan: {
        "budget_ms": 120000,
        "budget_tokens": None,
        "max_utterances": 512,
        "slots": 1,
        "window": 65536,
        "layout": "local",
        "weights": {},
        "temperature": 1.0,
        "dialect_times": {},
    },
    config.Augment: {
        "noise_prob": 0.6,
        "noise": None,
        "rooms": None,
        "room_prob": 0.3,
        "gain_db": 0.0,
        "min_snr_db": 0.0,
        "max_snr_db": 25.0,
        "tempo": 0.1,
        "warp": 0.1,
        "time_masks": 2,
        "time_mask_ms": 200,
        "mel_masks": 2,
        "mel_mask_bins": 16,
        "run_prob": 0.0,
        "masks_from": 0.4,
    },
    config.Train: {
        "preset": None,
        "steps": None,
        "epochs": None,
        "max_minutes": None,
        "lr": 0.002,
        "warmup": 0.06,
        "schedule": "cosine",
        "hold": 0.3,
        "final_lr": 0.01,
        "weight_decay": 0.01,
        "thaw": 0.0,
        "clip_norm": 5.0,
        "align_share": 0.35,
        "align_ctc": 0.3,
        "dialect_weights": {},
        "label_smoothing": 0.0,
        "consistency": 0.0,
        "auxiliary_ctc": 0.3,
        "ascending_share": 0.15,
        "average": "last",
        "average_share": 0.07,
        "average_decay": 0.0,
        "keep_best": 1,
        "validate_every": 500,
        "patience": None,
        "seed_mode": "production",
        "precision": "auto",
        "activation_checkpointing": False,
        "compile": False,
        "sync_batchnorm": False,
        "threads": 1,
    },
    config.Pretrain: {
        "method": "wav2vec2",
        "size": "base",
        "checkpoint": None,
        "crop_ms": 15600,
        "mask_prob": None,
        "mask_ms": None,
        "min_masks": 2,
        "negatives": 100,
        "diversity_weight": 0.1,
        "max_temperature": 2.0,
        "min_temperature": 0.5,
        "temperature_decay": 0.999995,
        "feature_gradient": 0.1,
        "layer_drop": 0.05,
        "dropout": 0.1,
        "targets": "mels",
        "codes": None,
        "code_dims": None,
    },
}
"""Name and default of every option that 0.1 hashed, by section."""
TEACHER_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "pocketsphinx": (
        "grammar",
        "keyphrases",
        "keyphrase_threshold",
        "language",
        "model",
        "dictionary",
        "language_model",
        "language_weight",
        "word_prob",
        "noise_floor_db",
        "pad_ms",
    ),
    "transformers": (
        "model",
        "revision",
        "dtype",
        "batch_ms",
        "language",
        "max_new_tokens",
        "num_beams",
        "temperature",
        "top_k",
        "top_p",
        "repetition_penalty",
        "no_repeat_ngram_size",
        "seed",
        "trust_remote_code",
    ),
    "faster-whisper": (
        "model",
        "revision",
        "device",
        "compute_type",
        "batch_size",
        "language",
        "beam_size",
        "patience",
        "length_penalty",
        "repetition_penalty",
        "no_repeat_ngram_size",
        "temperature",
        "initial_prompt",
        "hotwords",
        "suppress_blank",
        "suppress_tokens",
        "word_timestamps",
        "vad_filter",
    ),
    "sherpa": (
        "model",
        "revision",
        "kind",
        "int8",
        "language",
        "decoding_method",
        "max_active_paths",
        "provider",
        "batch_size",
    ),
    "openai": (
        "base_url",
        "model",
        "api_key_env",
        "mode",
        "prompt",
        "language",
        "response_format",
        "timestamp_granularities",
        "logprobs",
        "temperature",
        "top_p",
        "max_tokens",
        "seed",
    ),
    "vllm": (
        "model",
        "revision",
        "dtype",
        "tensor_parallel_size",
        "max_model_len",
        "enforce_eager",
        "trust_remote_code",
        "prompt",
        "language",
        "temperature",
        "top_p",
        "top_k",
        "repetition_penalty",
        "max_tokens",
        "seed",
    ),
    "reference": (),
    "consensus": ("of",),
    "echo": (
        "substitute",
        "delete",
        "insert",
        "vocabulary",
        "seed",
        "delay_ms",
        "fail_on",
        "crash_on",
        "hang_on",
    ),
}
"""Options that 0.1 hashed, by teacher, where they were set; those of other packages are not known."""


def recipe(*parts: object) -> str | None:
    """The name of what these sections and values make; None if it depends on something that 0.1 did not have."""
    hashed = [_options(part) if isinstance(part, BaseModel) else part for part in parts]
    return None if any(part is None for part in hashed) else fingerprint(*hashed)


def labels(name: str, teacher: config.Teacher, options: BaseModel) -> str | None:
    """The name of a teacher's labels: 0.1 hashed the options that were set, also to their defaults.

    `options` are those set and the others. None if one is set that 0.1 did not have.
    """
    decisive, former = config.identity(options), config.former_names(type(options))
    known = TEACHER_OPTIONS.get(teacher.name)
    current = {other: option for option, others in former.items() for other in others}
    hashed: dict[str, Any] = {"name": teacher.name}
    for spelling, value in (teacher.model_extra or {}).items():
        option = current.get(spelling, spelling)
        if known is None:
            field = type(options).model_fields[option]
            then = None if config.is_pace(field) else spelling
        else:
            then = next((other for other in (option, *former.get(option, ())) if other in known), None)
            if then is None and former.get(option, (option,))[0] in decisive:
                return None
        if then is not None:
            hashed[then] = value
    return None if "schema_version" in decisive else fingerprint("label", name, hashed)


def experiment(cfg: Config, settings: Mapping[str, Any], shards: str) -> str | None:
    """The name of a training with these settings, whose sections are identities, on these shards."""
    hashed: dict[str, Any] = {}
    if cfg.student.normalization == "utterance":  # 0.1 knew no other
        cfg = cfg.model_copy(update={"student": cfg.student.model_copy(update={"normalization": None})})
    if cfg.train.optimizer == "adamw":  # nor here
        cfg = cfg.model_copy(update={"train": cfg.train.model_copy(update={"optimizer": None})})
    for name, value in settings.items():
        section = getattr(cfg, name, None)
        if isinstance(section, BaseModel):
            options = _options(section)
            if options is None:
                return None
            weights = {"weights": value["weights"]} if "weights" in value else {}
            hashed[name] = {**options, **weights}
        else:
            hashed[name] = value
    return fingerprint("train", hashed, shards)


def _options(section: BaseModel) -> dict[str, object] | None:
    """What 0.1 hashed of a section; None if something is set that it did not have, or had with another meaning."""
    former, decisive = config.former_names(type(section)), config.identity(section)
    if "schema_version" in decisive:
        return None
    hashed: dict[str, object] = dict(next(table for kind, table in OPTIONS.items() if isinstance(section, kind)))
    for option, value in section.model_dump().items():
        then = next((name for name in (option, *former.get(option, ())) if name in hashed), None)
        if then is not None:
            hashed[then] = value
        elif former.get(option, (option,))[0] in decisive:
            return None
    return hashed
