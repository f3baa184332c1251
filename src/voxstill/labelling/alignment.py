"""Forced alignment of labels with a CTC model: how likely each label is for its audio, in a table beside the labels.

The unit of work is a chunk of utterances with the text of their labels in the place of the human text. A row is of one
utterance and one text; resuming is the plan minus the rows that are there. So labels that are added cost only
themselves, and one that was made again with other words is aligned again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from voxstill import engine
from voxstill.audio import read_utterances
from voxstill.core import config
from voxstill.core.config import Engine
from voxstill.core.errors import DataError, StorageError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.monitor import log
from voxstill.core.records import Alignment, Utterance, fingerprint
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.engine import StageWork
from voxstill.labelling.commit import commit_rows
from voxstill.labelling.removed import WAY_OUT
from voxstill.storage import join, lease, parts, removals, tables, workdir
from voxstill.storage.cut import cut
from voxstill.storage.figures import AlignmentFigures, LabelFigures
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
"""Rises when the same label is aligned in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledUtterance(Utterance):
    """An utterance with the text of its label in the place of the human one; `timed` where the label has words."""

    timed: bool


@dataclass(frozen=True, slots=True)
class Task:
    """An aligner (a CTC model) and the labels that it aligns; equal tasks have equal recipes."""

    options: RecognizerOptions
    revision: str
    labels: str

    @property
    def recipe(self) -> str:
        """Name of the alignments on disk."""
        return fingerprint("align", VERSION, self.revision, self.labels)

    @property
    def prefix(self) -> str:
        """The folder of the alignments."""
        return workdir.prefix("alignments", self.recipe)


def task(model: str, labels: str) -> Task:
    """The task of aligning the labels of a recipe with `model`; ConfigError if there is no such model."""
    options = config.validated(RecognizerOptions, {"model": model}, prefix="filter.aligner.")
    return Task(options, Recognizer(options).revision(), labels)


def align(
    work: Store,
    utterances: str,
    labels: LabelFigures,
    task: Task,
    cfg: Engine,
    reading: read_utterances.Reading,
    meter: StepMeter,
    *,
    part: parts.Part | None = None,
    chosen: Container[str] | None = None,
) -> None:
    """Align every label that has words, or with `part` those of the `chosen` parts of `utterances`.

    A label that the model cannot spell has a row without `logprob`. `labels` are the figures of the finished labels.
    Whoever finds all labels aligned finishes the table; DataError if the model can spell none of them.
    """
    source = {"utterances": tables.parts_hash(work, utterances), "labels": labels.sha256}
    done = workdir.success(work, AlignmentFigures, task.recipe)
    if done is not None and done.source == source:
        return
    with parts.hold(work, task.prefix, "filter", part, cfg) as held:
        _run(work, utterances, task, cfg, reading, meter, held, chosen)
        rest = plan(work, utterances, workdir.prefix("labels", task.labels), task.prefix, cfg)
        if part is not None and next(rest, None) is not None:
            return
        figures = _figures(work, task, source)
        if missing := figures.failed + figures.unwritten:
            log.warning(
                "align: %d of %d labels have no alignment: the audio of %d cannot be read, %d have words that the "
                "aligner has no tokens for",
                missing,
                figures.alignments,
                figures.failed,
                figures.unwritten,
            )
        workdir.finish(work, figures)


def _run(
    work: Store,
    utterances: str,
    task: Task,
    cfg: Engine,
    reading: read_utterances.Reading,
    meter: StepMeter,
    held: lease.Lease,
    chosen: Container[str] | None,
) -> None:
    """Run the engine over the labels that are not aligned yet, of the `chosen` parts of `utterances` or of all."""
    outage = engine.Outage("labels", WAY_OUT)

    def commit(chunk: engine.Chunk, rows: Sequence[Alignment | engine.Postponed]) -> None:
        held.check()
        commit_rows(work, task.prefix, chunk, rows, lambda row: _key(row.utterance_id, row.text), meter, outage)

    def fail(utterance: Utterance, reason: str) -> Alignment:
        return Alignment(utterance_id=utterance.id, text=utterance.text or "", error=engine.set_aside_error(reason))

    stages = (
        engine.Stage(name="decode", work=read_utterances.Decode(reading), workers=cfg.workers, resources=cfg.resources),
        engine.Stage(
            name="align",
            work=Align(task),
            workers=cfg.teachers,
            num_cpus=cfg.teacher_cpus,
            num_gpus=cfg.teacher_gpus,
            resources=cfg.teacher_resources,
        ),
    )
    labelled = workdir.prefix("labels", task.labels)
    chunks = plan(work, utterances, labelled, task.prefix, cfg, chosen)
    engine.run(chunks, stages, commit, fail, cfg, meter)
    outage.check()


