"""What is asked of a running job in `WORK/control.json`, and a watch that looks there while the job works.

The file holds options as a configuration does, and when they were asked for; what it does not name is as the job was
started. A job says in `WORK/control/<recipe of its labels>.json` what it has made of that.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from voxstill import config, monitor
from voxstill.errors import ConfigError, StorageError, VoxstillError
from voxstill.factory.engine import Stage
from voxstill.monitor import log
from voxstill.store import Store
from voxstill.teachers import registry
from voxstill.uri import is_local

ASKED = "control.json"
JOBS = "control"
"""The folder of what jobs say."""
LOOK_S = 1.0
LOOK_FAR_S = 5.0
"""In a bucket every look is a request that costs: 720 an hour are $0.0003."""
TAKEN: dict[str, tuple[str, ...]] = {
    "engine": ("workers", "teachers", "in_flight", "attempts", "lease_s"),
    "monitor": ("log_level",),
}
"""What a running job takes besides all of `teacher`: the rest would change what is planned, or where it runs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What of a running job can be changed."""

    teacher: config.Teacher
    engine: config.Engine
    log_level: str


def asked(work: Store) -> dict[str, Any]:
    """The options that stand, by section, and `at`, when they were asked for; empty where nothing ever was."""
    return work.read_json(ASKED) or {}


def ask(work: Store, options: Mapping[str, Any]) -> dict[str, Any]:
    """Writes down what is wanted from now on, as `asked` gives it; no options are as the jobs were started."""
    found = {"at": now(), "set": dict(options)}
    work.write_json(ASKED, found)
    return found


def jobs(work: Store) -> list[dict[str, Any]]:
    """What each job that has labelled here said last, the latest first."""
    found = [work.read_json(entry.key) for entry in work.list(JOBS) if entry.key.endswith(".json")]
    return sorted((each for each in found if each), key=lambda each: str(each["at"]), reverse=True)


def now() -> str:
    """The time in words that sort: two that differ are at least a microsecond apart."""
    return datetime.now(UTC).isoformat()


def parsed(overrides: Sequence[str]) -> dict[str, Any]:
    """`section.key=value` as options by section; ConfigError where there is no such option or no job would take it."""
    tree = config.tree(overrides)
    config.validated(config.Config, tree)
    sections: dict[str, Any] = {}
    for section, given in tree.items():
        sections[section] = {"name": given} if section in ("engine", "teacher") and isinstance(given, str) else given
        names = sections[section] if isinstance(sections[section], Mapping) else [""]
        for name in names if section != "teacher" else ():
            if name not in TAKEN.get(section, ()):
                can = ", ".join(f"`{section}.{name}`" for section, names in TAKEN.items() for name in names)
                raise ConfigError(
                    f"a running job cannot change `{section}.{name}`" if name else f"a running job has its `{section}`",
                    why=f"it takes any option of `teacher`, and {can}",
                    fix="end the job with SIGTERM and start it with other options: it goes on where it stopped",
                )
    return sections


def merged(standing: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Options by section with newer ones over them; a newly named teacher keeps nothing of the one before."""
    sections = {**standing, **{name: {**standing.get(name, {}), **options} for name, options in new.items()}}
    if "teacher" in new:
        sections["teacher"] = _teacher(standing.get("teacher", {}), new["teacher"])
    return sections


def applied(options: Mapping[str, Any], to: Settings) -> Settings:
    """The settings with options by section over them, all of them checked; ConfigError where one is wrong."""
    teacher = _teacher(to.teacher.model_dump(), options.get("teacher", {}))
    made = config.validated(config.Teacher, teacher, "teacher.")
    registry.make(made)
    return Settings(
        teacher=made,
        engine=config.validated(config.Engine, {**to.engine.model_dump(), **options.get("engine", {})}, "engine."),
        log_level=options.get("monitor", {}).get("log_level", to.log_level),
    )


