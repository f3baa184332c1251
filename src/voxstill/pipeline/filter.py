"""filter: measure every label once, then keep it or drop it by the rules (hallucination, compression, ...)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from voxstill import engine
from voxstill.audio import read_utterances
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.monitor import StepMeter, log
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
from voxstill.storage import join, lease, tables, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, ScoreFigures, VerdictFigures
from voxstill.storage.store import Store


def filter_labels(cfg: Config) -> VerdictFigures:
    """Every label has its scores, and those of the training and dev splits a verdict with its reason."""
    work = Store(cfg.work)
    source = workdir.finished(work, IndexFigures, utterances_recipe(cfg))
    labels = label.finished(work, cfg.teacher)
    recipe = verdicts_recipe(cfg, source, labels)
    done = workdir.success(work, VerdictFigures, recipe)
    if done is not None:
        log.info("filter: nothing to do, verdicts %s are there", recipe)
        return dataclasses.replace(done, reasons={current_name(name): num for name, num in done.reasons.items()})
    _refuse_added(work, labels)
    with lease.hold(work, workdir.prefix("verdicts", recipe), "filter") as held:
        figures = _judge(cfg, recipe, source, labels)
        held.check()
        workdir.finish(work, figures)
    return figures


def _judge(cfg: Config, recipe: str, source: IndexFigures, labels: LabelFigures) -> VerdictFigures:
    work, measured = Store(cfg.work), _scores(cfg, source, labels)
    scores, verdicts = workdir.prefix("scores", measured.recipe), workdir.prefix("verdicts", recipe)
    counts = write_verdicts(work, scores, verdicts, recipe, cfg.filter)
    are_human = label_figures.are_human_texts(labels)  # labels have no errors against themselves
    return VerdictFigures(
        recipe=recipe,
        labels=labels.recipe,
        utterances=source.recipe,
        scores=measured.recipe,
        teacher=labels.teacher,
        judged=counts.judged,
        kept_utterances=counts.kept,
        kept=counts.share,
        kept_hours=counts.kept_ms / 3_600_000,
        reasons=counts.reasons,
        wer_before=None if are_human else counts.wer,
        wer_after=None if are_human else counts.kept_wer,
    )


def measured_labels(cfg: Config) -> tuple[LabelFigures, ScoreFigures]:
    """The figures of the finished labels, and of their scores."""
    work = Store(cfg.work)
    source = workdir.finished(work, IndexFigures, utterances_recipe(cfg))
    labels = label.finished(work, cfg.teacher)
    _refuse_added(work, labels)
    return labels, _scores(cfg, source, labels)


def _scores(cfg: Config, source: IndexFigures, labels: LabelFigures) -> ScoreFigures:
    """Every label is measured, once for all thresholds."""
    work, recipe = Store(cfg.work), scores_recipe(cfg, source, labels)
    done = workdir.success(work, ScoreFigures, recipe)
    if done is not None:
        return done
    with lease.hold(work, workdir.prefix("scores", recipe), "filter") as held:
        return _measure(cfg, recipe, source, labels, held)


def _measure(cfg: Config, recipe: str, source: IndexFigures, labels: LabelFigures, held: lease.Lease) -> ScoreFigures:
    work, prefix = Store(cfg.work), workdir.prefix("scores", recipe)
    there = {key.rpartition("/")[2].removesuffix(".parquet") for key in tables.parts(work, prefix)}
    jobs = measures.plan(_measured_parts(cfg, work, source, labels), there)

    def commit(_: engine.Chunk, rows: Sequence[int | DataError]) -> None:
        held.check()
        for row in rows:
            if isinstance(row, DataError):
                raise row
            meter.count_done(row, ())

    phrases = (*measures.PHRASES, *cfg.filter.phrases)
    writer = measures.ScoreWriter(work, prefix, phrases, cfg.evaluate.normalizer)
    stages = (engine.Stage(name="filter", work=writer, workers=cfg.engine.workers, resources=cfg.engine.resources),)
    with StepMeter("filter", len(jobs), "parts") as meter:
        chunks = (engine.Chunk(job.name, (job,)) for job in jobs)
        engine.run(chunks, stages, commit, measures.set_aside, cfg.engine, meter.update)
    figures = ScoreFigures(recipe=recipe, labels=labels.recipe, utterances=source.recipe)
    workdir.finish(work, figures)
    return figures


def _measured_parts(
    cfg: Config, work: Store, source: IndexFigures, labels: LabelFigures
) -> list[measures.MeasuredPart]:
    """Each part of the utterances with all that its labels are measured by."""
    prefix = workdir.prefix("utterances", source.recipe)
    heard = aligned = None
    if (second := second_labels(cfg, labels)) is not None:
        _refuse_added(work, second)
        heard = workdir.prefix("labels", second.recipe)
    if (task := alignment_task(cfg, labels)) is not None:
        with StepMeter("align", None, "utterances") as meter:
            alignment.align(work, prefix, labels, task, cfg.engine, read_utterances.reading(cfg), meter)
        aligned = task.prefix
    parts = label_parts(cfg, work, source.recipe, labels.recipe)

    def beside(table: str | None) -> list[tuple[str, ...]]:
        if table is None:
            return [()] * len(parts)
        return [part.labels for part in join.parts(work, prefix, table, cfg.engine.chunk)]

    return list(itertools.starmap(measures.MeasuredPart, zip(parts, beside(heard), beside(aligned), strict=True)))


def _refuse_added(work: Store, labels: LabelFigures) -> None:
    """DataError where there are labels that the figures do not speak of: the name of the verdicts would not either."""
    now = tables.parts_hash(work, workdir.prefix("labels", labels.recipe))
    if labels.listing not in (None, now):
        raise DataError(
            f"the labels in `{work.uri(workdir.prefix('labels', labels.recipe))}` are not finished",
            why="some were added, or taken away, since `voxstill label` ended there",
            fix="run `voxstill label` again; it goes on where it stopped",
        )
