"""A section of the configuration: options with units and former names, and the identity that recipes hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

NAMED_SECTIONS = ("engine", "teacher", "diarize")
"""Sections for which a name may stand: `engine: inline` is `engine: {name: inline}`."""


class Limits(TypedDict, total=False):
    """What a value must keep to, by the names of pydantic."""

    ge: float
    gt: float
    le: float
    lt: float
    pattern: str


def option(
    default: object = ...,
    *,
    unit: str = "",
    pace: bool = False,
    formerly: Sequence[str] = (),
    first_default: object = ...,
    also_default: Sequence[object] = (),
    **limits: Unpack[Limits],
) -> Any:
    """A pydantic field that also knows its unit, its former names, and whether it changes no more than pace or place.

    What leaves every bit of the result the same is `pace`, no part of a recipe. `formerly` begins with the oldest name.
    `first_default` is what the default was before it was changed: recipes leave that out, and hash the new one.
    `also_default` are values that make the same as the default does, as one that was it: recipes leave them out, too.
    """
    known: dict[str, Any] = {"unit": unit, "pace": pace, "formerly": list(formerly)}
    if also_default:
        known["also_default"] = list(also_default)
    if first_default is not ...:
        known["first_default"] = first_default
    return Field(default, json_schema_extra=known, **limits)


class Section(BaseModel):
    """A group of options: unknown keys, wrong types and non-finite numbers are refused; nothing changes afterwards."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        defer_build=True,  # most processes import this and build no Config: workers of Ray, the help
    )
    schema_version: ClassVar[int] = 1
    """Raised when a default, or the meaning of an option, changes: what was made before is then another thing."""


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field of a section is, or is one or a list of; None where it is an option."""
    kind: object = field.annotation
    while get_origin(field.annotation) is not list and (members := get_args(kind)):  # of `Source | list[Source]`
        kind = members[0]
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def is_pace(field: FieldInfo) -> bool:
    """Whether an option changes no more than the pace or the place, and so no recipe."""
    return bool(extra(field, "pace"))


def former_names(kind: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """The options of a section that have had other names, with these, the oldest first."""
    former = {name: tuple(extra(field, "formerly") or ()) for name, field in kind.model_fields.items()}
    return {name: formers for name, formers in former.items() if formers}


def first_defaults(kind: type[BaseModel]) -> dict[str, object]:
    """The options of a section whose default was changed, with what it was before."""
    changed = {name: field.json_schema_extra for name, field in kind.model_fields.items()}
    return {
        name: known["first_default"]
        for name, known in changed.items()
        if isinstance(known, dict) and "first_default" in known
    }


def extra(field: FieldInfo, name: str) -> Any:
    """What `option` was told of a field; None of fields of another making."""
    return field.json_schema_extra.get(name) if isinstance(field.json_schema_extra, dict) else None


def identity(section: BaseModel) -> dict[str, object]:
    """What a recipe hashes of a section: the options that change what is made and differ from their first default.

    The schema number is part of it above 1, and an option has the first name that it ever had. So neither a new option,
    a new section nor a new name changes what a recipe is. Sections within sections go the same way.
    """
    kind = type(section)
    options: dict[str, object] = {}
    first_name = {name: others[0] for name, others in former_names(kind).items()}
    first_default = first_defaults(kind)
    for name, field in kind.model_fields.items():
        value = getattr(section, name)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        default = first_default.get(name, default)
        if is_pace(field):
            continue
        if isinstance(value, BaseModel) and isinstance(default, BaseModel):
            is_default = not identity(value)
        else:
            defaults = [] if field.is_required() else [default, *(extra(field, "also_default") or ())]
            is_default = _identity_of(value) in map(_identity_of, defaults)
        if not is_default:
            options[first_name.get(name, name)] = _identity_of(value)
    version = getattr(kind, "schema_version", 1)
    return options if version == 1 else {"schema_version": version, **options}


def differences(before: BaseModel, after: BaseModel, prefix: str) -> dict[str, tuple[object, object]]:
    """The options of two equal sections that differ and change what is made: both values, by prefix and name."""
    pairs = {
        f"{prefix}{name}": (_identity_of(getattr(before, name)), _identity_of(getattr(after, name)))
        for name, field in type(before).model_fields.items()
        if not is_pace(field)
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _identity_of(value: object) -> object:
    """A value as a recipe hashes it, sections in lists and mappings by their identity."""
    if isinstance(value, BaseModel):
        return identity(value)
    if isinstance(value, Mapping):
        return {name: _identity_of(member) for name, member in value.items()}
    return [_identity_of(member) for member in value] if isinstance(value, list | tuple) else value
