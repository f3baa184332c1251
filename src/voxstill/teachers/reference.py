"""The teacher `reference`: the human transcripts as labels, an upper bound for any teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from voxstill.audio import vad
from voxstill.core.config import Section
from voxstill.core.records import Word
from voxstill.teachers.teacher import Clip, Transcription


class ReferenceOptions(Section):
    """The reference has no options."""


class ReferenceTeacher:
    """Returns the human text, without a confidence.

    Word times are those of the manifest. Without, isolated words get some, where the pauses between them are clear.
    """

    Options: ClassVar[type[Section]] = ReferenceOptions
    reads_texts: ClassVar[bool] = True
    reads_languages: ClassVar[bool] = True

    def __init__(self, options: ReferenceOptions) -> None:
        self.options = options

    def revision(self) -> str:
        """Number of the algorithm that finds word times."""
        return "2"

    def load(self) -> None:
        """Nothing to load."""

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Return the human text of each clip; a clip without one is a result with an error."""
        return [_transcription(clip) for clip in clips]

    def close(self) -> None:
        """Nothing to release."""


def _transcription(clip: Clip) -> Transcription:
    text = clip.utterance.text
    if text is None:
        return Transcription(finish="failed", error="the manifest has no text for this utterance")
    text_words = text.split()
    words = clip.utterance.words
    if words is None:
        spans = vad.word_spans(clip.samples_T, len(text_words)) or []
        words = tuple(
            Word(text=word, start_ms=start, end_ms=end) for word, (start, end) in zip(text_words, spans, strict=False)
        )
    return Transcription(text=text, language=clip.utterance.info.language, num_tokens=len(text_words), words=words)
