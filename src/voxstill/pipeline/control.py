"""control: change the options of a labelling job while it runs, and show the status of the jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.labelling import control as controlling
from voxstill.labelling import permission
from voxstill.storage.control import Options, Request, one_at_a_time, request, requested, standing
from voxstill.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult(Result):
    """What is asked of the labelling jobs of a work folder, since when, and what each job said last."""

    asked: Options
    at: str | None
    jobs: Sequence[controlling.JobStatus]

    def to_text(self) -> str:
        """What stands and what came of it."""
        return table(self)


def control(cfg: Config, overrides: Sequence[str], *, clear: bool) -> ControlResult:
    """What stands after adding the overrides, all of them or none, and what each job said last.

    They are checked against what a job works by, and where none has said anything against the configuration given.
    ConfigError if no job would take them, DataError if `cfg.work` holds no corpus.
    """
    work = Store(cfg.work)
    if next(work.list("utterances"), None) is None:
        raise DataError(
            f"`{work.root}` has no utterances",
            code="no-work-folder",
            why="no job can label there",
            fix="check the name of the folder",
        )
    asked = _add(work, cfg, overrides, clear=clear) if overrides or clear else requested(work)
    return ControlResult(asked=asked.set, at=asked.at, jobs=controlling.job_statuses(work))


def _add(work: Store, cfg: Config, overrides: Sequence[str], *, clear: bool) -> Request:
    """Write a request that adds overrides to what stands, or replaces it."""
    new = controlling.parse_overrides(overrides)
    with one_at_a_time(work):
        jobs = controlling.job_statuses(work)
        before = Request() if clear else standing(work, jobs)
        permission.check_options(before.set)
        wanted = controlling.merge(before.set, new)
        _check(cfg, wanted, jobs)
        return request(work, wanted, before)


def _check(cfg: Config, wanted: Options, jobs: Sequence[controlling.JobStatus]) -> None:
    """Raise the ConfigError of the first job where none would take the request; name those that would not.

    Where jobs run, one of these must take it. Whoever can write into the work folder can write the status of a job: it
    is compared with, and no teacher of it is made.
    """
    asked = [job for job in jobs if job.running] or jobs
    if not asked:
        _apply(cfg, wanted, [cfg.teacher.model_dump()])
        return
    errors = [_refusal(cfg, wanted, job) for job in asked]
    refusals = [(job, error) for job, error in zip(asked, errors, strict=True) if error is not None]
    if len(refusals) == len(asked):
        raise refusals[0][1]
    for job, error in refusals:
        if job.running:
            message = "control: %s (process %s on %s) will not follow: %s: %s"
            log.warning(message, job.labels, job.pid, job.host, error.what, error.why)


def _refusal(cfg: Config, wanted: Options, job: controlling.JobStatus) -> ConfigError | None:
    """Why a job would not take a request."""
    try:
        _apply(cfg, wanted, [job.begun, *job.allowed])
    except ConfigError as error:
        return error
    return None


def _apply(cfg: Config, wanted: Options, teachers: Sequence[Mapping[str, object]]) -> None:
    """Raise ConfigError where a job begun with the first teacher, which allows all of them, would refuse a request."""
    teacher, *allowed = (config.validated(config.Teacher, options, "teacher.") for options in teachers)
    started = controlling.Settings(teacher, cfg.engine, cfg.monitor.log_level, tuple(allowed))
    controlling.apply(wanted, started)


def table(result: ControlResult) -> str:
    """Format the request and the status of the jobs as text for a terminal."""
    asked = [
        f"  {section}.{name} = {_plain(value)}"
        for section, options in result.asked.items()
        for name, value in options.items()
    ]
    lines = [f"requested at {result.at}:", *asked] if asked else ["nothing is requested: jobs run as they were started"]
    for job in result.jobs:
        state = "running" if job.running else "ended"
        lines += ["", f"{job.labels}: {state}, process {job.pid} on {job.host}, last seen {job.at}"]
        lines.append(f"  teacher: {_plain(job.teacher)}")
        if job.refused:
            lines.append(f"  refused the request of {job.asked_at}: {job.refused}; a new request replaces it")
        elif result.at is not None and job.asked_at == result.at:
            lines.append("  follows the request")
        elif result.at is not None and job.running:
            lines.append("  has not read the request yet")
    return "\n".join(lines)


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
