"""The finished labels of a WORK as they are written for other tools: each with its utterance and recording."""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.monitor import Progress
from voxstill.core.records import Label, Recording, Utterance, Verdict
from voxstill.filtering.measures import Score
from voxstill.filtering.verdicts import VerdictMap
from voxstill.labelling import label
from voxstill.pipeline.recipes import finished_utterances, finished_verdicts, label_parts
from voxstill.storage import join, removals, tables, workdir
from voxstill.storage.figures import ScoreFigures, VerdictFigures
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path, split_range
from voxstill.text.transcripts import TranscriptSegment

if TYPE_CHECKING:
    import pyarrow as pa

_ELSEWHERE = ("utterance_id", "split", "recipe")
"""Columns of scores and verdicts that a label has anyway, and the name of their table."""
_NAMES = {"words": "num_words"}
"""Scores that have another name in exports: `words` of a manifest are a list of words with their times."""
UNKNOWN_SPEAKER = "unknown"
"""The speaker of an utterance of which it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedLabel:
    """A label that did not fail. `more` are the columns of its scores and of its verdict, where they were asked for."""

    utterance: Utterance
    label: Label
    recording: Recording
    more: Mapping[str, object]

    @property
    def language(self) -> str | None:
        """The language that the manifest states, else the one that the teacher recognised."""
        return self.utterance.info.language or self.label.language

    @property
    def is_whole(self) -> bool:
        """Whether the utterance is all of its recording."""
        return self.utterance.start_ms == 0 and self.utterance.end_ms >= (self.recording.duration_ms or 0)

    @property
    def path(self) -> str:
        """The address of its file, a local one as a path."""
        uri = self.utterance.uri
        return str(local_path(uri)) if is_local(uri) else uri


@dataclass(frozen=True, slots=True)
class ExportedLabels:
    """The labels, read while they are written, and the columns that all of them have in `more`."""

    rows: Iterator[ExportedLabel]
    more: Sequence[pa.Field]


class LabelReader:
    """Reads the labels of the configuration, or the only finished ones, and counts those given and those left out.

    `num_failed` are labels that failed or were removed, `num_unlabelled` utterances that have none. `scores` and
    `verdicts` add their columns; with `kept` only what the filter kept is given. DataError if the verdicts are not
    those of the labels.
    """

    def __init__(self, cfg: Config, *, scores: bool, verdicts: bool, kept: bool) -> None:
        self._work, self._engine = Store(cfg.work), cfg.engine
        self._kept, self._with_verdicts = kept, verdicts
        self._source = finished_utterances(cfg)
        self._labels = label.finished(self._work, cfg.teacher)
        self._removed = removals.of(self._work, workdir.prefix("utterances", self._source.recipe))
        self._parts = label_parts(cfg, self._work, self._source.recipe, self._labels.recipe)
        self._score_parts: Mapping[str, tuple[str, ...]] = {}
        self._judged: VerdictMap | None = None
        if scores or verdicts or kept:
            judged = self._verdicts(cfg)
            self._judged = VerdictMap(self._work, judged.recipe)
            self._score_parts = self._parts_of_scores(judged) if scores else {}
        self._read_scores = functools.lru_cache(maxsize=4)(self._scores)  # parts of labels share those of scores
        columns = [field.with_name(_NAMES.get(field.name, field.name)) for field in tables.schema(Score) if scores]
        columns += [*tables.schema(Verdict)] if verdicts else []
        self.columns: Sequence[pa.Field] = [field for field in columns if field.name not in _ELSEWHERE]
        self.num_given = self.num_failed = self.num_unlabelled = 0
        self.splits: Counter[str] = Counter()
        """Of the labels given."""

    def _verdicts(self, cfg: Config) -> VerdictFigures:
        judged = finished_verdicts(cfg)
        if (judged.labels, judged.utterances) != (self._labels.recipe, self._source.recipe):
            raise DataError(
                f"the labels {self._labels.recipe} in `{self._work.root}` have no verdicts",
                code="step-unfinished",
                why=f"the only finished verdicts are of the labels {judged.labels}",
                fix=f"run: voxstill filter {self._work.root}",
            )
        return judged

    def _parts_of_scores(self, judged: VerdictFigures) -> dict[str, tuple[str, ...]]:
        """The parts of scores by the part of utterances that they are of."""
        scores = workdir.named(self._work, ScoreFigures, judged.scores).recipe
        prefixes = (workdir.prefix("utterances", self._source.recipe), workdir.prefix("scores", scores))
        return {part.utterances: part.labels for part in join.parts(self._work, *prefixes, self._engine)}

    def rows(self) -> Iterator[ExportedLabel]:
        """Every label that did not fail, in the order of the utterances; a few parts are held at a time."""
        recordings = workdir.prefix("recordings", self._source.recipe)
        keys = (f"{recordings}/{part.name}.parquet" for part in self._parts)
        columns = join.columns(self._work, self._parts)
        recording_tables = tables.columns(self._work, keys, Recording)
        with Progress("export-labels", self._labels.labels, "labels") as bar:
            for part, pair, recording_table in zip(self._parts, columns, recording_tables, strict=True):
                yield from self._of_part(part, *pair, recording_table)
                bar.advance(len(pair[1]))

    def _of_part(
        self, part: join.Part, utterances: pa.Table, labels: pa.Table, recording_table: pa.Table
    ) -> Iterator[ExportedLabel]:
        recordings = {row["id"]: tables.from_columns(row, Recording) for row in recording_table.to_pylist()}
        ids, label_rows = utterances["id"].to_pylist(), labels.to_pylist()
        places = join.rows_of(ids, labels["utterance_id"].to_pylist())
        verdicts = self._judged.of(ids) if self._judged else [(None, None)] * len(ids)
        scores = {id_: row for key in self._score_parts.get(part.utterances, ()) for id_, row in self._read_scores(key)}
        for columns, place, (is_kept, reason) in zip(utterances.to_pylist(), places, verdicts, strict=True):
            if self._kept and not is_kept:
                continue
            if place is None:
                self.num_unlabelled += 1
                continue
            row = tables.from_columns(label_rows[place], Label)
            if row.error is not None or row.utterance_id in self._removed:
                self.num_failed += 1
                continue
            utterance = tables.from_columns(columns, Utterance)
            more = scores.get(utterance.id, {})
            self.num_given += 1
            self.splits[utterance.split] += 1
            yield ExportedLabel(
                utterance=utterance,
                label=row,
                recording=recordings[utterance.recording_id],
                more={**more, "kept": is_kept, "reason": reason} if self._with_verdicts else more,
            )

    def _scores(self, key: str) -> list[tuple[str, dict[str, object]]]:
        """The scores in a part, by the id of their utterance."""
        rows = tables.to_arrow(self._work.read(key), Score, self._work.uri(key)).to_pylist()
        return [
            (row["utterance_id"], {_NAMES.get(n, n): v for n, v in row.items() if n not in _ELSEWHERE}) for row in rows
        ]


def one_line(text: str) -> str:
    """The text with one space for each run of white space and control characters."""
    return " ".join("".join(" " if unicodedata.category(char) == "Cc" else char for char in text).split())


def transcript_segments(labels: Iterable[ExportedLabel]) -> Iterator[TranscriptSegment]:
    """Who said what: a segment for each label, of a session for each recording.

    A recording is named after its file; of those with the same name all but the first have their id in it, too. Who
    is not known is the speaker `unknown`. Of speakers with the same name, as white space is `_`, all but the first have
    a number in it.
    """
    recording_of: dict[str, str] = {}
    speaker_of: dict[str, str] = {}
    for row in labels:
        utterance = row.utterance
        stem = _one_word(PurePosixPath(split_range(row.path)[0]).stem) or utterance.recording_id
        if recording_of.setdefault(stem, utterance.recording_id) != utterance.recording_id:
            stem = f"{stem}-{utterance.recording_id}"
        speaker = utterance.info.speaker or ""
        name = _one_word(speaker)
        yield TranscriptSegment(
            id=utterance.id,
            text=row.label.text,
            speaker=_own_name(name, speaker, speaker_of) if name else UNKNOWN_SPEAKER,
            session=stem,
            channel=str(1 if utterance.channel is None else utterance.channel + 1),
            start_ms=utterance.start_ms,
            end_ms=utterance.end_ms,
        )


def _own_name(name: str, speaker: str, speaker_of: dict[str, str]) -> str:
    """The name of a speaker, with a number where another has it; it is noted in `speaker_of`."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(own for own in names if speaker_of.setdefault(own, speaker) == speaker)


def _one_word(name: str) -> str:
    """A name without the white space that ends a column."""
    return "_".join(one_line(name).split())
