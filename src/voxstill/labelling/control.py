"""Change a labelling job while it runs: options requested in `WORK/control.json`, and the status that each job reports.

The file holds options as a configuration does, and when they were requested; an option that it does not name is as the
job was started. A job reports in `WORK/control/<recipe of its labels>.json` what it has made of the request.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from voxstill.core import config, monitor
from voxstill.core.errors import ConfigError, DataError, StorageError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.engine import Change, Stage
from voxstill.labelling import permission
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local
from voxstill.teachers import registry

REQUEST = "control.json"
STATUS = "control"
"""The folder of the statuses of jobs."""
Options = Mapping[str, Mapping[str, object]]
"""Options by section."""
_MOST_SHOWN = 500
"""Characters that are shown of a request or of why it is refused."""
POLL_S = 1.0
POLL_REMOTE_S = 5.0
"""In a bucket every look is a request that costs: 720 an hour are $0.0003."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a job that can be changed while it runs."""

    teacher: config.Teacher
    engine: config.Engine
    log_level: str
    allowed: tuple[config.Teacher, ...] = ()
    """Teachers that may take over from the one that the job was started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Result):
    """What is requested of the jobs of a work folder, as the file holds it."""

    at: str | None = None
    """When it was requested; None where nothing ever was."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Options by section, as somebody may have written them by hand. Without any: as the jobs were started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus(Result):
    """What a job reports of itself, as its file holds it."""

    recipe: str
    """That of its labels."""
    host: str
    pid: int
    running: bool
    begun: Mapping[str, object]
    """The options of the teacher that it was started with."""
    allowed: Sequence[Mapping[str, object]] = ()
    """The options of the teachers that may take over from it."""
    asked_at: str | None
    """When that was requested which it works by, or has refused; None for what it was started with."""
    refused: str | None
    """Why it has refused the request."""
    teacher: Mapping[str, object]
    """The options of the teacher at work."""
    engine: Mapping[str, object]
    """The limits that it works by."""
    at: str = ""
    """When it was written."""

    def working_by(self, at: str | None, settings: Settings) -> JobStatus:
        """The status of the job once it works by settings that were requested at a time."""
        limits = {name: getattr(settings.engine, name) for name in permission.CHANGEABLE["engine"]}
        return replace(self, asked_at=at, refused=None, teacher=registry.shown(settings.teacher), engine=limits)


def requested(work: Store) -> Request:
    """Read the request; an empty one where there is none. DataError where the file holds none."""
    return Request.from_dict(_read(work, REQUEST))


def request(work: Store, options: Options) -> Request:
    """Write a new request and return it; no options means: as the jobs were started."""
    new = Request(at=timestamp(), set=options)
    work.write_json(REQUEST, new.to_dict())
    return new


def job_statuses(work: Store) -> list[JobStatus]:
    """The last status of each job that has labelled here, the latest first; what is no status is named and left out."""
    statuses = []
    for key in (entry.key for entry in work.list(STATUS) if entry.key.endswith(".json")):
        try:
            statuses.append(_status(_read(work, key)))
        except DataError as error:
            log.warning("control: %s (%s)", error.what, error.why)
    return sorted(statuses, key=lambda status: str(status.at), reverse=True)


def _status(content: Mapping[str, object]) -> JobStatus:
    status = JobStatus.from_dict(content)
    options = [status.begun, status.teacher, *(status.allowed if isinstance(status.allowed, list | tuple) else [None])]
    if not all(isinstance(section, Mapping) for section in options):
        raise DataError(f"the status of {status.recipe} names no teacher", why="it has no options", fix="remove it")
    return status


def _read(work: Store, key: str) -> Mapping[str, object]:
    """The JSON object in `key`, which others may have written; DataError where there is another thing."""
    content: object = work.read_json(key)
    if content is not None and not isinstance(content, Mapping):
        raise DataError(f"`{work.uri(key)}` is no JSON object", why="voxstill writes one", fix="remove the file")
    return content or {}


def timestamp() -> str:
    """The time in ISO 8601, which sorts: two that differ are at least a microsecond apart."""
    return datetime.now(UTC).isoformat()


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
    sections = {**standing, **{name: {**standing.get(name, {}), **options} for name, options in new.items()}}
    if "teacher" in new:
        sections["teacher"] = permission.over(standing.get("teacher", {}), new["teacher"])
    return sections


