"""Which tasks there are: the names that `student.task` can have, and the definition behind each."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from voxstill.core.errors import ConfigError
from voxstill.tasks.definition import TaskDefinition

TASKS = {
    "classes": "voxstill.tasks.classification:CLASSES",
    "speakers": "voxstill.tasks.classification:SPEAKERS",
    "recognition": "voxstill.tasks.recognition:RECOGNITION",
}
"""Name -> module and object. Other packages add theirs by an entry point in the group `voxstill.tasks`."""


def find(name: str) -> TaskDefinition:
    """Return the task of that name; ConfigError where there is none or it cannot be imported."""
    if name in TASKS:
        module, _, attribute = TASKS[name].partition(":")
        return cast("TaskDefinition", getattr(importlib.import_module(module), attribute))
    plugins = _plugins()
    if name in plugins:
        try:
            return cast("TaskDefinition", plugins[name].load())
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"the task `{name}` cannot be imported", why=str(error), fix="install the package that it needs"
            ) from None
    known = names()
    near = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f"there is no task `{name}`",
        why=f"the tasks are {', '.join(known)}",
        fix=f"did you mean `{near[0]}`?" if near else "set student.task to one of them",
    )


def names() -> list[str]:
    """Return every name that `student.task` can have, ours first."""
    return [*sorted(TASKS), *sorted(set(_plugins()) - set(TASKS))]


def name_of(target: str) -> str:
    """Return the name of the task that an experiment folder or a model folder is of; `recognition` where none knows."""
    plugins = sorted(set(_plugins()) - set(TASKS))
    return next(name for name in (*plugins, *TASKS) if find(name).recognizes(target))


def _plugins() -> dict[str, EntryPoint]:
    return {entry_point.name: entry_point for entry_point in entry_points(group="voxstill.tasks")}
