"""What the configuration says of itself: every option as a row, and errors that name the option and a suggestion."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import logging
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from voxstill.core.config.section import extra, former_names, section_of
from voxstill.core.errors import ConfigError
from voxstill.core.result import Result

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Result):
    """One row of `voxstill explain`."""

    path: str
    type: str
    unit: str
    default: object
    limits: str
    meaning: str


def options_of(kind: type[BaseModel], prefix: str = "") -> Iterator[Option]:
    """Every option below `kind`, in the order it is written."""
    meanings = _docstrings(kind)
    for name, field in kind.model_fields.items():
        path = f"{prefix}{name}"
        if (section := section_of(field)) is not None:
            yield from options_of(section, f"{path}.")
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        yield Option(
            path=path,
            type=_type_name(field.annotation),
            unit=str(extra(field, "unit") or ""),
            default=default,
            limits=", ".join(_limit(rule) for rule in field.metadata if _limit(rule)),
            meaning=" ".join(meanings.get(name, "").split()),
        )


@functools.cache
def _docstrings(kind: type[BaseModel]) -> dict[str, str]:
    """The string below each attribute in the source of a class and of those above it (PEP 257, "attribute docstrings").

    Pydantic can read them, too, but does so whenever the class is imported.
    """
    strings: dict[str, str] = {}
    for member in reversed(kind.__mro__):
        if member is BaseModel or not issubclass(member, BaseModel):
            continue
        try:
            [definition] = ast.parse(textwrap.dedent(inspect.getsource(member))).body
        except (OSError, TypeError):  # it has no file: it was typed at a prompt
            continue
        assert isinstance(definition, ast.ClassDef)
        for attribute, below in itertools.pairwise(definition.body):
            match attribute, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    strings[name] = text
    return strings


def _type_name(kind: object) -> str:
    if kind is type(None):
        return "null"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_type_name(member) for member in get_args(kind))
    if get_origin(kind) is Literal:
        return " | ".join(str(member) for member in get_args(kind))
    if get_origin(kind) is list:
        return f"list of {_type_name(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "mapping of {} to {}".format(*map(_type_name, get_args(kind)))
    if get_origin(kind) is Annotated:
        return _type_name(get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"{{{', '.join(kind.model_fields)}}}"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}.get(
        getattr(kind, "__name__", str(kind)), str(kind)
    )


def _limit(rule: object) -> str:
    for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
        if hasattr(rule, name):
            return f"{sign} {getattr(rule, name)}"
    return ""


S = TypeVar("S", bound=BaseModel)


def validated(kind: type[S], tree: Mapping[str, object], prefix: str = "") -> S:
    """The section, or a ConfigError that names the option by its dotted path, the reason and a suggestion."""
    try:
        return kind.model_validate(renamed(kind, tree, prefix))
    except ValidationError as error:
        raise in_words(kind, error, prefix) from None


_TRIED = ("list[", "literal[", "dict[")
"""How pydantic begins the name of a member of a union that it tried."""
log = logging.getLogger("voxstill")  # that of `monitor`, which may import this module


_WARNED_OF: set[str] = set()
"""Former names of options, by their path, that this process has been warned of."""


def renamed(kind: type[BaseModel], tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """The options by the names of today; each former name is warned of once. ConfigError where both names are set."""
    former: dict[str, str] = {}
    current = _renamed(kind, tree, prefix, former)
    if new := {other: name for other, name in former.items() if other not in _WARNED_OF}:
        _WARNED_OF.update(new)
        names = ", ".join(f"`{other}` is now `{name}`" for other, name in new.items())
        log.warning("config: renamed options: %s. The old names still work", names)
    return current


def _renamed(
    kind: type[BaseModel], tree: Mapping[str, object], prefix: str, former: dict[str, str]
) -> dict[str, object]:
    """The options by the names of today; what had another name is added to `former`, by its path."""
    current: dict[str, object] = {}
    names = {other: name for name, others in former_names(kind).items() for other in others}
    for key, value in tree.items():
        name = names.get(key, key)
        if name in current:
            raise both_names(f"{prefix}{name}", [f"{prefix}{other}" for other in former_names(kind)[name]])
        if name != key:
            former[f"{prefix}{key}"] = f"{prefix}{name}"
        field = kind.model_fields.get(name)
        section = None if field is None else section_of(field)
        if section is not None and isinstance(value, Mapping):
            current[name] = _renamed(section, value, f"{prefix}{name}.", former)
        elif section is not None and isinstance(value, list):
            current[name] = [
                _renamed(section, member, f"{prefix}{name}.", former) if isinstance(member, Mapping) else member
                for member in value
            ]
        else:
            current[name] = value
    return current


def both_names(name: str, former: Sequence[str]) -> ConfigError:
    """The error for an option that is set by its name and by a former name too."""
    return ConfigError(
        f"`{name}` is set twice, once by its former name",
        code="option-conflict",
        why=f"{' and '.join(f'`{other}`' for other in former)} was renamed to `{name}`",
        fix=f"keep only `{name}`",
    )


def in_words(kind: type[BaseModel], error: ValidationError, prefix: str = "") -> ConfigError:
    """The ConfigError for the first problem: the option by its dotted path, the reason and a suggestion."""
    problems = error.errors()
    first = problems[0]
    location = _location(first)
    dotted = prefix + ".".join(location)
    known = {entry.path.removeprefix(prefix): entry for entry in options_of(kind, prefix)}
    num_more = len({(*_location(problem), *_places(problem)) for problem in problems}) - 1
    more = f" ({num_more} more problems follow)" if num_more else ""
    if places := _places(first):
        more = f" in entry {places[0] + 1}{more}"  # of a list of sections
    section = dotted.rpartition(".")[0].partition(".")[0]
    explain = f"voxstill explain {section}" if section else "voxstill explain"
    if first["type"] == "extra_forbidden":
        return ConfigError(
            f"unknown option `{dotted}`{more}",
            code="unknown-option",
            why="an unknown key would be ignored silently",
            fix=suggestion(dotted.removeprefix(prefix), known, prefix) or f"see {explain}",
        )
    value = first.get("input")
    option = dotted.removeprefix(prefix).rpartition(".")[0]
    explained = known.get(dotted.removeprefix(prefix)) or known.get(option)  # that of a mapping, such as `plan.weights`
    if first["type"] == "missing":
        return ConfigError(
            f"option `{dotted}` is not set{more}",
            code="option-missing",
            why=explained.meaning if explained else "it has no default",
            fix=f"add it; see {explain}",
        )
    if explained is None:  # an entry of an option that is a mapping
        holder = next((name for name in known if dotted.startswith(f"{prefix}{name}.")), None)
        explained, dotted = (known[holder], f"{prefix}{holder}") if holder else (None, dotted)
    if explained is None:
        return ConfigError(
            f"`{dotted}` is not a section of options{more}",
            code="config-unreadable",
            why=f"it is {value!r}",
            fix=f"write it as a mapping; see {explain}",
        )
    wanted = (
        explained.type
        + (f", {explained.limits}" if explained.limits else "")
        + (f", in {explained.unit}" if explained.unit else "")
    )
    fix = f"give {wanted}"
    if isinstance(value, str):
        near = difflib.get_close_matches(value, explained.type.split(" | "), n=1)
        fix = f"did you mean `{near[0]}`? {fix}" if near else fix
    why = str(first["msg"]).removeprefix("Value error, ")  # which pydantic puts before words of ours
    if first["type"] == "string_pattern_mismatch":
        why = explained.meaning
    return ConfigError(f"option `{dotted}` cannot be {value!r}{more}", code="option-value", why=why, fix=fix)


def _location(problem: ErrorDetails) -> list[str]:
    """The names on the way to an option, without the member of a union that pydantic tried."""
    location = [str(part) for part in _own(problem) if isinstance(part, str) and not part.startswith(_TRIED)]
    return location[:-1] if location and location[-1] in ("str", "int", "float") else location


def _own(problem: ErrorDetails) -> tuple[int | str, ...]:
    """The way to a value; to its mapping where it is a key."""
    way = problem["loc"]
    return way[:-2] if way[-1:] == ("[key]",) else way


def _places(problem: ErrorDetails) -> list[int]:
    """The places in lists on the way to an option."""
    return [part for part in _own(problem)[:-1] if isinstance(part, int)]


def suggestion(dotted: str, known: Iterable[str], prefix: str = "") -> str:
    """A question for the option or section below `prefix` that `dotted` is probably to be; empty where none is near."""
    names = list(known)
    leaf = dotted.rpartition(".")[2]
    same_leaf = [name for name in names if name.rpartition(".")[2] == leaf]
    sections = {name.partition(".")[0] for name in names if "." in name}
    near = (
        same_leaf
        or difflib.get_close_matches(dotted, [*names, *sections], n=1, cutoff=0.6)
        or [
            n
            for n in names
            if n.rpartition(".")[2] in difflib.get_close_matches(leaf, [m.rpartition(".")[2] for m in names], n=1)
        ]
    )
    return f"did you mean `{prefix}{near[0]}`?" if near else ""
