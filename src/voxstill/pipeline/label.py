"""label: pseudo-label every utterance with one teacher; a failure is a label with an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from voxstill.audio import read_utterances
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.monitor import log
from voxstill.labelling import consensus, label, permission
from voxstill.pipeline.marks import marks_children
from voxstill.pipeline.recipes import finished_utterances
from voxstill.storage import parts, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store
from voxstill.teachers import registry
from voxstill.teachers.consensus import ConsensusTeacher


@marks_children("label")
def label_utterances(
    cfg: Config,
    *,
    max_chunks: int | None = None,
    limit_hours: float | None = None,
    retry_failed: bool = False,
    part: str | None = None,
    allow_teacher: Sequence[str] = (),
) -> LabelFigures:
    """Every utterance has one label of this teacher, or a reason why not; up to the limits, where some are given.

    With `retry_failed` labels that failed before are made again. With `part`, K/N or `auto`, only the chunks of that
    part. The teachers of `allow_teacher`, each a name or options in YAML, may take over while it works. ConfigError
    where a limit is not above 0, the part is none, or a teacher is wrong.
    """
    _check_limits({"--max-chunks": max_chunks, "--limit-hours": limit_hours})
    own = _requested_part(part, retry_failed=retry_failed)
    work = Store(cfg.work)
    source = finished_utterances(cfg)
    task = label.task(cfg.teacher, work)
    prefix = workdir.prefix("utterances", source.recipe)
    if isinstance(teacher := registry.create(cfg.teacher), ConsensusTeacher):
        if retry_failed or own is not None or allow_teacher:
            raise ConfigError(
                "`consensus` cannot retry failed labels, run in parts or switch teachers",
                code="option-conflict",
                why="it only votes on the labels of other teachers, which takes little time",
                fix="use --retry-failed, --part or --allow-teacher with those teachers",
            )
        with StepMeter("label", None, "parts") as meter:
            figures = consensus.agree(work, prefix, task, teacher.of, cfg.engine, meter)
        return dataclasses.replace(figures, hours=source.hours)
    with StepMeter("label", source.utterances - (source.supervised or 0), "utterances") as meter:
        figures = label.label(
            work,
            prefix,
            task,
            cfg.engine,
            read_utterances.reading(cfg),
            meter,
            max_chunks=max_chunks,
            limit_hours=limit_hours,
            retry_failed=retry_failed,
            part=own,
            allowed=permission.allowed_teachers(task.teacher, allow_teacher),
        )
    if not figures.finished and own is None:
        log.info("label: %d of %d utterances; the same command resumes", figures.labels, source.utterances)
    figures = dataclasses.replace(figures, hours=source.hours, max_failed_share=cfg.engine.max_failed_share)
    if figures.exit_code:
        log.error(
            "label: %d of %d labels failed, more than `engine.max_failed_share: %g` allows; fix the cause, then run "
            "`voxstill label --retry-failed`",
            figures.failed,
            figures.labels,
            figures.max_failed_share,
        )
    return figures


def _requested_part(text: str | None, *, retry_failed: bool) -> parts.Part | None:
    part = parts.requested(text)
    if part is not None and retry_failed:
        raise ConfigError(
            "`--retry-failed` works on the whole table",
            code="option-conflict",
            why="`--part` does not",
            fix="leave one of them out",
        )
    return part


def _check_limits(limits: Mapping[str, float | None]) -> None:
    for name, limit in limits.items():
        if limit is not None and not limit > 0:
            raise ConfigError(
                f"`{name}` is {limit}",
                code="option-value",
                why="it must be above 0",
                fix="leave it out to label everything",
            )
