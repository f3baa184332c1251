"""label: pseudo-label every utterance with one teacher; a failure is a label with an error."""

from __future__ import annotations

import dataclasses

from voxstill.audio import read_utterances
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import StepMeter, log
from voxstill.labelling import consensus, label
from voxstill.pipeline.recipes import utterances_recipe
from voxstill.storage import parts, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures
from voxstill.storage.store import Store
from voxstill.teachers import registry
from voxstill.teachers.consensus import ConsensusTeacher


def label_utterances(
    cfg: Config,
    *,
    max_chunks: int | None = None,
    limit_hours: float | None = None,
    retry_failed: bool = False,
    part: str | None = None,
) -> LabelFigures:
    """Every utterance has one label of this teacher, or a reason why not; up to the limits, where some are given.

    With `retry_failed` labels that failed before are made again. With `part`, K/N or `auto`, only the chunks of that
    part. ConfigError where a limit is not above 0, or the part is none.
    """
    for name, limit in (("--max-chunks", max_chunks), ("--limit-hours", limit_hours)):
        if limit is not None and not limit > 0:
            raise ConfigError(f"`{name}` is {limit}", why="it must be above 0", fix="leave it out to label everything")
    own = parts.requested(part)
    if own is not None and retry_failed:
        raise ConfigError("`--retry-failed` is of the whole table", why="`--part` is not", fix="leave one of them out")
    work = Store(cfg.work)
    source = workdir.finished(work, IndexFigures, utterances_recipe(cfg))
    task = label.task(cfg.teacher, work)
    prefix = workdir.prefix("utterances", source.recipe)
    made = registry.create(cfg.teacher)
    if isinstance(made, ConsensusTeacher):
        if retry_failed or own is not None:
            raise ConfigError(
                "`consensus` has no failed labels of its own, and no parts",
                why="it votes on the labels of other teachers, which takes little time",
                fix="use --retry-failed or --part with those teachers",
            )
        with StepMeter("label", None, "parts") as meter:
            figures = consensus.agree(work, prefix, task, made.of, cfg.engine, meter)
        return dataclasses.replace(figures, hours=source.hours)
    with StepMeter("label", source.utterances, "utterances") as meter:
        reading = read_utterances.reading(cfg)
        figures = label.label(
            work,
            prefix,
            task,
            cfg.engine,
            reading,
            meter,
            max_chunks=max_chunks,
            limit_hours=limit_hours,
            retry_failed=retry_failed,
            part=own,
        )
    if not figures.finished and own is None:
        log.info("label: %d of %d utterances; the same command goes on", figures.labels, source.utterances)
    figures = dataclasses.replace(figures, hours=source.hours, max_failed_share=cfg.engine.max_failed_share)
    if figures.exit_code:
        log.error(
            "label: %d of %d labels failed, more than `engine.max_failed_share: %g` allows; mend the cause, then run "
            "`voxstill label --retry-failed`",
            figures.failed,
            figures.labels,
            figures.max_failed_share,
        )
    return figures
