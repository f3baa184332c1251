"""Every option, those of teachers and diarization engines included, from where it is defined."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.core.explanations import explanations
from voxstill.core.monitor import log
from voxstill.core.plugins import Registry
from voxstill.diarization.registry import ENGINES
from voxstill.diarization.turns import DiarizationEngine
from voxstill.teachers.registry import TEACHERS
from voxstill.teachers.teacher import Teacher


def explained(section: str | None) -> list[config.Option]:
    """Return every option of a section, or that option, or all of them; those of teachers stand below `teacher`.

    A former name stands for the one of today. ConfigError with similar names, codes of errors included, where there is
    no such section or option.
    """
    rows = list(_options())
    if section is None:
        return rows
    current = config.current_name(section)
    chosen = [row for row in rows if row.path == current or row.path.startswith(f"{current}.")]
    if not chosen:
        raise _unknown(section, [row.path for row in rows])
    return chosen


def _unknown(dotted: str, paths: Sequence[str]) -> ConfigError:
    section, dot, name = dotted.partition(".")
    names = list(dict.fromkeys(path.removeprefix(f"{section}.") for path in paths if path.startswith(f"{section}.")))
    if dot and names:
        near = [f"`{section}.{match}`" for match in difflib.get_close_matches(name, names)]
        return ConfigError(
            f"unknown option `{dotted}`",
            code="unknown-option",
            why=f"the options of `{section}` are {', '.join(names)}",
            fix=f"did you mean {' or '.join(near)}?" if near else f"see voxstill explain {section}",
        )
    codes = explanations()
    if "-" in dotted:  # as in most codes, and in no name of an option
        return ConfigError(
            f"unknown error code `{dotted}`",
            code="unknown-name",
            why="the code of an error is in its last line, after `more:`",
            fix=config.suggestion(dotted, codes) or "copy it from there; the page of errors lists all codes",
        )
    sections = sorted({path.partition(".")[0] for path in paths})
    return ConfigError(
        f"unknown section `{section}`",
        code="unknown-option",
        why=f"the sections are {', '.join(sections)}",
        fix=config.suggestion(dotted, [*paths, *codes]) or "give one of them, or none to see all",
    )


def _with_tasks(row: config.Option) -> config.Option:
    """The option `student.task` with the names that it can have, those of other packages included."""
    from voxstill.tasks import registry as tasks

    return replace(row, limits=f"one of {', '.join(tasks.names())}")


def _options() -> Iterator[config.Option]:
    for row in config.options():
        yield _with_tasks(row) if row.path == "student.task" else row
        if row.path == "teacher.name":
            for name, settings in config.TEACHER_PRESETS.items():
                yield config.Option(
                    path="teacher.preset",
                    type="text",
                    unit="",
                    default=None,
                    limits="",
                    meaning=f"`{name}` stands for "
                    + ", ".join(f"{key}: {value}" for key, value in settings.items())
                    + ".",
                )
            yield from _options_of(TEACHERS)
        if row.path == "diarize.name":
            yield from _options_of(ENGINES)


def _options_of(registry: Registry[type[Teacher]] | Registry[type[DiarizationEngine]]) -> Iterator[config.Option]:
    """The options of all teachers or engines; a plug-in whose code does not say them is left out with a warning."""
    prefix = f"{registry.option.partition('.')[0]}."
    for name, kind in registry.all():
        try:
            rows = [replace(row, meaning=f"({name}) {row.meaning}") for row in config.options(kind.Options, prefix)]
            rows = [replace(row, default=json.loads(json.dumps(row.default, default=str))) for row in rows]
        except Exception as error:
            if name in registry.built_in():
                raise
            why = f"{type(error).__name__}: {error}"
            log.warning("left out: the options of the %s `%s`: %s", registry.noun, name, why)
        else:
            yield from rows
