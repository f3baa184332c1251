"""What `voxstill listen` shows while it listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from voxstill.core.records import Word
from voxstill.core.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWords(Result):
    """Words that follow those of the segment so far, with times from the start of the audio.

    `interim` are the words after them, which may still change.
    """

    segment: int
    words: Sequence[Word]
    interim: Sequence[Word] = ()

    def to_text(self) -> str:
        """The words."""
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSegment(Result):
    """The final text of a segment of speech; its words may differ from those that came while it was spoken."""

    segment: int
    start_ms: int
    end_ms: int
    text: str
    words: Sequence[Word]
    error: str | None = None

    def to_text(self) -> str:
        """The text, or why there is none."""
        return self.text if self.error is None else f"({self.error})"


ShowWords = Callable[[LiveWords], None]
ShowSegment = Callable[[LiveSegment], None]
