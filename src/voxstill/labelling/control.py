"""Change a labelling job while it runs: which options `WORK/control.json` may change, and the status of each job.

A job reports in `WORK/control/<recipe of its labels>.json` what it has made of the request, and one of a part in
`WORK/control/<recipe>-part-K-of-N.json`: see `storage.control`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from voxstill.core import config, monitor
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.engine import Change, Stage
from voxstill.labelling import permission
from voxstill.storage import control, lease, parts
from voxstill.storage.control import Options, Poller, Request, Status
from voxstill.storage.store import Store
from voxstill.teachers import registry


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a job that can be changed while it runs."""

    teacher: config.Teacher
    engine: config.Engine
    log_level: str
    allowed: tuple[config.Teacher, ...] = ()
    """Teachers that may take over from the one that the job was started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus(Status):
    """What a labelling job reports of itself."""

    recipe: str
    """That of its labels."""
    part: str | None = None
    """The part of the labels that it makes, as `1/4`; None where it makes all."""
    begun: Mapping[str, object]
    """The options of the teacher that it was started with."""
    allowed: Sequence[Mapping[str, object]] = ()
    """The options of the teachers that may take over from it."""
    teacher: Mapping[str, object]
    """The options of the teacher at work."""
    engine: Mapping[str, object]
    """The limits that it works by."""

    def working_by(self, settings: Settings) -> JobStatus:
        """The status of the job once it works by settings."""
        limits = {name: getattr(settings.engine, name) for name in permission.CHANGEABLE["engine"]}
        return replace(self, teacher=registry.shown(settings.teacher), engine=limits)

    @property
    def labels(self) -> str:
        """Its labels and its part of them, in words."""
        return f"labels {self.recipe}" + (f", part {self.part}" if self.part else "")


def job_statuses(work: Store) -> list[JobStatus]:
    """The last status of each job that has labelled here: those that run come first, then the latest.

    A job that was killed has ended: its lease shows that. What is not a status is named in a warning and left out.
    """
    statuses = []
    for key in (entry.key for entry in work.list(control.STATUS) if entry.key.endswith(".json")):
        try:
            status = _status(control.read(work, key))
        except DataError as error:
            log.warning("control: %s (%s)", error.what, error.why)
            continue
        statuses.append(replace(status, running=status.running and _holds_lease(work, status)))
    return sorted(statuses, key=lambda status: (status.running, str(status.at)), reverse=True)


def _holds_lease(work: Store, status: JobStatus) -> bool:
    """Whether the process of a status still has its labels or its part of them; True where that cannot be known."""
    try:
        part = parts.requested(status.part)
        return lease.seems_held(work, parts.lease_name(f"labels/{status.recipe}", part), status.pid)
    except VoxstillError as error:
        log.warning("control: %s (%s)", error.what, error.why)
        return True


def _status(content: Mapping[str, object]) -> JobStatus:
    status = JobStatus.from_dict(content)
    options = [status.begun, status.teacher, *(status.allowed if isinstance(status.allowed, list | tuple) else [None])]
    if not all(isinstance(section, Mapping) for section in options):
        raise DataError(
            f"the status of {status.recipe} has no teacher",
            code="table-broken",
            why="it has no options",
            fix="remove it",
        )
    return status


def parse_overrides(overrides: Sequence[str]) -> Options:
    """Parse `section.key=value` into options by section; ConfigError for one that is unknown or cannot be changed."""
    tree = config.tree(overrides)
    config.validated(config.Config, tree)
    sections: dict[str, object] = {}
    for section, value in tree.items():
        sections[section] = {"name": value} if section in ("engine", "teacher") and isinstance(value, str) else value
    permission.check_options(sections)
    return {section: options for section, options in sections.items() if isinstance(options, Mapping)}


def merge(standing: Options, new: Options) -> Options:
    """Put newer options by section over older ones; a newly named teacher keeps no option of the one before."""
    sections = control.merge(standing, new)
    if "teacher" not in new:
        return sections
    return {**sections, "teacher": permission.over(standing.get("teacher", {}), new["teacher"])}


def apply(options: Options, started: Settings) -> Settings:
    """The settings that a job was started with, with options by section over them.

    ConfigError if one is wrong, cannot be changed, or was not allowed when the job was started. No teacher is made.
    """
    permission.check_options(options)
    options_of_teacher = permission.over(started.teacher.model_dump(), options.get("teacher", {}))
    teacher = config.validated(config.Teacher, options_of_teacher, "teacher.")
    permission.check_teacher(teacher, (started.teacher, *started.allowed))
    limits = {**started.engine.model_dump(), **options.get("engine", {})}
    of_log = config.validated(config.Monitor, options.get("monitor", {}), "monitor.")
    return replace(
        started,
        teacher=teacher,
        engine=config.validated(config.Engine, limits, "engine."),
        log_level=of_log.log_level if "monitor" in options else started.log_level,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What a request of a time means for this job; `at` is None for what it was started with."""

    at: str | None
    settings: Settings
    stages: Sequence[Stage]
    number: int = 0
    """That of the request, counted from 1; where it is of the request before a refused one, the number of that."""


