"""The protocol of a teacher: a recogniser that transcribes batches of clips for labelling.

A teacher is one file: a class with these four methods, in this folder or named in another package's entry point
`voxstill.teachers`. In this folder the file is the name, and `needs: ClassVar[tuple[str, str]]` is the package that a
teacher runs on and the extra of voxstill that installs it. Its `Options` are the rest of the `teacher` section. A class
may also set how many calls of `transcribe_batch` run at once, in threads: `calls_at_once: ClassVar[int] = 2` keeps an
engine with continuous batching full, since one chunk begins while another ends. The default is one. A teacher with a
grammar can have a method `without_grammar`: it returns the same teacher for free speech, which `voxstill run` judges
too, or None where there is none. One whose engine reports figures of itself can have a method `figures`, asked for
after each batch: it returns a `core.metrics.figures.ModelFigures`, or None. One whose `revision` may change while
labelling begins says `revision_may_change: ClassVar[bool] = True`: each worker compares it with that of the recipe.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Section
from voxstill.core.monitor import log
from voxstill.core.records import Finish, Hypothesis, Utterance, Word
from voxstill.text import languages

MANIFEST = "manifest"
"""The language of each utterance is that of its manifest, detected where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Input of a teacher: 16 kHz mono int16 samples. `utterance.text` is None unless the teacher `reads_texts`."""

    utterance: Utterance
    samples_T: NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcription:
    """Transcription of one clip. What a teacher does not provide is None or empty, never 0.

    >>> voxstill.Transcription(text="lights on", mean_logprob=-0.1, num_tokens=2).finish
    'stop'
    """

    text: str = ""
    language: str | None = None
    mean_logprob: float | None = None
    num_tokens: int = 0
    finish: Finish = "stop"
    words: tuple[Word, ...] = ()
    error: str | None = None
    is_transient: bool = False
    """The error may pass, as that of a server that is down: the clip gets no label, and the next run tries again."""


def transcription(hypothesis: Hypothesis) -> Transcription:
    """What a recogniser returned for a clip, as the answer of a teacher."""
    return Transcription(
        text=hypothesis.text,
        language=hypothesis.language,
        mean_logprob=hypothesis.score,
        num_tokens=len(hypothesis.token_ids),
        finish=hypothesis.finish,
        words=hypothesis.words,
        error=hypothesis.error,
    )


def language_of(clip: Clip, language: str | None, known: Collection[str], model: str) -> str | None:
    """The language to transcribe a clip in, one of the `known` codes; None where it is to be detected.

    It is the option `language`, or where that is `MANIFEST` the language of the utterance. One that the model does not
    know is detected, with a warning.
    """
    name = clip.utterance.info.language
    if language != MANIFEST:
        return language
    if not name or not known:
        return None
    code = languages.code_of(name, known)
    if code is None:
        _warn_unknown(name, model)
    return code


def by_language(
    clips: Sequence[Clip], positions: Sequence[int], language: str | None, known: Collection[str], model: str
) -> dict[str | None, list[int]]:
    """The positions of clips by `language_of` each, for a model that takes one language for a whole batch."""
    members: dict[str | None, list[int]] = {}
    for i in positions:
        members.setdefault(language_of(clips[i], language, known, model), []).append(i)
    return members


@functools.cache
def _warn_unknown(name: str, model: str) -> None:
    log.warning(
        "teacher: `%s` does not support `%s`, a language of the manifest: the language is detected there", model, name
    )


class Teacher(Protocol):
    """Constructed in the driver from its options, without loading anything; opened in the worker that runs it.

    >>> from voxstill.teachers import registry
    >>> teacher: voxstill.Teacher = registry.create(cfg.teacher)
    >>> teacher.reads_texts
    True
    """

    Options: ClassVar[type[Section]]
    reads_texts: ClassVar[bool]

    def __init__(self, options: Section) -> None: ...

    def revision(self) -> str:
        """Identity of the model for the recipe of labels: versions and content hashes of what it loads."""
        ...

    def load(self) -> None:
        """Load the model; TeacherError where that cannot be done."""
        ...

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Transcribe one batch; one result per clip, in order. A failure of one clip is its `error`, not an exception.

        TeacherError means that no clip can be transcribed any more, and ends the run; after any other exception the
        clips are tried again, then in halves.
        """
        ...

    def close(self) -> None:
        """Release the model."""
        ...
