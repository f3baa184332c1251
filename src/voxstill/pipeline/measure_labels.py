"""The scores of labels: what an earlier table measured is taken over, and the rest is aligned and measured."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from voxstill import engine
from voxstill.audio import read_utterances
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.monitor import log
from voxstill.core.records import Split
from voxstill.filtering import measures, reuse
from voxstill.labelling import alignment
from voxstill.labelling.so_far import Labels
from voxstill.pipeline.recipes import alignment_task, label_parts, scores_recipe, second_labels
from voxstill.storage import join, lease, parts, removals, same_audio, tables, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, ScoreFigures
from voxstill.storage.store import Store


def scores(cfg: Config, source: IndexFigures, labels: Labels, part: parts.Part | None = None) -> ScoreFigures:
    """Every label is measured, once for all thresholds; with `part` those of that part."""
    work, recipe = Store(cfg.work), scores_recipe(cfg, source, labels.figures)
    done = workdir.success(work, ScoreFigures, recipe)
    if done is not None:
        return done
    with parts.hold(work, workdir.prefix("scores", recipe), "filter", part, cfg.engine) as held:
        return _measure(cfg, recipe, source, labels, held, part)


def removed_utterances(work: Store, source: IndexFigures) -> Mapping[str, Split]:
    """The removed utterances of a table: the split of each by its id."""
    return removals.of(work, workdir.prefix("utterances", source.recipe))


def check_audio(cfg: Config, source: IndexFigures, labels: LabelFigures) -> None:
    """DataError if labels, of this or of the second teacher, are of other audio than the utterances."""
    for figures in filter(None, (labels, second_labels(cfg, labels))):
        same_audio.check(
            Store(cfg.work),
            workdir.prefix("utterances", source.recipe),
            workdir.prefix("labels", figures.recipe),
        )


def refuse_added(work: Store, labels: Labels) -> None:
    """DataError if there are labels that the figures do not include: the name of the verdicts would not either."""
    figures = labels.figures
    now = tables.parts_hash(work, workdir.prefix("labels", figures.recipe))
    if labels.keys is None and figures.listing not in (None, now):
        raise DataError(
            f"the labels in `{work.uri(workdir.prefix('labels', figures.recipe))}` are not finished",
            code="step-unfinished",
            why="some were added or removed after `voxstill label` finished there",
            fix="run `voxstill label` again; it resumes where it stopped. Or filter the labels made so far: --partial",
        )


def _measure(
    cfg: Config,
    recipe: str,
    source: IndexFigures,
    labels: Labels,
    held: lease.Lease,
    part: parts.Part | None,
) -> ScoreFigures:
    work, prefix = Store(cfg.work), workdir.prefix("scores", recipe)
    phrases, removed = (*measures.PHRASES, *cfg.filter.phrases), frozenset(removed_utterances(work, source))
    figures = _figures(cfg, recipe, source, labels, phrases)

    def planned() -> list[measures.MeasuredPart]:
        measured = _measured_parts(cfg, work, source, labels, part)
        return reuse.identified(work, measured, str(figures.method), removed)

    def left(parts: Sequence[measures.MeasuredPart]) -> list[measures.MeasureJob]:
        there = {key.rpartition("/")[2].removesuffix(".parquet") for key in tables.parts(work, prefix)}
        return measures.plan(parts, there)

    def commit(_: engine.Chunk, rows: Sequence[int | DataError]) -> None:
        held.check()
        for row in rows:
            if isinstance(row, DataError):
                raise row
            meter.count_done(row, ())

    all_parts = planned()
    scored = reuse.scored(work, figures)
    known = [dataclasses.replace(one, scored=scored.get(one.identity)) for one in all_parts]
    jobs = [job for job in left(known) if part is None or part.takes(job.place)]
    _log(jobs)
    writer = measures.ScoreWriter(work, prefix, phrases, cfg.evaluate.normalizer, removed)
    stages = (engine.Stage(name="filter", work=writer, workers=cfg.engine.workers, resources=cfg.engine.resources),)
    with StepMeter("filter", len(jobs), "parts") as meter:
        chunks = (engine.Chunk(job.name, (job,)) for job in jobs)
        engine.run(chunks, stages, commit, measures.set_aside, cfg.engine, meter)
    if part is not None:
        all_parts = planned()  # others have aligned theirs meanwhile
        if not parts.is_finished("filter", part, (job.place for job in left(all_parts))):
            return dataclasses.replace(figures, finished=False)
    held.check()
    reuse.delete_others(work, prefix, (job.name for job in measures.plan(all_parts, ())))
    workdir.finish(work, figures)
    return figures


def _figures(cfg: Config, recipe: str, source: IndexFigures, labels: Labels, phrases: Sequence[str]) -> ScoreFigures:
    second, aligned = second_labels(cfg, labels.figures), alignment_task(cfg, labels.figures)
    beside = (None if second is None else second.recipe, None if aligned is None else aligned.recipe)
    return ScoreFigures(
        recipe=recipe,
        labels=labels.figures.recipe,
        utterances=source.recipe,
        num_labels=labels.figures.labels,
        listing=tables.parts_hash(Store(cfg.work), workdir.prefix("utterances", source.recipe)),
        method=reuse.method(phrases, cfg.evaluate.normalizer, *beside),
    )


def _log(jobs: Sequence[measures.MeasureJob]) -> None:
    labelled = [part for job in jobs for part in job.parts if part.part.labels]
    num_scored = sum(part.scored is not None for part in labelled)
    if labelled:
        message = "filter: labels of %d parts are measured now, those of %d were measured before"
        log.info(message, len(labelled) - num_scored, num_scored)


def _measured_parts(
    cfg: Config, work: Store, source: IndexFigures, labels: Labels, own: parts.Part | None
) -> list[measures.MeasuredPart]:
    """Each part of the utterances with all that its labels are measured by; those that `own` measures are aligned."""
    prefix, figures = workdir.prefix("utterances", source.recipe), labels.figures
    second_prefix = aligned = None
    if (second := second_labels(cfg, figures)) is not None:
        refuse_added(work, Labels(second))
        second_prefix = workdir.prefix("labels", second.recipe)
    joined = labels.restrict(label_parts(cfg, work, source.recipe, figures.recipe))
    if (task := alignment_task(cfg, figures)) is not None:
        with StepMeter("align", None, "utterances") as meter:
            reading = read_utterances.reading(cfg)
            alignment.align(
                work, prefix, figures, task, cfg.engine, reading, meter, part=own, chosen=_chosen(joined, own)
            )
        aligned = task.prefix

    def beside(table: str | None) -> list[tuple[str, ...]]:
        if table is None:
            return [()] * len(joined)
        return [part.labels for part in join.parts(work, prefix, table, cfg.engine)]

    return list(
        itertools.starmap(measures.MeasuredPart, zip(joined, beside(second_prefix), beside(aligned), strict=True))
    )


def _chosen(joined: Sequence[join.Part], own: parts.Part | None) -> set[str] | None:
    """The parts of utterances whose labels `own` measures; None if that is all of them."""
    if own is None:
        return None
    jobs = measures.plan(list(map(measures.MeasuredPart, joined)), ())
    return {measured.part.utterances for job in jobs if own.takes(job.place) for measured in job.parts}
