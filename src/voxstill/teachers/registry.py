"""Teachers by the name of the `teacher` section: each is a file beside this one, or another package's entry point."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from typing import get_args

from pydantic import SecretBytes, SecretStr

from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.core.plugins import Misfit, Registry
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
    TEACHERS.check_name(name)
    return _find_built_in(name) if name in TEACHERS.built_in() else TEACHERS.find_plugin(name)


def all_options() -> list[tuple[str, type[config.Section]]]:
    """Name and options class of every teacher whose package is installed; a broken plug-in is left out, and named."""
    TEACHERS.warn_of_taken_names()
    options = []
    for name in TEACHERS.built_in():
        with contextlib.suppress(ConfigError):
            options.append((name, _find_built_in(name).Options))
    for name in TEACHERS.plugins():
        try:
            options.append((name, TEACHERS.find_plugin(name).Options))
        except ConfigError as error:
            log.warning("left out: %s: %s", error.what, error.why)
    return options


def _find_built_in(name: str) -> type[Teacher]:
    """Import a teacher of voxstill; ConfigError where the package that it `needs` is not installed."""
    teacher = TEACHERS.find_built_in(name)
    package, extra = getattr(teacher, "needs", ("", ""))
    if package and find_spec(package) is None:
        raise ConfigError(
            f"the teacher `{name}` is not installed",
            why=f"there is no package `{package}` here",
            fix=f"pip install 'voxstill[{extra}]'",
        )
    return teacher


def _misfit(teacher: object) -> Misfit | None:
    """What of the protocol a teacher lacks."""
    fix = "give it the methods of `voxstill.teachers.teacher.Teacher`"
    if not isinstance(teacher, type):
        return Misfit(f"{teacher!r} is no class", "name the class of the teacher")
    if missing := [method for method in METHODS if not callable(getattr(teacher, method, None))]:
        formerly = [f"`{old}` is now `{new}`" for new, old in FORMER_METHODS.items() if new in missing]
        why = f"`{teacher.__name__}` has no method {' and no '.join(f'`{method}`' for method in missing)}"
        return Misfit(why, "; ".join([fix, *formerly]))
    own_options = getattr(teacher, "Options", None)
    if not (isinstance(own_options, type) and issubclass(own_options, config.Section)):
        why = f"`{teacher.__name__}.Options` is no class of options"
        return Misfit(why, "give it a class `Options` below `voxstill.core.config.Section`")
    if not hasattr(teacher, "reads_texts"):
        why = f"`{teacher.__name__}` does not say whether it `reads_texts`"
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
