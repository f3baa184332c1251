"""Teachers by the name of the `teacher` section: each is a file beside this one, or another package's entry point."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import get_args

from pydantic import SecretBytes, SecretStr

from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.core.plugins import Misfit, Registry, class_misfit
from voxstill.storage.redaction import redact_options
from voxstill.teachers.teacher import Teacher

METHODS = ("revision", "load", "transcribe_batch", "close")
FORMER_METHODS = {"load": "open", "transcribe_batch": "hear"}
"""Method of a teacher -> what it was called before, for the message to a package that still has the old name."""


def create(section: config.Teacher) -> Teacher:
    """Construct the teacher of the section with validated options, loading nothing; ConfigError for wrong options."""
    return find(section.name)(options(section))


def options(section: config.Teacher) -> config.Section:
    """The options of the teacher that the section names, defaults among them; ConfigError where they are wrong."""
    return config.validated(find(section.name).Options, section.model_extra or {}, prefix="teacher.")


def shown(section: config.Teacher) -> dict[str, object]:
    """The options that are set, as they are written into tables: `***` for what is a secret by its name or its type."""
    secret: list[str] = []
    with contextlib.suppress(ConfigError):  # a teacher that is not installed here
        fields = find(section.name).Options.model_fields
        secret = [name for name, field in fields.items() if {SecretStr, SecretBytes} & _types(field.annotation)]
    return redact_options(section.model_dump(), secret)


def _types(annotation: object) -> set[object]:
    """A type and those within it: `SecretStr` and None of `SecretStr | None`."""
    return {annotation}.union(*map(_types, get_args(annotation)))


def find(name: str) -> type[Teacher]:
    """Import the class of a teacher; ConfigError for an unknown name or a package that is not installed."""
    return TEACHERS.find_installed(name)


def _misfit(teacher: object) -> Misfit | None:
    """What of the protocol a teacher lacks."""
    misfit = class_misfit(teacher, METHODS, "voxstill.teachers.teacher.Teacher")
    if misfit is not None:
        formerly = [f"`{old}` is now `{new}`" for new, old in FORMER_METHODS.items() if hasattr(teacher, old)]
        return replace(misfit, fix="; ".join([misfit.fix, *formerly]))
    if not hasattr(teacher, "reads_texts"):
        why = f"`{getattr(teacher, '__name__', teacher)}` does not define `reads_texts`"
        return Misfit(why, "set `reads_texts: ClassVar[bool] = False`")
    return None


TEACHERS: Registry[type[Teacher]] = Registry(
    noun="teacher",
    option="teacher.name",
    package="voxstill.teachers",
    group="voxstill.teachers",
    misfit=_misfit,
    other_files=("limited_http", "registry", "teacher", "vllm_figures"),
)
