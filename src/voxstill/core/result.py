"""What steps and commands return: frozen dataclasses whose fields are the keys of their JSON, there and back."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from voxstill.core.errors import DataError
from voxstill.core.terminal import one_line

NOT_IN_JSON = {"in_json": False}
"""Metadata of a field that only `to_text()` shows; it has a default, and two results may differ in it and be equal."""
T = TypeVar("T")
_PLAIN: Mapping[object, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}
"""The types of JSON values that fit a hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Base of what has a JSON, `to_dict()`, and a text for people, `to_text()`.

    The fields are the keys of the JSON, in their order. A field whose default is None is left out where it is None.
    """

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON takes them; nested results are dicts, too."""
        figures: dict[str, object] = {}
        for member in dataclasses.fields(self):
            value = getattr(self, member.name)
            if member.metadata.get("in_json", True) and not (value is None and member.default is None):
                figures[member.name] = to_json(value)
        return figures

    def to_text(self) -> str:
        """Aligned lines, one for each key; nested values are a line of JSON."""
        return aligned(self.to_dict())


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Figures):
    """Base of the results of steps and commands: `to_dict()` is what `--json` prints, `to_text()` what people read.

    `from_dict` reads that JSON back to an equal result.
    """

    @property
    def exit_code(self) -> int:
        """0, or the code of a command that did its work although a part of its input was bad."""
        return 0

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> Self:
        """The result that `to_dict` wrote, in this version or another: keys that are not fields are passed over.

        DataError if a field that has no default is missing.
        """
        return read(cls, figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult(Result):
    """Figures of a report whose keys depend on the data, with the text that people read instead of them."""

    figures: Mapping[str, object]
    text: str | None = field(default=None, compare=False, metadata=NOT_IN_JSON)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", to_json(self.figures))

    def to_dict(self) -> dict[str, object]:
        """The figures."""
        return dict(self.figures)

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> Self:
        """The same figures, without their text."""
        return cls(figures=figures)

    def to_text(self) -> str:
        """The text, or the figures as aligned lines."""
        return aligned(self.figures) if self.text is None else self.text


def read(result_type: type[T], figures: Mapping[str, Any]) -> T:
    """A dataclass from its JSON, as `Result.from_dict` says; those within it, and tuples, by its type hints."""
    hints = _hints(result_type)
    try:
        return result_type(**{name: _rebuilt(hint, figures[name]) for name, hint in hints.items() if name in figures})
    except TypeError as error:
        raise DataError(
            f"these are not {result_type.__name__}: {json.dumps(dict(figures), ensure_ascii=False, default=str)[:200]}",
            code="table-broken",
            why=str(error).partition(" ")[2],
            fix="they were written by another program, or by a newer version: remove them and run the step again",
        ) from None


def _hints(result_type: type[Any]) -> dict[str, object]:
    """The type of each field."""
    hints = get_type_hints(result_type)
    return {member.name: hints[member.name] for member in dataclasses.fields(result_type)}


def _rebuilt(hint: object, value: object) -> object:
    """The value of a field from its JSON, by its type hint; TypeError if it does not fit."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        members = [member for member in arguments if member is not types.NoneType]
        return value if value is None or len(members) > 1 else _rebuilt(members[0], value)
    if hint in _PLAIN and not (isinstance(value, _PLAIN[hint]) and isinstance(value, bool) == (hint is bool)):
        raise TypeError(f"{hint}: {value!r} is not of type {getattr(hint, '__name__', hint)}")
    if origin in (Mapping, Sequence) and not isinstance(value, Mapping if origin is Mapping else list | tuple):
        raise TypeError(f"{origin.__name__}: {value!r} is not a {origin.__name__.lower()}")
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise TypeError(f"{hint.__name__}: {value!r} is not a mapping")
        return hint.from_dict(value) if issubclass(hint, Result) else read(hint, value)
    if isinstance(value, Mapping) and len(arguments) == 2:
        return {name: _rebuilt(arguments[1], item) for name, item in value.items()}
    if not isinstance(value, list) or not arguments:
        return value
    if origin is not tuple:
        return [_rebuilt(arguments[0], item) for item in value]
    of = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
    if len(of) != len(value):
        raise TypeError(f"tuple: {value!r} are not {len(of)} values")
    return tuple(_rebuilt(item_hint, item) for item_hint, item in zip(of, value, strict=True))


def to_json(value: object) -> object:
    """A value as `json.dumps` takes it: results and mappings as dicts, sequences as lists.

    JSON has neither NaN nor infinity: they are null.
    """
    if isinstance(value, Figures):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_json(dataclasses.asdict(value))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def aligned(figures: Mapping[str, object]) -> str:
    """Figures as aligned lines; nested ones are a line of JSON."""
    width = max((len(key) for key in figures), default=0)

    def show(value: object) -> str:
        if isinstance(value, float):
            return f"{value:,.4f}".rstrip("0").rstrip(".")
        return one_line(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return "\n".join(f"{key:<{width}}  {show(value)}" for key, value in figures.items())
