"""Every option, those of the teachers included, from where it is defined."""

from __future__ import annotations

from collections.abc import Iterator

from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.teachers import registry


def explained(section: str | None) -> list[config.Option]:
    """Return every option of a section, or all of them; the options of teachers stand below `teacher`."""
    rows = list(_options())
    if section is None:
        return rows
    chosen = [row for row in rows if row.path == section or row.path.startswith(f"{section}.")]
    if not chosen:
        sections = sorted({row.path.partition(".")[0] for row in rows})
        raise ConfigError(
            f"there is no section `{section}`",
            why=f"the sections are {', '.join(sections)}",
            fix="name one of them, or none to see all",
        )
    return chosen


def _options() -> Iterator[config.Option]:
    for row in config.options():
        yield row
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
            for name, options in registry.all_options():
                for entry in config.options(options, "teacher."):
                    yield config.Option(
                        path=entry.path,
                        type=entry.type,
                        unit=entry.unit,
                        default=entry.default,
                        limits=entry.limits,
                        meaning=f"({name}) {entry.meaning}",
                    )
