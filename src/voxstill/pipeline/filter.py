"""filter: measure every label once, then keep it or drop it by the rules (hallucination, compression, ...)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from voxstill import engine
from voxstill.audio import read_utterances
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.monitor import StepMeter, log
from voxstill.core.records import Split
from voxstill.filtering import measures
from voxstill.filtering.rules import current_name
from voxstill.filtering.verdicts import write_verdicts
from voxstill.labelling import alignment, label, label_figures
from voxstill.pipeline.recipes import (
    alignment_task,
    label_parts,
    scores_recipe,
    second_labels,
    utterances_recipe,
    verdicts_recipe,
)
from voxstill.storage import join, lease, parts, removals, tables, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, ScoreFigures, VerdictFigures
from voxstill.storage.store import Store


def filter_labels(cfg: Config, *, part: str | None = None) -> VerdictFigures:
    """Every label has its scores, and those of the training and dev splits a verdict with its reason.

    With `part`, K/N or `auto`, only the labels of that part are measured; the part that finds all scores there judges.
    What was removed has neither scores nor verdict. ConfigError where `part` is none.
    """
    own = parts.requested(part)
    work = Store(cfg.work)
    source = workdir.finished(work, IndexFigures, utterances_recipe(cfg))
    labels = label.finished(work, cfg.teacher)
    recipe = verdicts_recipe(cfg, source, labels)
    done = workdir.success(work, VerdictFigures, recipe)
    if done is not None:
        log.info("filter: nothing to do, verdicts %s are there", recipe)
        return dataclasses.replace(done, reasons={current_name(name): num for name, num in done.reasons.items()})
    _refuse_added(work, labels)
    with parts.hold(work, workdir.prefix("verdicts", recipe), "filter", own, cfg.engine) as held:
        measured = _scores(cfg, source, labels, own)
        if measured.finished is False:
            return _unjudged(recipe, source, labels, measured)
        figures = _judge(cfg, recipe, source, labels, measured)
        held.check()
        if verdicts_recipe(cfg, source, labels) != recipe:
            raise DataError(
                "utterances were removed while the filter ran",
                why="`voxstill remove` was run meanwhile, and the verdicts may keep them",
                fix=f"run again: voxstill filter {work.root}",
            )
        workdir.finish(work, figures)
    return figures


def _unjudged(recipe: str, source: IndexFigures, labels: LabelFigures, measured: ScoreFigures) -> VerdictFigures:
    return VerdictFigures(
        recipe=recipe,
        labels=labels.recipe,
        utterances=source.recipe,
        scores=measured.recipe,
        teacher=labels.teacher,
        finished=False,
    )


def _judge(
    cfg: Config, recipe: str, source: IndexFigures, labels: LabelFigures, measured: ScoreFigures
) -> VerdictFigures:
    work = Store(cfg.work)
    scores, verdicts = workdir.prefix("scores", measured.recipe), workdir.prefix("verdicts", recipe)
    counts = write_verdicts(work, scores, verdicts, recipe, cfg.filter)
    removed = _removed(work, source)
    are_human = label_figures.are_human_texts(labels)  # labels have no errors against themselves
    return dataclasses.replace(
        _unjudged(recipe, source, labels, measured),
        finished=None,
        judged=counts.judged,
        kept_utterances=counts.kept,
        kept=counts.share,
        kept_hours=counts.kept_ms / 3_600_000,
        reasons=counts.reasons,
        removed=len(removed) or None,
        removals=removals.identity(removed),
        wer_before=None if are_human else counts.wer,
        wer_after=None if are_human else counts.kept_wer,
    )


def _removed(work: Store, source: IndexFigures) -> Mapping[str, Split]:
    return removals.of(work, workdir.prefix("utterances", source.recipe))


def measured_labels(cfg: Config) -> tuple[LabelFigures, ScoreFigures]:
    """The figures of the finished labels, and of their scores."""
    work = Store(cfg.work)
    source = workdir.finished(work, IndexFigures, utterances_recipe(cfg))
    labels = label.finished(work, cfg.teacher)
    _refuse_added(work, labels)
    return labels, _scores(cfg, source, labels)


def _scores(cfg: Config, source: IndexFigures, labels: LabelFigures, part: parts.Part | None = None) -> ScoreFigures:
    """Every label is measured, once for all thresholds; with `part` those of that part."""
    work, recipe = Store(cfg.work), scores_recipe(cfg, source, labels)
    done = workdir.success(work, ScoreFigures, recipe)
    if done is not None:
        return done
    with parts.hold(work, workdir.prefix("scores", recipe), "filter", part, cfg.engine) as held:
        return _measure(cfg, recipe, source, labels, held, part)


def _measure(
    cfg: Config,
    recipe: str,
    source: IndexFigures,
    labels: LabelFigures,
    held: lease.Lease,
    part: parts.Part | None,
) -> ScoreFigures:
    work, prefix = Store(cfg.work), workdir.prefix("scores", recipe)

    def left() -> list[measures.MeasureJob]:
        there = {key.rpartition("/")[2].removesuffix(".parquet") for key in tables.parts(work, prefix)}
        return measures.plan(measured_parts, there)

    measured_parts = _measured_parts(cfg, work, source, labels, part)
    jobs = [job for job in left() if part is None or part.takes(job.name)]

    def commit(_: engine.Chunk, rows: Sequence[int | DataError]) -> None:
        held.check()
        for row in rows:
            if isinstance(row, DataError):
                raise row
            meter.count_done(row, ())

    phrases = (*measures.PHRASES, *cfg.filter.phrases)
    removed = frozenset(_removed(work, source))
    writer = measures.ScoreWriter(work, prefix, phrases, cfg.evaluate.normalizer, removed)
    stages = (engine.Stage(name="filter", work=writer, workers=cfg.engine.workers, resources=cfg.engine.resources),)
    with StepMeter("filter", len(jobs), "parts") as meter:
        chunks = (engine.Chunk(job.name, (job,)) for job in jobs)
        engine.run(chunks, stages, commit, measures.set_aside, cfg.engine, meter.update)
    figures = ScoreFigures(recipe=recipe, labels=labels.recipe, utterances=source.recipe)
    if part is not None and not parts.is_finished("filter", part, (job.name for job in left())):
        return dataclasses.replace(figures, finished=False)
    workdir.finish(work, figures)
    return figures


def _measured_parts(
    cfg: Config, work: Store, source: IndexFigures, labels: LabelFigures, own: parts.Part | None
) -> list[measures.MeasuredPart]:
    """Each part of the utterances with all that its labels are measured by; those that `own` measures are aligned."""
    prefix = workdir.prefix("utterances", source.recipe)
    heard = aligned = None
    if (second := second_labels(cfg, labels)) is not None:
        _refuse_added(work, second)
        heard = workdir.prefix("labels", second.recipe)
    joined = label_parts(cfg, work, source.recipe, labels.recipe)
    if (task := alignment_task(cfg, labels)) is not None:
        with StepMeter("align", None, "utterances") as meter:
            reading = read_utterances.reading(cfg)
            alignment.align(
                work, prefix, labels, task, cfg.engine, reading, meter, part=own, chosen=_chosen(joined, own)
            )
        aligned = task.prefix

    def beside(table: str | None) -> list[tuple[str, ...]]:
        if table is None:
            return [()] * len(joined)
        return [part.labels for part in join.parts(work, prefix, table, cfg.engine)]

    return list(itertools.starmap(measures.MeasuredPart, zip(joined, beside(heard), beside(aligned), strict=True)))


def _chosen(joined: Sequence[join.Part], own: parts.Part | None) -> set[str] | None:
    """The parts of utterances whose labels `own` measures; None where that is all of them."""
    if own is None:
        return None
    jobs = measures.plan(list(map(measures.MeasuredPart, joined)), ())
    return {measured.part.utterances for job in jobs if own.takes(job.name) for measured in job.parts}


def _refuse_added(work: Store, labels: LabelFigures) -> None:
    """DataError where there are labels that the figures do not speak of: the name of the verdicts would not either."""
    now = tables.parts_hash(work, workdir.prefix("labels", labels.recipe))
    if labels.listing not in (None, now):
        raise DataError(
            f"the labels in `{work.uri(workdir.prefix('labels', labels.recipe))}` are not finished",
            why="some were added, or taken away, since `voxstill label` ended there",
            fix="run `voxstill label` again; it goes on where it stopped",
        )
