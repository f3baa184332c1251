"""control: change the options of a labelling job while it runs, and show the status of the jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
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
    """Raise the ConfigError of the latest job where no job would take the request.

    Whoever can write into the work folder can write the status of a job: it is compared with, and no teacher of it is
    made.
    """
    errors = []
    for begun, *allowed in [[job.begun, *job.allowed] for job in jobs] or [[cfg.teacher.model_dump()]]:
        try:
            teacher, *others = (config.validated(config.Teacher, options, "teacher.") for options in (begun, *allowed))
            started = controlling.Settings(teacher, cfg.engine, cfg.monitor.log_level, tuple(others))
            controlling.apply(wanted, started)
            return
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


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
        lines += ["", f"labels {job.recipe}: {state}, process {job.pid} on {job.host}, last seen {job.at}"]
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
