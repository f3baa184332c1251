"""The work of a teacher on the engine: decoded audio in, labels out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from voxstill import engine
from voxstill.audio import read_utterances
from voxstill.core.errors import StorageError, TeacherError, VoxstillError
from voxstill.core.metrics.figures import ModelFigures
from voxstill.core.records import Label, Utterance, language_hash, text_hash
from voxstill.engine import StageWork
from voxstill.labelling.answers import checked
from voxstill.labelling.task import Task
from voxstill.teachers import registry
from voxstill.teachers.teacher import Clip, Teacher, Transcription


@dataclass
class Transcribe(StageWork):
    """The work of a teacher: decoded audio in, labels out. The model is loaded once in each process."""

    task: Task
    _teacher: Teacher = field(init=False, repr=False, compare=False)

    def open(self) -> None:
        """Load the teacher; TeacherError if what it reads was changed since the labels were named after it."""
        self._teacher = registry.create(self.task.teacher)
        self._teacher.load()
        if getattr(self._teacher, "revision_may_change", False):
            name = self.task.teacher.name
            if f"{name}@{self._teacher.revision()}" != self.task.name:
                raise TeacherError(
                    f"the files of the teacher `{name}` changed while labelling started",
                    code="source-changed",
                    why="the recipe of its labels was computed from the earlier files",
                    fix="run the same command again",
                )

    def __call__(
        self, utterances: Sequence[Utterance], payload: read_utterances.Decoded
    ) -> list[Label | engine.Postponed]:
        """Transcribe a chunk; return one row for each utterance, in order: its label, or why it is left for later."""
        readable = [i for i, error in enumerate(payload.errors) if error is None]
        clips = [self.clip(utterances[i], payload.samples_of(i)) for i in readable]
        answers = dict(zip(readable, checked(self._teacher.transcribe_batch(clips), len(clips)), strict=True))
        return [
            self._row(utterance, answers[i] if error is None else error)
            for i, (utterance, error) in enumerate(zip(utterances, payload.errors, strict=True))
        ]

    def figures(self) -> ModelFigures | None:
        """What the engine of the teacher reports of itself."""
        ask = getattr(self._teacher, "figures", None)
        return None if ask is None else ask()

    def close(self) -> None:
        """Unload the teacher."""
        self._teacher.close()

    def clip(self, utterance: Utterance, samples_T: NDArray[np.int16]) -> Clip:
        """The input of the teacher: without the human text, unless the teacher `reads_texts`."""
        if not self.task.reads_texts:
            utterance = dataclasses.replace(utterance, text=None, words=None)
        return Clip(utterance=utterance, samples_T=samples_T)

    def _row(self, utterance: Utterance, outcome: Transcription | VoxstillError) -> Label | engine.Postponed:
        if isinstance(outcome, StorageError):
            return engine.Postponed(outcome)
        if isinstance(outcome, VoxstillError):
            return self._label(utterance, Transcription(finish="failed", error=engine.describe(outcome)))
        if outcome.is_transient:
            what = f"the teacher `{self.task.teacher.name}` did not answer"
            return engine.Postponed(
                TeacherError(what, code="teacher-server", why=outcome.error or "", fix="check the server")
            )
        return self._label(utterance, outcome)

    def _label(self, utterance: Utterance, transcription: Transcription) -> Label:
        return Label(
            utterance_id=utterance.id,
            recipe=self.task.recipe,
            teacher=self.task.name,
            text=transcription.text,
            language=transcription.language,
            mean_logprob=transcription.mean_logprob,
            num_tokens=transcription.num_tokens,
            finish="failed" if transcription.error else transcription.finish,
            words=transcription.words,
            error=transcription.error,
            audio=self._shown(utterance),
        )

    def _shown(self, utterance: Utterance) -> str:
        """Hash of what the teacher was shown of an utterance."""
        shown = utterance.audio
        if self.task.reads_texts:
            shown = text_hash(shown, utterance.text, utterance.words)
        return language_hash(shown, utterance.info.language) if self.task.reads_languages else shown


def set_aside_label(task: Task, utterance: Utterance, reason: str) -> Label:
    """The label of an utterance on which the engine's workers failed, for the reason that the engine gives."""
    return Label(
        utterance_id=utterance.id,
        recipe=task.recipe,
        teacher=task.name,
        finish="failed",
        error=engine.set_aside_error(reason),
        audio=utterance.audio,
    )
