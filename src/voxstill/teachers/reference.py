"""The human texts as labels: what a student could learn from a teacher that never errs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from voxstill.audio import vad
from voxstill.config import Section
from voxstill.records import Word
from voxstill.teachers.teacher import Clip, Heard


class ReferenceOptions(Section):
    """The reference has no options."""


class ReferenceTeacher:
    """Answers with the human text, and without a confidence: nobody measured one.

    Words said one by one get times, where the pauses between them tell; other texts have none.
    """

    Options: ClassVar[type[Section]] = ReferenceOptions
    reads_texts: ClassVar[bool] = True

    def __init__(self, options: ReferenceOptions) -> None:
        self.options = options

    def revision(self) -> str:
        """It loads nothing; the number stands for the way word times are found."""
        return "2"

    def open(self) -> None:
        """Nothing to load."""

    def hear(self, clips: Sequence[Clip]) -> list[Heard]:
        """The text of each clip; a clip that nobody wrote down is an error of its own."""
        return [_read(clip) for clip in clips]

    def close(self) -> None:
        """Nothing to give back."""


def _read(clip: Clip) -> Heard:
    text = clip.utterance.text
    if text is None:
        return Heard(finish="failed", error="the manifest has no text for this utterance")
    spoken = text.split()
    spans = vad.word_spans(clip.samples_T, len(spoken)) or []
    words = tuple(
        Word(text=word, start_ms=start, end_ms=end) for word, (start, end) in zip(spoken, spans, strict=False)
    )
    return Heard(text=text, language=clip.utterance.info.language, num_tokens=len(spoken), words=words)
