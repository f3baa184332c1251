"""What one explorer shows and changes: the corpus, its audio, its judgements, and what was removed meanwhile."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from voxstill.core.records import audio_hash
from voxstill.explorer.audio import Sounds
from voxstill.explorer.columns import Column, Row
from voxstill.explorer.corpus import Corpus
from voxstill.explorer.errors import RequestError
from voxstill.explorer.experiments import ExperimentFacts
from voxstill.explorer.filters import MAX_ROW
from voxstill.scoring import words
from voxstill.storage import corrections, removals, tables
from voxstill.storage.corrections import Correction, Judgement
from voxstill.storage.store import Store

MAX_CORRECTION = 10_000
"""Characters of a corrected text."""
_REMOVED_EVERY_S = 1.0
_ROWS_AT_ONCE = 1_000
_STRETCH = ("recording_id", "channel", "start_ms", "end_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A rule of the filter and why it drops a label, for people."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is shown of a corpus beside its rows."""

    title: str
    utterances: str
    """The prefix of the table of utterances."""
    main: str | None
    """The column of the labels that are judged."""
    rules: Sequence[RuleFacts] = ()
    experiments: Sequence[ExperimentFacts] = ()
    judge: str = ""
    is_editable: bool = False


class Session:
    """One explorer; its methods may be called by several threads."""

    def __init__(
        self, work: Store, corpus: Corpus, sounds: Sounds, facts: Facts, normalize: Callable[[str], list[str]]
    ) -> None:
        self.corpus, self.sounds, self.facts = corpus, sounds, facts
        self._work, self._normalize = work, normalize
        self._lock = threading.Lock()
        self._removed_state, self._looked_at_s = "", 0.0
        self._show_judgements()
        self.leave_out_removed()

    def close(self) -> None:
        """End the decoder and the database."""
        self.sounds.close()
        self.corpus.close()

    def leave_out_removed(self) -> None:
        """Hide what `voxstill remove` was given since the joined file was built; looks once a second."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_at_s < _REMOVED_EVERY_S and self._removed_state:
                return
            self._looked_at_s = now_s
            state = tables.parts_hash(self._work, removals.PREFIX)
            if state != self._removed_state:
                self.corpus.remove(list(removals.of(self._work, self.facts.utterances)))
                self._removed_state = state

    def row(self, number: int) -> Row:
        """All that is known of a row; RequestError where it is not there, or was removed."""
        row = self.corpus.rows([number]).get(number) if number < MAX_ROW else None
        if row is None:
            raise RequestError(404, "there is no such utterance")
        return row

    def texts(self, row: Row) -> list[dict[str, object]]:
        """What everybody wrote of an utterance, each aligned with the first: a correction, the human, the teacher."""
        written = [("corrected", row.get("correction")), ("human", row.get("human"))]
        columns = [*self._label_columns(), *self._student_columns()]
        written += [(column.title, row.get(column.name)) for column in columns]
        known = [(role, text) for role, text in written if text is not None]
        if not known:
            return []
        reference = self._normalize(known[0][1])
        shown: list[dict[str, object]] = []
        for place, (role, text) in enumerate(known):
            counts, pairs = words.align(reference, self._normalize(text))
            is_reference = place == 0
            shown.append(
                {
                    "role": role,
                    "text": text,
                    "pairs": [] if is_reference else pairs,
                    "errors": None if is_reference else counts.errors,
                    "words": counts.reference,
                }
            )
        return shown

    def judge(self, number: int, judgement: str, text: str | None) -> Row:
        """Write a judgement of the label of a row, and return the row as it is then."""
        row = self.row(number)
        label = row.get(self.facts.main) if self.facts.main is not None else None
        if judgement not in get_args(Judgement):
            raise RequestError(400, f"a judgement is one of {', '.join(get_args(Judgement))}")
        if (judgement == "corrected") != (text is not None) or len(text or "") > MAX_CORRECTION:
            raise RequestError(
                400, f"`corrected` has a text of at most {MAX_CORRECTION:,} characters, and no other has"
            )
        if judgement in ("right", "wrong") and label is None:
            raise RequestError(400, "there is no label to judge")
        correction = Correction(
            utterance_id=row["id"],
            audio=_audio(row),
            judgement=cast(Judgement, judgement),
            label=label or "",
            text=None if text is None else " ".join(text.split()),
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
            judge=self.facts.judge,
        )
        with self._lock:
            corrections.append(self._work, [correction])
            if row["id"] in removals.of(self._work, self.facts.utterances):  # its removal may have erased before
                corrections.erase(self._work, [row["id"]])
                raise RequestError(404, "the utterance was removed meanwhile")
            self.corpus.judge(number, None if judgement == "withdrawn" else judgement, correction.text)
        return self.row(number)

    def _label_columns(self) -> list[Column]:
        names = [teacher.name for teacher in self.corpus.about.teachers]
        return [self.corpus.columns[name] for name in names if name in self.corpus.columns]

    def _student_columns(self) -> list[Column]:
        students = [one.texts for one in self.facts.experiments if one.texts is not None]
        return [self.corpus.columns[student.prefix] for student in students]

    def _show_judgements(self) -> None:
        known = corrections.latest(self._work)
        columns = [self.corpus.columns[name] for name in ("id", *_STRETCH)]
        numbers = list(self.corpus.numbers_of(list(known)).values())
        for start in range(0, len(numbers), _ROWS_AT_ONCE):
            for number, row in self.corpus.rows(numbers[start : start + _ROWS_AT_ONCE], columns).items():
                correction = known[row["id"]]
                if correction.audio == _audio(row):
                    self.corpus.judge(number, correction.judgement, correction.text)


def _audio(row: Row) -> str:
    """The hash of the audio of a row."""
    return audio_hash(*(row[name] for name in _STRETCH))