def plan(
    work: Store, utterances: str, labels: str, alignments: str, cfg: Engine, chosen: Container[str] | None = None
) -> Iterator[engine.Chunk]:
    """Chunks of utterances whose label has words and no alignment yet, with that label as their text; they stream.

    With `chosen` only those of these parts of `utterances` come. Removed utterances are left out.
    """
    import pyarrow.compute as pc

    removed = removals.of(work, utterances)
    aligned_parts = tables.parts(work, alignments)
    rows = tables.columns(work, aligned_parts, Alignment, ("utterance_id", "text"))
    aligned: Container[str] = (
        tables.IdSet(_key(id_, text) for table in rows for id_, text in _pairs(table)) if aligned_parts else ()
    )
    joined = join.parts(work, utterances, labels, cfg)
    if chosen is not None:
        joined = [part for part in joined if part.utterances in chosen]
    names = ("utterance_id", "text", "error", "words")
    for utterance_table, label_table in join.columns(work, joined, None, names):
        ids, texts, errors = (label_table[name].to_pylist() for name in names[:3])
        num_words = pc.list_value_length(label_table["words"]).to_pylist()
        places = join.rows_of(utterance_table["id"].to_pylist(), ids)
        todo = []
        for utterance, place in zip(utterance_table.to_pylist(), places, strict=True):
            if place is None or errors[place] is not None or not texts[place].strip() or utterance["id"] in removed:
                continue
            if _key(utterance["id"], texts[place]) not in aligned:
                label = {"text": texts[place], "timed": num_words[place] > 0}
                todo.append(tables.from_columns({**utterance, **label}, LabelledUtterance))
        for members in cut([row.recording_id for row in todo], [row.duration_ms for row in todo], cfg):
            yield from engine.chunks_of(todo[members], cfg.chunk, lambda row: _key(row.id, row.text or ""))


def _key(id_: str, text: str) -> str:
    return fingerprint(id_, text)


def _pairs(table: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(table["utterance_id"].to_pylist(), table["text"].to_pylist(), strict=True)


def _figures(work: Store, task: Task, source: Mapping[str, str]) -> AlignmentFigures:
    """Count the rows, and those without an alignment by their cause; DataError if no row has one."""
    import pyarrow.compute as pc

    num = num_failed = num_missing = 0
    for table in tables.columns(work, tables.parts(work, task.prefix), Alignment, ("logprob", "error")):
        num += len(table)
        num_failed += pc.count(table["error"]).as_py()
        num_missing += table["logprob"].null_count
    if num and num_missing == num:
        raise DataError(
            f"`{task.options.model}` aligns none of the {num:,} labels",
            code="text-not-aligned",
            why="their audio cannot be read" if num_failed == num else "it has no tokens for their words",
            fix="set `filter.aligner` to a CTC model of their language, or unset it",
        )
    return AlignmentFigures(
        recipe=task.recipe,
        aligner=task.options.model,
        source=source,
        alignments=num,
        failed=num_failed,
        unwritten=num_missing - num_failed,
    )


@dataclass
class Align(StageWork):
    """The work of an aligner: decoded audio in, alignments out. The model is loaded once in each process."""

    task: Task
    _recognizer: Recognizer = field(init=False, repr=False, compare=False)

    def open(self) -> None:
        """Load the model; TeacherError if it cannot align."""
        self._recognizer = Recognizer(self.task.options, section="filter.aligner.")
        self._recognizer.load()
        self._recognizer.check_alignment()  # before any audio is read

    def __call__(
        self, utterances: Sequence[LabelledUtterance], payload: read_utterances.Decoded
    ) -> list[Alignment | engine.Postponed]:
        """Align a chunk; return one row for each utterance, in order: its alignment, or why it is left for later.

        Labels without word times get them.
        """
        readable = [i for i, error in enumerate(payload.errors) if error is None]
        samples = [payload.samples_of(i) for i in readable]
        texts = [utterances[i].text or "" for i in readable]
        untimed = [not utterances[i].timed for i in readable]
        aligned = dict(zip(readable, self._recognizer.align(samples, texts, untimed), strict=True))
        rows: list[Alignment | engine.Postponed] = []
        for i, (utterance, error) in enumerate(zip(utterances, payload.errors, strict=True)):
            if isinstance(error, StorageError):
                rows.append(engine.Postponed(error))
                continue
            row = Alignment(utterance_id=utterance.id, text=utterance.text or "")
            if error is None:
                words = None if utterance.timed else aligned[i].words
                rows.append(dataclasses.replace(row, logprob=aligned[i].logprob, words=words))
            else:
                rows.append(dataclasses.replace(row, error=engine.describe(error)))
        return rows

    def close(self) -> None:
        """Unload the model."""
        self._recognizer.close()
