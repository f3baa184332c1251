"""What a live transcription says of its audio. Times are milliseconds from the start of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.records import Hypothesis, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStarted:
    """A segment of speech begins; `start_ms` includes the audio kept before the speech."""

    segment: int
    start_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStopped:
    """The segment has ended, by a pause; its text follows."""

    segment: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsAdded:
    """Words that follow those of the segment so far, and stay; `interim` are those after them, which may change."""

    segment: int
    words: Sequence[Word]
    interim: Sequence[Word] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDone:
    """The whole segment was transcribed: `words` are final, and may differ from those that were added.

    `hypotheses` are of its parts: a segment longer than `segment.max_ms` has several. `error` says why there is no
    text.
    """

    segment: int
    start_ms: int
    end_ms: int
    words: Sequence[Word]
    hypotheses: Sequence[Hypothesis]
    error: str | None = None

    @property
    def text(self) -> str:
        """The text of all parts."""
        return " ".join(hypothesis.text for hypothesis in self.hypotheses if hypothesis.text)


Event = SpeechStarted | SpeechStopped | WordsAdded | SegmentDone


class Extent(Enum):
    """How much of a segment a part is of."""

    SO_FAR = "so far"
    """All since its start or its last part; more follows."""
    PART = "part"
    """A whole part of it; more follows."""
    LAST = "last"
    """Its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPart:
    """Samples that are to be transcribed now, int16 at 16 kHz."""

    segment: int
    start_ms: int
    samples_T: NDArray[np.int16]
    extent: Extent

    @property
    def end_ms(self) -> int:
        """The end of the samples."""
        return self.start_ms + pcm.samples_to_ms(len(self.samples_T))

    @property
    def is_whole(self) -> bool:
        """Whether no more samples follow in this part."""
        return self.extent is not Extent.SO_FAR
