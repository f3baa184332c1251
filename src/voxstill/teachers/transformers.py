"""The teacher `transformers`: any checkpoint that can be loaded as a recogniser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from voxstill.core.config import Section, option
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.teachers.teacher import MANIFEST, Clip, Transcription, language_of, transcription


class TransformersOptions(RecognizerOptions):
    """Options of the teacher `transformers`."""

    language: str | None = option(MANIFEST, first_default=None)
    """Language of the audio (`en`), for a Whisper that knows many; `manifest` takes that of each utterance, and null
    detects it."""


class TransformersTeacher:
    """A `Teacher` that is a `Recognizer`; its confidence is the mean log-probability of a token."""

    Options: ClassVar[type[Section]] = TransformersOptions
    reads_texts: ClassVar[bool] = False

    def __init__(self, options: RecognizerOptions) -> None:
        self._language = options.language
        if options.language == MANIFEST:
            options = options.model_copy(update={"language": None})
        self._recognizer = Recognizer(options, section="teacher.")

    def revision(self) -> str:
        """Return the hash of what a folder holds, or the commit of a name on the Hub."""
        return self._recognizer.revision()

    def load(self) -> None:
        """Load the weights; DataError where there is nothing to load."""
        self._recognizer.load()

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Transcribe clips; return one answer per clip, in order, errors included."""
        samples, ids = [clip.samples_T for clip in clips], [clip.utterance.id for clip in clips]
        known, model = self._recognizer.languages, self._recognizer.options.model
        languages = [language_of(clip, self._language, known, model) for clip in clips]
        return [transcription(hypothesis) for hypothesis in self._recognizer.transcribe_batch(samples, ids, languages)]

    def close(self) -> None:
        """Drop the weights."""
        self._recognizer.close()
