"""What a recogniser does with a model once it is loaded, whatever its kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from voxstill.core.errors import DataError
from voxstill.core.records import Hypothesis
from voxstill.decoding.options import RecognizerOptions


class LoadedModel(Protocol):
    """A model on its device that transcribes padded batches of int16 samples at 16 kHz."""

    model: Any
    max_duration_ms: int | None
    """The most audio that it takes at once, and pads each utterance to; None where there is no limit."""
    takes_batches: bool
    """Whether several utterances in one batch are transcribed as each of them alone would be."""
    languages: Collection[str]
    """Codes of the languages that an utterance may be said to be in; none where the model is of one alone."""

    def transcribe(
        self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor, ids: Sequence[str], languages: Sequence[str | None]
    ) -> list[Hypothesis]:
        """Transcribe one batch; return one Hypothesis per utterance, in order. A language that is None is detected."""
        ...


def dtype_of(options: RecognizerOptions, device: torch.device) -> torch.dtype:
    """Return the number format to compute with; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    name = options.dtype if options.dtype != "auto" else "bfloat16" if device.type == "cuda" else "float32"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def no_recognizer_error(folder: Path, error: Exception) -> DataError:
    """Return the error for a folder that cannot be loaded as a recogniser, because of `error`."""
    return DataError(
        f"`{folder}` holds no student, and no other recogniser that can be loaded",
        why=next(iter(str(error).strip().splitlines()), type(error).__name__),
        fix="give an experiment folder, or a folder with config.json, model.safetensors and a tokenizer",
    )
