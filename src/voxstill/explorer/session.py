"""What one explorer shows and changes: the corpus, its audio, its judgements, and what was removed meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from voxstill.core.errors import DataError, StorageError
from voxstill.core.monitor import log
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
_REFRESHED_EVERY_S = 1.0
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
        self._removed_state: str | None = None
        self._judged_keys: set[str] = set()
        self._times: dict[str, str] = {}
        """When the judgement that is shown was made, by the id of the utterance."""
        self._refreshed_s = 0.0
        self._refresh()

    def close(self) -> None:
        """End the decoder and the database."""
        self.sounds.close()
        self.corpus.close()

    def refresh(self) -> None:
        """Hide what `voxstill remove` was given meanwhile, and show what others have judged; looks once a second."""
        with self._lock:
            if time.monotonic() - self._refreshed_s >= _REFRESHED_EVERY_S:
                self._refresh()

    def row(self, number: int) -> Row:
        """All that is known of a row; RequestError where it is not there, or was removed."""
        row = self.corpus.rows([number]).get(number) if number < MAX_ROW else None
        if row is None:
            raise RequestError(404, "the utterance does not exist")
        return row

    def texts(self, row: Row) -> list[dict[str, object]]:
        """What everybody wrote of an utterance, each aligned with the first: a correction, the human, the teacher.

        Texts that are too long for that have no `pairs`.
        """
        written = [("corrected", row.get("correction")), ("human", row.get("human"))]
        columns = [*self._label_columns(), *self._student_columns()]
        written += [(column.title, row.get(column.name)) for column in columns]
        known = [(role, text) for role, text in written if text is not None]
        if not known:
            return []
        reference = self._normalize(known[0][1])
        shown: list[dict[str, object]] = []
        for place, (role, text) in enumerate(known):
            hypothesis = self._normalize(text)
            is_reference, is_aligned = place == 0, words.table_fits(reference, hypothesis)
            counts, pairs = (None, []) if is_reference or not is_aligned else words.align(reference, hypothesis)
            shown.append(
                {
                    "role": role,
                    "text": text,
                    "pairs": pairs if is_reference or is_aligned else None,
                    "errors": None if counts is None else counts.errors,
                    "words": len(reference),
                }
            )
        return shown

    def judge(self, number: int, judgement: str, text: str | None) -> Row:
        """Write a judgement of the label of a row, and return the row as it is then."""
        row = self.row(number)
        label = row.get(self.facts.main) if self.facts.main is not None else None
        if judgement not in get_args(Judgement):
            raise RequestError(400, f"a judgement must be one of {', '.join(get_args(Judgement))}")
        if (judgement == "corrected") != (text is not None) or len(text or "") > MAX_CORRECTION:
            raise RequestError(
                400,
                f"`corrected` needs a text of at most {MAX_CORRECTION:,} characters, and no other judgement has one",
            )
        if judgement in ("right", "wrong") and label is None:
            raise RequestError(400, "there is no label to judge")
        with self._lock:
            correction = Correction(
                utterance_id=row["id"],
                audio=_audio(row),
                judgement=cast(Judgement, judgement),
                label=label or "",
                text=None if text is None else " ".join(text.split()),
                time=corrections.time_after(self._times.get(row["id"])),
                judge=self.facts.judge,
            )
            key = corrections.append(self._work, [correction])
            if row["id"] in removals.of(self._work, self.facts.utterances):  # its removal may have erased before
                corrections.erase(self._work, [row["id"]])
                raise RequestError(404, "the utterance was removed meanwhile")
            self._judged_keys.add(key)
            self._times[correction.utterance_id] = correction.time
            self._show(number, correction, row)
        return self.row(number)

    def _refresh(self) -> None:
        self._refreshed_s = time.monotonic()
        state = tables.parts_hash(self._work, removals.PREFIX)
        if state != self._removed_state:
            self.corpus.remove(list(removals.of(self._work, self.facts.utterances)))
            self._removed_state = state
        keys = set(tables.parts(self._work, corrections.PREFIX))
        if new := sorted(keys - self._judged_keys):
            rows: list[Correction] = []
            for key in new:
                try:
                    rows += corrections.read(self._work, key)
                except StorageError:  # another process joins parts: the next look finds them as one
                    keys.discard(key)
                except DataError as error:
                    log.warning("explore: %s (%s): its judgements are not shown: %s", error.what, error.why, error.fix)
            self._show_judgements(corrections.last_of_each(rows))
        self._judged_keys = keys

    def _label_columns(self) -> list[Column]:
        names = [teacher.name for teacher in self.corpus.about.teachers]
        return [self.corpus.columns[name] for name in names if name in self.corpus.columns]

    def _student_columns(self) -> list[Column]:
        students = [one.texts for one in self.facts.experiments if one.texts is not None]
        return [self.corpus.columns[student.prefix] for student in students]

    def _show_judgements(self, judged: Mapping[str, Correction]) -> None:
        """Show judgements, by the id of the utterance, that are later than those that are shown."""
        later = {id_: row for id_, row in judged.items() if row.time > self._times.get(id_, "")}
        main = [] if self.facts.main is None else [self.facts.main]
        columns = [self.corpus.columns[name] for name in ("id", *_STRETCH, *main)]
        numbers = list(self.corpus.numbers_of(list(later)).values())
        for start in range(0, len(numbers), _ROWS_AT_ONCE):
            for number, row in self.corpus.rows(numbers[start : start + _ROWS_AT_ONCE], columns).items():
                if later[row["id"]].audio == _audio(row):
                    self._show(number, later[row["id"]], row)
        self._times |= {id_: row.time for id_, row in later.items()}

    def _show(self, number: int, correction: Correction, row: Row) -> None:
        """Show a judgement as one of the label that is shown; another label that was right is a correction of it."""
        label = "" if self.facts.main is None else row.get(self.facts.main) or ""
        judgement, text = correction.judgement, correction.text
        if judgement in ("right", "wrong") and correction.label != label:
            judgement, text = ("corrected", correction.label) if judgement == "right" else ("withdrawn", None)
        self.corpus.judge(number, None if judgement == "withdrawn" else judgement, text)


def _audio(row: Row) -> str:
    """The hash of the audio of a row."""
    return audio_hash(*(row[name] for name in _STRETCH))
