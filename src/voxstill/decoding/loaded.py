"""What a recogniser does with a model once it is loaded, whatever its kind and runtime."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from voxstill.core.errors import DataError
from voxstill.core.records import Hypothesis
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.word_times import AlignedText
from voxstill.text.pieces import PieceVocabulary

if TYPE_CHECKING:
    import torch

Samples = NDArray[np.int16]
"""(T,) mono at 16 kHz."""


class LoadedModel(Protocol):
    """A model that transcribes batches of int16 samples at 16 kHz."""

    max_duration_ms: int | None
    """The most audio that it takes at once, and pads each utterance to; None if there is no limit."""
    takes_batches: bool
    """Whether several utterances in one batch are transcribed as each of them alone would be."""
    languages: Collection[str]
    """Codes of the languages that an utterance may be said to be in; none where the model is of one alone."""
    num_parameters: int
    """Number of weights."""

    @property
    def takes_phrases(self) -> bool:
        """Whether `transcribe` can listen for phrases."""
        ...

    def transcribe(
        self,
        samples: Sequence[Samples],
        ids: Sequence[str],
        languages: Sequence[str | None],
        phrases: Sequence[str] = (),
    ) -> list[Hypothesis]:
        """Transcribe one batch; return one Hypothesis per utterance, in order. A language that is None is detected."""
        ...


@runtime_checkable
class LoadedCtc(LoadedModel, Protocol):
    """A CTC model, which can also score a text that is given."""

    vocabulary: PieceVocabulary
    frame_ms: int
    """From one frame of `log_probs` to the next."""

    def log_probs(self, samples: Sequence[Samples], blank_penalty: float = 0.0) -> list[NDArray[np.float32]]:
        """Return the log-probabilities (F, V) of the tokens in each frame of each utterance, of all in one batch."""
        ...

    def align(self, samples: Sequence[Samples], texts: Sequence[str], with_words: Sequence[bool]) -> list[AlignedText]:
        """Align each text with its audio, of all in one batch."""
        ...


def padded(samples: Sequence[Samples], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples (B, T) and how many each utterance has (B,), on the device."""
    import torch

    lengths = [len(samples_T) for samples_T in samples]
    audio_BT = np.zeros((len(samples), max(lengths)), np.int16)
    for row_T, samples_T in zip(audio_BT, samples, strict=True):
        row_T[: len(samples_T)] = samples_T
    return torch.as_tensor(audio_BT).to(device), torch.as_tensor(lengths).to(device)


def dtype_of(options: RecognizerOptions, device: torch.device) -> torch.dtype:
    """Return the number format to compute with; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    import torch

    name = options.dtype if options.dtype != "auto" else "bfloat16" if device.type == "cuda" else "float32"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def no_recognizer_error(folder: Path, error: Exception) -> DataError:
    """Return the error for a folder that cannot be loaded as a recogniser, because of `error`."""
    return DataError(
        f"`{folder}` contains no student and no other recogniser that can be loaded",
        code="no-model",
        why=next(iter(str(error).strip().splitlines()), type(error).__name__),
        fix="give an experiment folder, or a folder with config.json, model.safetensors and a tokenizer",
    )