class Watch:
    """Poll the request of a running job, hand it to `engine.run` as its `Changes`, and report the status.

    Use it as a `with` block. It polls once before the block begins, and then in a thread of its own: storage that is
    slow or gone holds up nothing. `build` makes the stages of settings, in that thread; its VoxstillError rejects them.
    """

    def __init__(
        self,
        work: Store,
        recipe: str,
        settings: Settings,
        build: Callable[[Settings], Sequence[Stage]],
        part: parts.Part | None = None,
    ) -> None:
        self._build = build
        self._initial = self._current = _Work(None, settings, build(settings))
        self.stages = self._initial.stages
        """Those at work."""
        self._next: _Work | None = None
        self._num_requests = self._last_refused = 0
        self._earlier: Mapping[str, object] | None = None
        status = JobStatus(
            recipe=recipe,
            part=None if part is None else str(part),
            host=socket.gethostname(),
            pid=os.getpid(),
            running=True,
            begun=registry.shown(settings.teacher),
            allowed=[registry.shown(teacher) for teacher in settings.allowed],
            asked_at=None,
            refused=None,
            teacher={},
            engine={},
        )
        self._lock = threading.Lock()
        name = recipe if part is None else f"{recipe}-{part.file_name}"
        self._poller = Poller(work, name, status.working_by(settings), self._take)

    def __enter__(self) -> Self:
        self._poller.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._poller.__exit__(kind, value, trace)
        self._set_level(self._initial.settings.log_level)

    def poll(self) -> Change | None:
        """As `engine.Changes`."""
        with self._lock:
            if self._next is None:
                return None
            self._current, self._next = self._next, None
            return Change(self._current.stages, self._current.settings.engine)

    def applied(self, stages: Sequence[Stage]) -> None:
        """As `engine.Changes`."""
        self.stages = stages
        current, is_answered = self._current, self._current.number <= self._last_refused
        log.info(
            "control: changed as requested %s %s",
            "before" if current.number == self._last_refused else "at",
            current.at,
        )

        def applied(status: JobStatus) -> JobStatus:
            status = status.working_by(current.settings)
            return status if is_answered else replace(status, asked_at=current.at, refused=None)

        self._poller.update(applied)

    def rejected(self, error: VoxstillError) -> None:
        """As `engine.Changes`."""
        current = self._current
        if current.number > self._last_refused:
            self._last_refused = current.number
            self._poller.refuse(current.at, error)
        else:  # the last answer is that a later request is refused, and stays
            _warn_of_earlier(error)
        self._take_earlier(current)

    def _take(self, at: str, request: Request) -> None:
        """Build the settings and stages of a request for the engine to take.

        Where the first one is refused, it is the one before it that holds: a job that is started again has it to take.
        """
        self._num_requests += 1
        self._earlier = request.before if self._num_requests == 1 else None
        work = replace(self._initial, at=at, number=self._num_requests)
        try:
            self._build_next(work, request)
        except Exception:
            self._last_refused = work.number
            self._take_earlier(work)
            raise

    def _take_earlier(self, refused: _Work) -> None:
        earlier, self._earlier = self._earlier, None
        if not earlier:
            return
        try:
            self._build_next(refused, Request.from_dict(earlier))
        except Exception as error:  # others may have written it
            _warn_of_earlier(error)

    def _build_next(self, work: _Work, request: Request) -> None:
        settings = apply(request.set, self._initial.settings)
        next_work = replace(work, settings=settings, stages=self._build(settings))
        with self._lock:
            if self._next is not None and self._next.number > work.number:
                return
            self._next = next_work
        self._set_level(settings.log_level)

    def _set_level(self, level: str) -> None:
        if level != monitor.level():
            monitor.set_level(level)


def _warn_of_earlier(error: Exception) -> None:
    why = error.what if isinstance(error, VoxstillError) else repr(error)
    log.warning("control: the request before it is refused as well: %s", one_line(why, MOST_NAME))
