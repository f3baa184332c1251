"""control: change the options of a labelling job while it runs, and show the status of the jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.result import Result
from voxstill.labelling import control as controlling
from voxstill.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult(Result):
    """What is asked of the labelling jobs of a work folder, since when, and what each job said last."""

    asked: Mapping[str, Mapping[str, Any]]
    at: str | None
    jobs: Sequence[Mapping[str, Any]]

    def to_text(self) -> str:
        """What stands and what came of it."""
        return table(self.to_dict())


def control(cfg: Config, overrides: Sequence[str], *, clear: bool) -> ControlResult:
    """What stands after adding the overrides, all of them or none, and what each job said last.

    They are checked against what a job works by, and where none has said anything against the configuration given.
    ConfigError where no job would take them, DataError where `cfg.work` holds no corpus.
    """
    work = Store(cfg.work)
    if next(work.list("utterances"), None) is None:
        raise DataError(
            f"`{work.root}` has no utterances", why="no job can label there", fix="check the name of the folder"
        )
    jobs = controlling.job_statuses(work)
    asked = {} if clear else controlling.requested(work)
    if overrides or clear:
        wanted = controlling.merge(asked.get("set", {}), controlling.parse_overrides(overrides))
        _check(cfg, wanted, jobs)
        asked = controlling.request(work, wanted)
    return ControlResult(asked=asked.get("set", {}), at=asked.get("at"), jobs=jobs)


def _check(cfg: Config, wanted: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> None:
    """Raise the ConfigError of the latest job where no job could apply the request."""
    level = cfg.monitor.log_level
    teachers = [config.validated(config.Teacher, job["begun"], "teacher.") for job in jobs]
    errors = []
    for teacher in teachers or [cfg.teacher]:
        try:
            controlling.apply(wanted, controlling.Settings(teacher, cfg.engine, level))
            return
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def table(found: Mapping[str, Any]) -> str:
    """Format the request and the status of the jobs as text for a terminal."""
    asked = [f"  {section}.{name} = {_plain(value)}" for section, name, value in _options(found["asked"])]
    lines = [f"asked for at {found['at']}:", *asked] if asked else ["nothing is asked for: jobs run as they were begun"]
    for job in found["jobs"]:
        state = "running" if job["running"] else "ended"
        lines += ["", f"labels {job['recipe']}: {state}, process {job['pid']} on {job['host']}, last heard {job['at']}"]
        lines.append(f"  teacher: {_plain(job['teacher'])}")
        if job["refused"]:
            lines.append(f"  refused what was asked for at {job['asked_at']}: {job['refused']}")
        elif found["at"] is not None and job["asked_at"] == found["at"]:
            lines.append("  works by what was asked for")
        elif found["at"] is not None and job["running"]:
            lines.append("  has not taken what was asked for yet")
    return "\n".join(lines)


def _options(sections: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, Any]]:
    return [(section, name, value) for section, options in sections.items() for name, value in options.items()]


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
