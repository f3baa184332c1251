"""Registry of teachers: names of the `teacher` section, and construction from it."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import cast

from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.teachers.teacher import Teacher

TEACHERS = {
    "pocketsphinx": "voxstill.teachers.pocketsphinx:PocketSphinxTeacher",
    "transformers": "voxstill.teachers.transformers:TransformersTeacher",
    "faster-whisper": "voxstill.teachers.faster_whisper:FasterWhisperTeacher",
    "sherpa": "voxstill.teachers.sherpa:SherpaTeacher",
    "openai": "voxstill.teachers.openai:OpenAITeacher",
    "vllm": "voxstill.teachers.vllm:VllmTeacher",
    "reference": "voxstill.teachers.reference:ReferenceTeacher",
    "consensus": "voxstill.teachers.consensus:ConsensusTeacher",
    "echo": "voxstill.teachers.echo:EchoTeacher",
}
"""Name -> module and class. Other packages register theirs by an entry point in the group `voxstill.teachers`."""
EXTRAS = {"faster-whisper": ("faster_whisper", "whisper"), "sherpa": ("sherpa_onnx", "sherpa")}
"""Name -> the package that it needs, and the extra of voxstill that installs it."""
FORMER_METHODS = {"load": "open", "transcribe_batch": "hear"}
"""Method of a teacher -> what it was called before, for the message to a package that still has the old name."""


def create(section: config.Teacher) -> Teacher:
    """Construct the teacher of the section with validated options, loading nothing; ConfigError for wrong options."""
    return find(section.name)(options(section))


def options(section: config.Teacher) -> config.Section:
    """The options of the teacher that the section names, defaults among them; ConfigError where they are wrong."""
    return config.validated(find(section.name).Options, section.model_extra or {}, prefix="teacher.")


def find(name: str) -> type[Teacher]:
    """Import the class of a teacher; ConfigError for an unknown name or a package that is not installed."""
    package, extra = EXTRAS.get(name, ("", ""))
    if package and find_spec(package) is None:
        raise ConfigError(
            f"the teacher `{name}` is not installed",
            why=f"there is no package `{package}` here",
            fix=f"pip install 'voxstill[{extra}]'",
        )
    if name in TEACHERS:
        module, _, attribute = TEACHERS[name].partition(":")
        try:
            return cast("type[Teacher]", getattr(importlib.import_module(module), attribute))
        except ImportError as error:
            raise _import_error(name, error) from None
    plugins = _plugins()
    if name in plugins:
        try:
            teacher = plugins[name].load()
        except (ImportError, AttributeError) as error:
            raise _import_error(name, error) from None
        return _checked(name, teacher)
    known_names = names()
    close_names = difflib.get_close_matches(name, known_names, n=1)
    raise ConfigError(
        f"there is no teacher `{name}`",
        why=f"the teachers are {', '.join(known_names)}",
        fix=f"did you mean `{close_names[0]}`?" if close_names else "set teacher.name to one of them",
    )


def names() -> list[str]:
    """Names of all teachers, built-in ones first."""
    return [*TEACHERS, *sorted(set(_plugins()) - set(TEACHERS))]


def all_options() -> list[tuple[str, type[config.Section]]]:
    """Name and options class of every teacher whose package is installed."""
    options = []
    for name in names():
        try:
            options.append((name, find(name).Options))
        except ConfigError:
            continue
    return options


def _checked(name: str, teacher: type) -> type[Teacher]:
    """A class of another package that has the methods of the protocol; ConfigError that names those it lacks."""
    missing = [method for method in ("revision", "load", "transcribe_batch", "close") if not hasattr(teacher, method)]
    if missing:
        formerly = [f"`{old}` is now `{new}`" for new, old in FORMER_METHODS.items() if new in missing]
        raise ConfigError(
            f"the teacher `{name}` does not fit this version of voxstill",
            why=f"`{teacher.__name__}` has no method {' and no '.join(f'`{method}`' for method in missing)}",
            fix="; ".join(["give it the methods of `voxstill.teachers.teacher.Teacher`", *formerly]),
        )
    return cast("type[Teacher]", teacher)


def _plugins() -> dict[str, EntryPoint]:
    return {entry_point.name: entry_point for entry_point in entry_points(group="voxstill.teachers")}


def _import_error(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the teacher `{name}` cannot be imported", why=str(error), fix="install the package that it needs"
    )
