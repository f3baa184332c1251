"""Tasks by the name that `student.task` says: each is a file in `definitions/`, or another package's entry point."""

from __future__ import annotations

from pathlib import Path

from voxstill.core import config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.plugins import Misfit, Registry, methods_misfit
from voxstill.decoding import exported
from voxstill.decoding.checkpoint_files import model_folder, on_hub
from voxstill.storage.rundir import RunDir
from voxstill.tasks.definition import TaskDefinition

METHODS = ("needs_labels", "build", "rebuild", "recognizes", "evaluate")
_FALLBACK = "recognition"
"""Takes a model that no task claims: it says what is wrong with it."""


def find(name: str) -> TaskDefinition:
    """Return the task of that name; ConfigError if there is none or it cannot be imported."""
    return TASKS.find(name)


def names() -> list[str]:
    """Return every name that `student.task` can have, ours first."""
    return TASKS.names()


def name_of(target: str) -> str:
    """Return the name of the task that an experiment folder or a model folder is of; `recognition` where none knows.

    An exported student is a recogniser, and no task is imported to find that out.
    """
    try:
        is_exported = exported.locate(target) is not None
    except DataError:  # it is not on the Hub, or the Hub is not there: loading it reports that
        is_exported = False
    return _FALLBACK if is_exported else _claim(target)[0]


def task_of(target: str) -> TaskDefinition:
    """Return the task that an experiment folder or a model folder is of; `recognition` where none knows."""
    return _claim(target)[1]


def _claim(target: str) -> tuple[str, TaskDefinition]:
    """The task that the configuration of an experiment names, else the first that recognizes the model.

    Plug-ins are imported only where one is named, or none of ours recognizes the model. ConfigError without a model.
    """
    TASKS.warn_of_taken_names()
    named = _named(target)
    if named in TASKS.built_in():
        model_folder(target)
        return named, TASKS.find_built_in(named)
    if named is not None:
        return named, TASKS.find(named)
    for name in TASKS.built_in():
        if (task := TASKS.find_built_in(name)).recognizes(target):
            return name, task
    broken = []
    for name in TASKS.plugins():
        try:
            if (task := TASKS.find_plugin(name)).recognizes(target):
                return name, task
        except ConfigError as error:
            log.warning("left out: %s: %s", error.what, error.why)
            broken.append(name)
        except Exception as error:  # of the code of another package, when asked about a model of a third
            log.warning("left out: the task `%s` fails on `%s`: %s: %s", name, target, type(error).__name__, error)
            broken.append(name)
    if broken:
        log.warning(
            "no task recognises `%s`, and %s could not be checked; it is loaded as a recogniser", target, _list(broken)
        )
    if not on_hub(target):
        model_folder(target)
    return _FALLBACK, TASKS.find_built_in(_FALLBACK)


def _named(target: str) -> str | None:
    """The `student.task` of an experiment; None for other folders, and where its configuration cannot be read."""
    snapshot = RunDir(Path(target)).config
    if not snapshot.is_file():
        return None
    try:
        return config.load(str(snapshot)).student.task
    except ConfigError:
        return None


def _list(tasks: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in tasks)


def _misfit(task: object) -> Misfit | None:
    """What of the protocol a task lacks."""
    if isinstance(task, type):
        return Misfit(f"`{task.__name__}` is a class", "give an object of that class")
    return methods_misfit(task, type(task), METHODS, "voxstill.tasks.definition.TaskDefinition")


TASKS: Registry[TaskDefinition] = Registry(
    noun="task",
    option="student.task",
    package="voxstill.tasks.definitions",
    group="voxstill.tasks",
    misfit=_misfit,
)