def _teacher(before: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    is_another = bool({"name", "preset"} & options.keys())
    return dict(options) if is_another else {**before, **options}


@dataclass(frozen=True, slots=True)
class _Ask:
    """What was asked for at a time, and what that means for this job."""

    at: str | None
    settings: Settings
    stages: Sequence[Stage]


class Watch:
    """Looks now and then what is asked of a job, and tells `engine.run` and whoever asked. A `with` block.

    It looks once before the block begins, and then in a thread of its own: storage that is slow or gone holds up
    nothing. `build` makes the stages of settings, in that thread, and its VoxstillError refuses them.
    """

    def __init__(
        self, work: Store, recipe: str, settings: Settings, build: Callable[[Settings], Sequence[Stage]]
    ) -> None:
        self._work, self._key, self._build = work, f"{JOBS}/{recipe}.json", build
        self._begun = self._handed = _Ask(None, settings, build(settings))
        self.stages = self._begun.stages
        """Those at work."""
        self._next: _Ask | None = None
        self._seen: dict[str, Any] = {}
        self._blind = False
        facts = {"recipe": recipe, "host": socket.gethostname(), "pid": os.getpid(), "running": True}
        self._status = {**facts, "begun": settings.teacher.model_dump(), **_as_told(self._begun)}
        self._told: dict[str, Any] = {}
        self._changed, self._ended, self._lock = threading.Event(), False, threading.Lock()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._say(running=False)
        self._thread.join()
        self._set_level(self._begun.settings.log_level)

    def wanted(self) -> tuple[Sequence[Stage], config.Engine] | None:
        """As `engine.Changes`."""
        with self._lock:
            if self._next is None:
                return None
            self._handed, self._next = self._next, None
            return self._handed.stages, self._handed.settings.engine

    def taken(self, stages: Sequence[Stage]) -> None:
        """As `engine.Changes`."""
        self.stages = stages
        log.info("control: done what was asked for at %s", self._handed.at)
        self._say(**_as_told(self._handed))

    def refused(self, error: VoxstillError) -> None:
        """As `engine.Changes`."""
        self._refuse(self._handed.at, error)

    def _refuse(self, at: str | None, error: VoxstillError) -> None:
        why = f": {error.why}" if error.why else ""
        log.error("control: what was asked for is refused, and the job goes on as before: %s%s", error.what, why)
        self._say(asked_at=at, refused=f"{error.what}{why}")

    def _say(self, **facts: Any) -> None:
        with self._lock:
            self._status |= facts
        self._changed.set()

    def _run(self) -> None:
        every_s = LOOK_S if is_local(self._work.root) else LOOK_FAR_S
        while not self._ended:
            self._write()
            self._changed.wait(every_s)
            self._changed.clear()
            if not self._ended:
                self._look()
        self._write()

    def _write(self) -> None:
        """Writes down what has changed in what is said of the job."""
        with self._lock:
            status = dict(self._status)
        if status == self._told:
            return
        try:
            self._work.write_json(self._key, {**status, "at": now()})
            self._told = status
        except StorageError as error:
            log.warning("control: %s (%s)", error.what, error.why)

    def _look(self) -> None:
        """What is asked for, where that is new, as settings and stages for the engine to take."""
        try:
            found = asked(self._work)
        except VoxstillError as error:
            if not self._blind:
                log.warning("control: not known what is asked for: %s (%s)", error.what, error.why)
            self._blind = True
            return
        self._blind = False
        if found == self._seen:
            return
        self._seen, at = found, str(found.get("at"))
        try:
            settings = applied(found.get("set", {}), self._begun.settings)
            ask = _Ask(at, settings, self._build(settings))
        except VoxstillError as error:
            self._refuse(at, error)
            return
        except Exception as error:  # a teacher of another package, or a file that somebody wrote by hand
            self._refuse(at, ConfigError("it cannot be understood", why=f"{type(error).__name__}: {error}"))
            return
        log.info("control: asked for at %s: %s", at, found.get("set"))
        self._set_level(settings.log_level)
        with self._lock:
            self._next = ask

    def _set_level(self, level: str) -> None:
        if level != monitor.level():
            monitor.set_level(level)


def _as_told(ask: _Ask) -> dict[str, Any]:
    """What a job says of the settings that it works by."""
    limits = {name: getattr(ask.settings.engine, name) for name in TAKEN["engine"]}
    return {"asked_at": ask.at, "refused": None, "teacher": ask.settings.teacher.model_dump(), "engine": limits}