def apply(options: Options, started: Settings) -> Settings:
    """The settings that a job was started with, with options by section over them.

    ConfigError where one is wrong, cannot be changed, or was not allowed when the job was started. No teacher is made.
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


class Watch:
    """Poll the request of a running job, hand it to `engine.run` as its `Changes`, and report the status.

    Use it as a `with` block. It polls once before the block begins, and then in a thread of its own: storage that is
    slow or gone holds up nothing. `build` makes the stages of settings, in that thread; its VoxstillError rejects them.
    """

    def __init__(
        self, work: Store, recipe: str, settings: Settings, build: Callable[[Settings], Sequence[Stage]]
    ) -> None:
        self._work, self._key, self._build = work, f"{STATUS}/{recipe}.json", build
        self._initial = self._current = _Work(None, settings, build(settings))
        self.stages = self._initial.stages
        """Those at work."""
        self._next: _Work | None = None
        self._last_request = Request()
        self._is_unreadable = False
        self._status = JobStatus(
            recipe=recipe,
            host=socket.gethostname(),
            pid=os.getpid(),
            running=True,
            begun=registry.shown(settings.teacher),
            allowed=[registry.shown(teacher) for teacher in settings.allowed],
            asked_at=None,
            refused=None,
            teacher={},
            engine={},
        ).working_by(None, settings)
        self._written_status: JobStatus | None = None
        self._changed, self._has_ended, self._lock = threading.Event(), False, threading.Lock()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def __enter__(self) -> Self:
        self._poll_request()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_ended = True
        self._update_status(lambda status: replace(status, running=False))
        self._thread.join()
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
        current = self._current
        log.info("control: done what was asked for at %s", current.at)
        self._update_status(lambda status: status.working_by(current.at, current.settings))

    def rejected(self, error: VoxstillError) -> None:
        """As `engine.Changes`."""
        self._reject(self._current.at, error)

    def _reject(self, at: str | None, error: VoxstillError) -> None:
        refused = one_line(f"{error.what}: {error.why}" if error.why else error.what, _MOST_SHOWN)
        log.error("control: what was asked for is refused, and the job goes on as before: %s", refused)
        self._update_status(lambda status: replace(status, asked_at=at, refused=refused))

    def _update_status(self, update: Callable[[JobStatus], JobStatus]) -> None:
        with self._lock:
            self._status = update(self._status)
        self._changed.set()

    def _run(self) -> None:
        interval_s = POLL_S if is_local(self._work.root) else POLL_REMOTE_S
        while not self._has_ended:
            self._write_status()
            self._changed.wait(interval_s)
            self._changed.clear()
            if not self._has_ended:
                self._poll_request()
        self._write_status()

    def _write_status(self) -> None:
        """Write the status where it has changed; storage that fails is a warning."""
        with self._lock:
            status = self._status
        if status == self._written_status:
            return
        try:
            self._work.write_json(self._key, replace(status, at=timestamp()).to_dict())
            self._written_status = status
        except StorageError as error:
            log.warning("control: %s (%s)", error.what, error.why)

    def _poll_request(self) -> None:
        """Read the request and, where it is new, build its settings and stages for the engine to take."""
        try:
            new = requested(self._work)
        except VoxstillError as error:
            if not self._is_unreadable:
                log.warning("control: not known what is asked for: %s (%s)", error.what, error.why)
            self._is_unreadable = True
            return
        self._is_unreadable = False
        if new == self._last_request:
            return
        self._last_request, at = new, one_line(str(new.at), MOST_NAME)
        try:
            settings = apply(new.set, self._initial.settings)
            next_work = _Work(at, settings, self._build(settings))
        except VoxstillError as error:
            self._reject(at, error)
            return
        except Exception as error:  # a teacher of another package, or a file that was written by hand
            self._reject(at, ConfigError("it cannot be understood", why=f"{type(error).__name__}: {error}"))
            return
        log.info("control: asked for at %s: %s", at, one_line(str(new.set), _MOST_SHOWN))
        self._set_level(settings.log_level)
        with self._lock:
            self._next = next_work

    def _set_level(self, level: str) -> None:
        if level != monitor.level():
            monitor.set_level(level)
