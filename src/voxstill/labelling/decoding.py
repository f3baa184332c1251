"""The first stage of labelling and of alignment: utterances in, their decoded audio out as one array for each chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import read_utterances
from voxstill.audio.decoder import Decoder
from voxstill.core.errors import VoxstillError
from voxstill.core.records import Utterance
from voxstill.engine import StageWork

_SET_ASIDE = "set aside"


def set_aside_error(reason: str) -> str:
    """The error in the label of an utterance that no worker could transcribe."""
    return f"{_SET_ASIDE}: {reason}"


def is_set_aside(error: str) -> bool:
    """Whether this is an error of `set_aside_error`."""
    return error.startswith(_SET_ASIDE)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The audio of a chunk: one array, where each utterance begins in it, and why some have none."""

    samples_T: NDArray[np.int16]
    bounds: NDArray[np.int64]
    errors: tuple[str | None, ...]

    def samples_of(self, i: int) -> NDArray[np.int16]:
        """The samples of the i-th utterance; none where it has an error."""
        return self.samples_T[self.bounds[i] : self.bounds[i + 1]]


@dataclass
class Decode(StageWork):
    """The work of a CPU worker: fetch and decode a chunk. A file that holds several of its utterances is read once."""

    reading: read_utterances.Reading
    _decoder: Decoder = field(init=False, repr=False, compare=False)

    def open(self) -> None:
        """Start the decoder."""
        self._decoder = self.reading.decoder()

    def __call__(self, utterances: Sequence[Utterance], payload: object) -> Decoded:
        """Decode every utterance; one that cannot be read has an error in the place of samples."""
        samples: dict[str, NDArray[np.int16]] = {}
        errors: dict[str, str] = {}
        for utterance, audio in read_utterances.samples(utterances, self.reading.cache, self._decoder.decode):
            if isinstance(audio, VoxstillError):
                errors[utterance.id] = f"{audio.what}: {audio.why}" if audio.why else audio.what
            else:
                samples[utterance.id] = audio
        ordered = [samples.get(utterance.id, np.zeros(0, np.int16)) for utterance in utterances]
        bounds = np.cumsum([0, *(len(samples_T) for samples_T in ordered)], dtype=np.int64)
        return Decoded(
            np.concatenate(ordered) if ordered else np.zeros(0, np.int16),
            bounds,
            tuple(errors.get(utterance.id) for utterance in utterances),
        )

    def close(self) -> None:
        """End the decoder."""
        self._decoder.close()
