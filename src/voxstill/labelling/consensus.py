"""Label by consensus (ROVER): each utterance gets the words that the labels of several teachers agree on.

The unit of work is a part of the table of utterances with the labels of each teacher for it. Nothing is decoded.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.errors import DataError, StorageError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.records import Label, Utterance
from voxstill.engine import StageWork
from voxstill.labelling import label, label_figures
from voxstill.labelling.removed import removed_label
from voxstill.labelling.task import Task
from voxstill.scoring.rover import RecognizerOutput, rover
from voxstill.storage import join, lease, removals, same_audio, tables, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")
_UTTERANCE_COLUMNS = ("id", "recording_id", "uri", "channel", "start_ms", "end_ms", "supervised")


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of utterances and, for each teacher, the parts in which its labels for them are."""

    utterances: str
    labels: tuple[tuple[str, ...], ...]


def agree(work: Store, utterances: str, task: Task, of: Sequence[str], cfg: Engine, meter: StepMeter) -> LabelFigures:
    """Write one consensus label for every utterance; return the figures of all. What is finished is not done again.

    DataError if one of the recipes has no finished labels, or labels of other audio.
    """
    source = tables.parts_hash(work, utterances)
    done = workdir.success(work, LabelFigures, task.recipe)
    if done is not None and label.is_whole(work, utterances, source, task, done):
        return done
    with lease.hold(work, task.prefix, "label") as held:
        same_audio.begin(work, utterances, task.prefix)
        return _agree(work, utterances, task, of, cfg, meter, held)


def _agree(
    work: Store,
    utterances: str,
    task: Task,
    of: Sequence[str],
    cfg: Engine,
    meter: StepMeter,
    held: lease.Lease,
) -> LabelFigures:
    source = tables.parts_hash(work, utterances)
    start = time.perf_counter()
    for recipe in of:
        workdir.named(work, LabelFigures, recipe)

    def commit(_: engine.Chunk, rows: Sequence[int | DataError]) -> None:
        held.check()
        for row in rows:
            if isinstance(row, DataError):
                raise row
            meter.count_done(row, ())

    removed = frozenset(removals.of(work, utterances))
    stages = (
        engine.Stage(name="agree", work=Agree(work, task, removed), workers=cfg.workers, resources=cfg.resources),
    )
    engine.run(_plan(work, utterances, of, cfg), stages, commit, _set_aside, cfg, meter)
    figures = dataclasses.replace(
        label_figures.count(work, task),
        rtfx=meter.audio_ms / 1000 / (time.perf_counter() - start),
        source=source,
        listing=tables.parts_hash(work, task.prefix),
    )
    workdir.finish(work, figures)
    return figures


def _plan(work: Store, utterances: str, of: Sequence[str], cfg: Engine) -> Iterator[engine.Chunk]:
    by_recipe = [join.parts(work, utterances, workdir.prefix("labels", recipe), cfg) for recipe in of]
    for parts in zip(*by_recipe, strict=True):
        unit = Unit(parts[0].utterances, tuple(part.labels for part in parts))
        yield engine.Chunk(parts[0].name, (unit,))


@dataclass(frozen=True)
class Agree(StageWork):
    """The work of a voting process: units in, milliseconds of audio that now have labels out."""

    work: Store
    task: Task
    removed: frozenset[str] = frozenset()

    def __call__(self, units: Sequence[Unit], payload: object) -> list[int | DataError]:
        """Write the labels of each unit; a DataError in its place says what is wrong with the tables."""
        rows: list[int | DataError] = []
        for unit in units:
            try:
                rows.append(self._vote(unit))
            except DataError as error:
                rows.append(error)
        return rows

    def _vote(self, unit: Unit) -> int:
        utterances = self._read(unit.utterances, Utterance, _UTTERANCE_COLUMNS)
        by_teacher: list[dict[str, Label]] = []
        for keys in unit.labels:
            first_labels: dict[str, Label] = {}
            for key in keys:
                for row in self._read(key, Label):
                    first_labels.setdefault(row.utterance_id, row)
            by_teacher.append(first_labels)
        rows = [
            self._label(utterance, [labels[utterance.id] for labels in by_teacher if utterance.id in labels])
            for utterance in utterances
        ]
        name = engine.chunk_id(row.utterance_id for row in rows)
        self.work.create(f"{self.task.prefix}/{name}.parquet", tables.to_parquet(rows, Label))
        return sum(utterance.duration_ms for utterance in utterances)

    def _label(self, utterance: Utterance, labels: Sequence[Label]) -> Label:
        """The label that the teachers agree on; that of an utterance on which all failed has the first error.

        A supervised utterance has the same label in each table, its text: that one.
        """
        if utterance.id in self.removed:
            return removed_label(self.task, utterance)
        if utterance.supervised and labels:
            return labels[0]
        columns: dict[str, Any] = {
            "utterance_id": utterance.id,
            "recipe": self.task.recipe,
            "teacher": self.task.name,
            "audio": utterance.audio,
        }
        usable = [row for row in labels if row.error is None]
        if not usable:
            error = labels[0].error if labels else "no teacher has a label for it"
            return Label(**columns, finish="failed", error=error)
        consensus = rover([RecognizerOutput(row.text, _confidence(row.mean_logprob)) for row in usable])
        languages = {row.language for row in usable if row.language is not None}
        return Label(
            **columns,
            text=consensus.text,
            language=languages.pop() if len(languages) == 1 else None,
            mean_logprob=math.log(consensus.agreement),
            finish="stop" if any(row.finish == "stop" for row in usable) else usable[0].finish,
        )

    def _read(self, key: str, kind: type[Row], names: Sequence[str] | None = None) -> list[Row]:
        return tables.from_parquet(self.work.read(key), kind, self.work.uri(key), names)


def _confidence(logprob: float | None) -> float | None:
    return None if logprob is None or math.isnan(logprob) else math.exp(min(logprob, 0.0))


def _set_aside(unit: Unit, reason: str) -> int:
    """Stop the step with an error: a part without a vote would have no labels."""
    raise StorageError(
        f"the labels of `{unit.utterances}` cannot be combined by voting",
        code="part-failed",
        why=reason,
        fix="check the storage and run `voxstill label` again; it resumes where it stopped",
    )
