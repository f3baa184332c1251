"""Options of the teacher, and its presets."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from voxstill.core.config.section import option
from voxstill.core.errors import ConfigError

TEACHER_PRESETS: dict[str, dict[str, Any]] = {
    "whisper-large-v3-vllm": {
        "name": "vllm",
        "model": "openai/whisper-large-v3",
        "dtype": "bfloat16",
        "max_model_len": 448,
        "max_num_seqs": 256,
        "temperature": 0.0,
    },
    "qwen3-asr-vllm": {
        "name": "vllm",
        "model": "Qwen/Qwen3-ASR-1.7B",
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "temperature": 0.0,
        "max_tokens": 512,
    },
    "qwen3-omni-vllm": {
        "name": "vllm",
        "model": "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        "dtype": "bfloat16",
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.95,
        "temperature": 0.0,
        "max_tokens": 512,
    },
    "parakeet-transformers": {
        "name": "transformers",
        "model": "nvidia/parakeet-tdt-0.6b-v3",
        "batch_ms": 600_000,
    },
    "faster-whisper-small": {
        "name": "faster-whisper",
        "model": "Systran/faster-whisper-small",
        "compute_type": "int8",
        "beam_size": 5,
    },
}
"""What `teacher.preset` stands for; settings given beside it win."""


class Teacher(BaseModel):
    """Which model labels the audio. Each teacher brings options of its own: `voxstill explain teacher`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, use_attribute_docstrings=True)

    name: str = option("pocketsphinx")
    """`pocketsphinx`, `transformers`, `vllm`, `faster-whisper`, `sherpa`, `openai` (any such server), `student` (a
    trained one), `consensus` (what others agree on), `corrected` (judgements in `voxstill explore`),
    `reference` (the human texts) or `echo` (for tests)."""

    @model_validator(mode="before")
    @classmethod
    def _a_preset_is_its_settings(cls, data: object) -> object:
        """`preset` gives way to what it stands for: what is hashed, kept and shown is that."""
        if not isinstance(data, dict) or "preset" not in data:
            return data
        settings = {name: value for name, value in data.items() if name != "preset"}
        preset = str(data["preset"])
        if preset not in TEACHER_PRESETS:
            near = difflib.get_close_matches(preset, TEACHER_PRESETS, n=1, cutoff=0.3)
            raise ConfigError(
                f"unknown teacher preset `{preset}`",
                code="unknown-name",
                why=f"the presets of teachers are {', '.join(TEACHER_PRESETS)}",
                fix=f"did you mean `{near[0]}`?" if near else "use one of them, or set teacher.name and its options",
            )
        return {**TEACHER_PRESETS[preset], **settings}
