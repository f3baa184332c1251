"""The teacher `student`: a finished student labels for the next one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import model_validator

from voxstill.core.config import Decode, Section, option
from voxstill.core.errors import ConfigError
from voxstill.decoding import checkpoint_files, exported
from voxstill.decoding.options import BATCH_MS, RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.storage.fetch import read_uri
from voxstill.teachers.teacher import Clip, Transcription, transcription


class StudentOptions(Section):
    """Which student labels, and how it decodes."""

    checkpoint: str = option(pace=True)
    """An experiment that has finished training, the `model` folder in it, or an exported student. Its labels are named
    after its weights, wherever they lie."""
    decode: Decode = Decode()
    """As the section `decode`, which is for the student that is judged."""
    batch_ms: int | None = option(None, unit="ms", ge=1000, also_default=(BATCH_MS,))
    """Most audio taken at once, padding included. Unset takes 30 s on a CPU and ten minutes on a GPU."""
    threads: int = option(1, unit="threads", ge=1, le=1024, pace=True)
    """CPU threads of the model."""

    @model_validator(mode="after")
    def _nothing_is_tuned(self) -> Self:
        if self.decode.tune:
            raise ConfigError(
                "`teacher.decode.tune` has no effect",
                code="option-unused",
                why="weights are tuned in evaluation, on texts that labels must not depend on",
                fix="set `teacher.decode.lm_weight` and `teacher.decode.word_bonus`",
            )
        return self


def _folder(checkpoint: str) -> str:
    """The exported student, or the model folder of an experiment."""
    return checkpoint if exported.locate(checkpoint) is not None else str(checkpoint_files.model_folder(checkpoint))


class StudentTeacher:
    """A `Teacher` that is a student; it decodes by its own section `decode`, with words, their times and confidence."""

    Options: ClassVar[type[Section]] = StudentOptions
    reads_texts: ClassVar[bool] = False

    def __init__(self, options: StudentOptions) -> None:
        self._decoding = options.decode
        recognizer_options = RecognizerOptions(
            model=_folder(options.checkpoint),
            dtype="float32",  # as where it is judged: the same labels on every machine
            batch_ms=options.batch_ms,
            threads=options.threads,
        )
        self._recognizer = Recognizer(recognizer_options, options.decode, section="teacher.")

    def revision(self) -> str:
        """Return the hash of the model folder, and of the language model or grammar that it decodes with."""
        weights = self._recognizer.revision()
        helpers = [uri for uri in (self._decoding.lm, self._decoding.grammar) if uri is not None]
        return "-".join([weights, *(hashlib.sha256(read_uri(uri)).hexdigest()[:16] for uri in helpers)])

    def load(self) -> None:
        """Load the weights; ConfigError where `decode` does not go with the student."""
        self._recognizer.load()

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Transcribe clips; return one answer per clip, in order, errors included."""
        samples, ids = [clip.samples_T for clip in clips], [clip.utterance.id for clip in clips]
        return [transcription(hypothesis) for hypothesis in self._recognizer.transcribe_batch(samples, ids)]

    def close(self) -> None:
        """Drop the weights."""
        self._recognizer.close()
