"""Which teachers there are: the names of the `teacher` section, and how one is made from it."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import cast

from voxstill import config
from voxstill.errors import ConfigError
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
"""Name -> module and class. Other packages add theirs by an entry point in the group `voxstill.teachers`."""
EXTRAS = {"faster-whisper": ("faster_whisper", "whisper"), "sherpa": ("sherpa_onnx", "sherpa")}
"""Name -> the module that it runs on, and the extra of voxstill that brings it."""


def make(section: config.Teacher) -> Teacher:
    """The teacher that the section names, its options checked and nothing loaded; ConfigError where they are wrong."""
    return find(section.name)(options(section))


def options(section: config.Teacher) -> config.Section:
    """The options of the teacher that the section names, defaults among them; ConfigError where they are wrong."""
    return config.validated(find(section.name).Options, section.model_extra or {}, prefix="teacher.")


def find(name: str) -> type[Teacher]:
    """The class behind a teacher's name; ConfigError where there is none or its package is not installed."""
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
            raise _unusable(name, error) from None
    foreign = _foreign()
    if name in foreign:
        try:
            return cast("type[Teacher]", foreign[name].load())
        except (ImportError, AttributeError) as error:
            raise _unusable(name, error) from None
    known = names()
    near = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f"there is no teacher `{name}`",
        why=f"the teachers are {', '.join(known)}",
        fix=f"did you mean `{near[0]}`?" if near else "set teacher.name to one of them",
    )


def names() -> list[str]:
    """Every teacher that can be named, ours first."""
    return [*TEACHERS, *sorted(set(_foreign()) - set(TEACHERS))]


def all_options() -> list[tuple[str, type[config.Section]]]:
    """Name and options of every teacher whose package is installed."""
    found = []
    for name in names():
        try:
            found.append((name, find(name).Options))
        except ConfigError:
            continue
    return found


def _foreign() -> dict[str, EntryPoint]:
    return {each.name: each for each in entry_points(group="voxstill.teachers")}


def _unusable(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the teacher `{name}` cannot be imported", why=str(error), fix="install the package that it needs"
    )
