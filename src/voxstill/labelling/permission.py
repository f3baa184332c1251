"""What a running job may be changed to: other limits, and the teachers that it was allowed when it was started.

Everyone who can write into a work folder can write `WORK/control.json`. So the file may not decide which code runs,
which secret is read or where audio is sent: whoever starts the job decides that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.storage.redaction import is_secret
from voxstill.teachers import registry

CHANGEABLE: dict[str, tuple[str, ...]] = {
    "engine": ("workers", "teachers", "in_flight", "attempts", "lease_s"),
    "monitor": ("log_level",),
}
"""Options of a running job that can be changed besides `teacher`: any other would change what is planned, or where it
runs."""
_FIX = "end the job with SIGTERM and start it with `--allow-teacher` and this teacher: it resumes where it stopped"


def check_options(options: Mapping[str, object]) -> None:
    """Raise ConfigError if options by section name one that a running job cannot change, whatever its value."""
    for section, values in options.items() if isinstance(options, Mapping) else [("set", options)]:
        if isinstance(values, Mapping):
            names = [] if section == "teacher" else [*values]
            if section == "teacher" and (secret := [name for name in values if is_secret(str(name))]):
                raise ConfigError(
                    f"`teacher.{secret[0]}` cannot be requested",
                    code="change-refused",
                    why="it is a secret, and everyone who can read the work folder would see it",
                    fix="set it when the job starts",
                )
        elif section in ("set", "teacher", *CHANGEABLE):
            raise ConfigError(
                "the request cannot be read",
                code="change-refused",
                why=f"`{section}` is not a mapping of options",
                fix="withdraw it: voxstill control WORK --clear",
            )
        else:
            names = [""]
        for name in names:
            if name not in CHANGEABLE.get(section, ()):
                can = ", ".join(f"`{section}.{name}`" for section, names in CHANGEABLE.items() for name in names)
                raise ConfigError(
                    f"a running job cannot change `{section}.{name}`"
                    if name
                    else f"a running job cannot change `{section}`",
                    code="change-refused",
                    why=f"it can change options of `teacher`, and {can}",
                    fix="end the job with SIGTERM and start it with other options: it resumes where it stopped",
                )


def allowed_teachers(teacher: config.Teacher, texts: Sequence[str]) -> tuple[config.Teacher, ...]:
    """The teachers of `--allow-teacher`, each a name or a mapping of options in YAML; ConfigError if one is wrong.

    Options without `name` and `preset` are put over those of `teacher`. Nothing is loaded: a model may come later.
    """
    allowed = []
    for text in texts:
        value = config.tree([f"teacher={text}"])["teacher"]
        options = {"name": value} if isinstance(value, str) else value
        if not isinstance(options, Mapping):
            raise ConfigError(
                f"`--allow-teacher {text}` is not a teacher",
                code="option-value",
                why="it is neither a name nor a mapping of options",
                fix="write it as YAML: --allow-teacher '{name: transformers, model: exp/mine}'",
            )
        allowed.append(config.validated(config.Teacher, over(teacher.model_dump(), options), "teacher."))
        registry.options(allowed[-1])
    return tuple(allowed)


def over(before: Mapping[str, object], options: Mapping[str, object]) -> Mapping[str, object]:
    """Options of a teacher over those before; a newly named teacher keeps none of these."""
    is_another = bool({"name", "preset"} & options.keys())
    return options if is_another else {**before, **options}


def check_teacher(teacher: config.Teacher, allowed: Sequence[config.Teacher]) -> None:
    """Raise ConfigError unless the teacher is one of the allowed, but for numbers that change its pace alone.

    A plug-in is imported only where its name is allowed; no teacher is made.
    """
    registry.TEACHERS.check_name(teacher.name)
    changes = [_changes(teacher, other) for other in allowed if other.name == teacher.name]
    if not changes:
        raise ConfigError(
            f"the job does not allow the teacher `{teacher.name}`",
            code="change-refused",
            why=f"at its start these were allowed: {', '.join(f'`{name}`' for name in _names(allowed))}",
            fix=_FIX,
        )
    if fewest := min(changes, key=len):
        raise ConfigError(
            f"the job does not allow another {', '.join(f'`teacher.{name}`' for name in fewest)}",
            code="change-refused",
            why="without permission only numeric options that change nothing but the speed can be changed"
            + (f": {', '.join(f'`teacher.{name}`' for name in pace)}" if (pace := _paced(teacher)) else ""),
            fix=_FIX,
        )


def _names(teachers: Sequence[config.Teacher]) -> list[str]:
    return list(dict.fromkeys(teacher.name for teacher in teachers))


def _changes(teacher: config.Teacher, allowed: config.Teacher) -> list[str]:
    """The options, defaults among them, in which a teacher is not what is allowed.

    A number can slow the work down, but names no file, host or variable: whatever else is marked `pace` may.
    """
    wanted, base = (registry.options(section).model_dump() for section in (teacher, allowed))
    differing = [name for name in {**base, **wanted} if wanted.get(name) != base.get(name)]
    paced = _paced(allowed)
    return [name for name in differing if not (name in paced and _is_number(wanted[name]) and _is_number(base[name]))]


def _paced(teacher: config.Teacher) -> list[str]:
    """The options of a teacher that are marked `pace`."""
    return [name for name, field in registry.find(teacher.name).Options.model_fields.items() if config.is_pace(field)]


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
