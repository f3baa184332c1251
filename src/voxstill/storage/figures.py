"""The figures of finished tables: what `_SUCCESS.json` holds, and what the step that made the table returns.

Every field has a default: a table that an older version finished may lack what was added since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from voxstill.core.errors import DataError, StorageError, TeacherError
from voxstill.core.result import NOT_IN_JSON, Result

UNREADABLE = "cannot be read"
"""The reason of a recording that storage did not return: the next index tries it again."""
Kind = Literal["recordings", "utterances", "labels", "alignments", "scores", "verdicts", "shards", "mixtures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures(Result):
    """Base of the figures of one finished table: the kind of table, the step that makes it, and its recipe."""

    kind: ClassVar[Kind]
    step: ClassVar[str]
    recipe: str = ""
    """Name of the table; empty for shards that were not made in a work folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFigures(TableFigures):
    """Of recordings and their utterances."""

    kind: ClassVar[Kind] = "utterances"
    step: ClassVar[str] = "index"
    recordings: int = 0
    damaged: int = 0
    duplicates: int = 0
    """Of the recordings those that hold the audio of others, under another address, and were not taken again."""
    utterances: int = 0
    removed: int | None = None
    """Utterances that are not in the table as they had been removed before; None if there are none."""
    hours: float = 0.0
    splits: Mapping[str, int] = field(default_factory=dict)
    """Utterances of each split."""
    supervised: int | None = None
    """Utterances whose label is the text of their manifest; None if no source is supervised."""
    supervised_hours: float | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why recordings cannot be used, and how many."""
    damaged_segments: int = 0
    """Segments and channels that cannot be used, of recordings that can."""
    segment_reasons: Mapping[str, int] = field(default_factory=dict)
    """Why segments cannot be used, and how many."""
    clipped: int = 0
    """Recordings of which more than 0.1 % of the samples are at or beyond full scale."""
    dc_offset: int = 0
    """Recordings whose mean is more than 1 % of full scale away from 0."""
    untimed: Mapping[str, int] | None = None
    """Why word times of utterances are not used, and how many; None if all are used, or there are none."""
    speaker_doubts: Mapping[str, int] | None = None
    """Why channels of recordings have no speakers from diarization, or doubtful ones, and how many; None if no
    recording has a doubt."""
    finished: bool | None = None
    """False if other parts (`--part`) are still missing."""
    max_failed_share: float = field(default=1.0, metadata=NOT_IN_JSON, compare=False)

    @property
    def teacher_hours(self) -> float:
        """Of the utterances that a teacher labels."""
        return self.hours - (self.supervised_hours or 0.0)

    @property
    def exit_code(self) -> int:
        """That of a StorageError if some did not answer, else of a DataError if too many cannot be used."""
        if UNREADABLE in self.reasons:
            return StorageError.exit_code
        return DataError.exit_code if self.damaged > self.max_failed_share * self.recordings else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFigures(TableFigures):
    """Of the labels of one teacher, finished or not."""

    kind: ClassVar[Kind] = "labels"
    step: ClassVar[str] = "label"
    teacher: str = ""
    """Its name and revision; of several that took turns all, joined by ` + `."""
    options: Mapping[str, Any] = field(default_factory=dict)
    teachers: Sequence[Mapping[str, Any]] | None = None
    """Recipe, name, options and number of labels of each teacher, where there were several."""
    chunks: int = 0
    labels: int = 0
    failed: int = 0
    quarantined: int = 0
    removed: int | None = None
    """Rows of utterances that were removed: they have no text, and are not failures."""
    unjudged: int | None = None
    """Rows of utterances of which the teacher `corrected` knows no text: they are not failures."""
    supervised: int | None = None
    """Labels that are the texts of supervised sources; None if there are none."""
    sha256: str = ""
    rtfx: float = 0.0
    """Seconds of audio labelled in a second by the last run."""
    finished: bool = True
    """Whether every utterance has a label."""
    source: str | None = None
    """Listing of the table of utterances."""
    listing: str | None = None
    """Listing of the labels."""
    hours: float | None = None
    """Of the utterances; not stored with the labels."""
    max_failed_share: float = field(default=1.0, metadata=NOT_IN_JSON, compare=False)

    @property
    def exit_code(self) -> int:
        """That of a TeacherError if more labels than allowed have failed."""
        return TeacherError.exit_code if self.failed > self.max_failed_share * self.labels else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentFigures(TableFigures):
    """Of the alignments of labels by a CTC model."""

    kind: ClassVar[Kind] = "alignments"
    step: ClassVar[str] = "filter"
    aligner: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    """Listing of the utterances and checksum of the labels."""
    alignments: int = 0
    failed: int = 0
    unwritten: int = 0
    """Labels that the model has no letters for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFigures(TableFigures):
    """Of the measures of labels: the recipes of the labels and of the utterances."""

    kind: ClassVar[Kind] = "scores"
    step: ClassVar[str] = "filter"
    labels: str = ""
    utterances: str = ""
    num_labels: int = 0
    """Labels that there were; those of a corpus that has grown since are more."""
    method: str | None = None
    """Hash of how they were measured; None in tables of earlier versions."""
    listing: str | None = None
    """State of the table of utterances when they were measured."""
    finished: bool | None = None
    """False if other parts (`--part`) are still missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFigures(TableFigures):
    """Of verdicts: the recipes of the tables below them, what was kept, and why the rest was dropped."""

    kind: ClassVar[Kind] = "verdicts"
    step: ClassVar[str] = "filter"
    labels: str = ""
    utterances: str = ""
    scores: str = ""
    teacher: str = ""
    labelled: int | None = None
    """Labels that there were where labelling had not ended; None if it had."""
    sha256: str | None = None
    """Checksum of these labels."""
    judged: int = 0
    kept_utterances: int = 0
    kept: float = 0.0
    """Share of the judged utterances."""
    kept_hours: float = 0.0
    reasons: Mapping[str, int] = field(default_factory=dict)
    removed: int | None = None
    """Utterances that are left out as they were removed; None if there were none."""
    removals: str | None = None
    """Identity of these utterances."""
    wer_before: float | None = None
    """Word error rate of all labels against human texts, where there are such."""
    wer_after: float | None = None
    """The same of the labels that were kept; None if none of them has a human text."""
    finished: bool | None = None
    """False if other parts (`--part`) are still missing."""
    report: str | None = None
    """The page that `--report` wrote; it is not a part of the table."""

    def to_dict(self) -> dict[str, object]:
        """The fields; `wer_after` stands beside `wer_before` even where it is None."""
        figures = Result.to_dict(self)
        return figures if self.wer_before is None else {**figures, "wer_after": self.wer_after}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFigures(TableFigures):
    """Of shards: how much there is in them, and what could not be written."""

    kind: ClassVar[Kind] = "shards"
    step: ClassVar[str] = "shard"
    verdicts: str | None = None
    """Recipe of the verdicts; None for shards without labels."""
    teacher: str | None = None
    unlabelled: bool | None = None
    """True for shards that have no labels."""
    shards: int = 0
    utterances: int = 0
    hours: float = 0.0
    num_bytes: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    lineage: str | None = None
    """Hash of all options; the same for shards of a corpus that has grown."""
    generation: int | None = None
    """None for the first of its lineage; a later one names tars of those before it."""
    left_out: Mapping[str, int] | None = None
    """What of the source was not repacked, by reason; not stored with the shards."""
    uncut: Mapping[str, int] | None = None
    """Samples that are longer than `shard.max_ms`, by what kept them from being cut; None if nothing is cut."""
    finished: bool | None = None
    """False if other parts (`--part`) are still missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureFigures(ShardFigures):
    """Of sidecars that name the tars of several corpora; `dropped` counts what was left out, by reason."""

    kind: ClassVar[Kind] = "mixtures"
    step: ClassVar[str] = "train"
    corpora: Sequence[Mapping[str, Any]] = ()
    """Work folder, recipe of the shards and data set of each."""
