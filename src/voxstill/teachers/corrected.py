"""The teacher `corrected`: judgements or corrected in `voxstill explore --edit`; no audio is transcribed.

What was judged right or corrected is a label; what was judged wrong is none. The rest has the labels of another
teacher, where `of` names them, else none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from voxstill.core.config import Section, option
from voxstill.core.errors import TeacherError
from voxstill.core.records import Label, fingerprint
from voxstill.storage import corrections, manifest, tables, workdir
from voxstill.storage.corrections import Correction
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store
from voxstill.teachers.teacher import Clip, Transcription

ALGORITHM = "2"
UNJUDGED, WRONG = corrections.NOT_LABELLED


class CorrectedOptions(Section):
    """Options of the teacher `corrected`."""

    work: str = option()
    """The work folder with the judgements: as a rule the one that is labelled."""
    of: str | None = option(None)
    """Recipe of finished labels in that folder for the utterances that were not judged; unset gives these none."""


class CorrectedTeacher:
    """Returns judgements; its labels have no confidence, so no threshold drops them for a low one."""

    Options: ClassVar[type[Section]] = CorrectedOptions
    reads_texts: ClassVar[bool] = False
    revision_may_change: ClassVar[bool] = True
    """People judge while labelling begins."""

    def __init__(self, options: CorrectedOptions) -> None:
        self._of = options.of
        self._root = options.work
        self._parts: dict[str, Mapping[str, Label]] = {}

    def revision(self) -> str:
        """Hash of all judgements that count, and of the labels beside them: with another judgement it is another."""
        judged = [tables.to_columns(row) for _, row in sorted(self._corrections.items())]
        labels = None if self._of is None else workdir.named(self._store, LabelFigures, self._of).sha256
        return fingerprint(ALGORITHM, judged, labels)

    def load(self) -> None:
        """Index the labels of the other teacher; TeacherError where there is none and no judgements either."""
        if not self._corrections and self._of is None:
            raise TeacherError(
                f"`{self._store.root}` has no judgements",
                code="step-unfinished",
                why="no label there was judged, or all judgements were withdrawn",
                fix=f"judge some labels: voxstill explore {self._store.root} --edit",
            )
        keys = [] if self._of is None else manifest.parts(self._store, workdir.prefix("labels", self._of))
        ids = tables.columns(self._store, keys, Label, ("utterance_id",))
        self._keys, self._places = keys, tables.IdMap(part["utterance_id"].to_pylist() for part in ids)

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Return what is known of each clip; one of which nothing is known is a result with an error."""
        places = self._places.of([clip.utterance.id for clip in clips]).tolist()
        return [self._transcription(clip, place) for clip, place in zip(clips, places, strict=True)]

    def close(self) -> None:
        """Forget the labels."""
        self._parts.clear()

    @cached_property
    def _store(self) -> Store:
        return Store(self._root)

    @cached_property
    def _corrections(self) -> Mapping[str, Correction]:
        return corrections.latest(self._store)

    def _transcription(self, clip: Clip, place: int) -> Transcription:
        label = None if place < 0 else self._labels(self._keys[place])[clip.utterance.id]
        correction = self._corrections.get(clip.utterance.id)
        if correction is None or correction.audio != clip.utterance.audio:
            return _of_label(label)
        if (text := correction.truth) is None:
            if label is not None and label.text != correction.label:
                return _of_label(label)  # another one was judged wrong
            return Transcription(finish="failed", error=WRONG)
        words = label.words if label is not None and label.text == text else ()
        language = clip.utterance.info.language if label is None else label.language
        return Transcription(text=text, language=language, num_tokens=len(text.split()), words=words)

    def _labels(self, key: str) -> Mapping[str, Label]:
        """The labels of a part, which is kept: those of a batch are mostly of one."""
        if key not in self._parts:
            rows = tables.from_parquet(self._store.read(key), Label, self._store.uri(key))
            self._parts = {key: {row.utterance_id: row for row in reversed(rows)}}
        return self._parts[key]


def _of_label(label: Label | None) -> Transcription:
    if label is None:
        return Transcription(finish="failed", error=UNJUDGED)
    return Transcription(
        text=label.text,
        language=label.language,
        mean_logprob=label.mean_logprob,
        num_tokens=label.num_tokens,
        finish=label.finish,
        words=label.words,
        error=label.error,
    )
