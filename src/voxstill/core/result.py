"""What steps and commands return: frozen dataclasses whose fields are the keys of their JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from voxstill.core.errors import DataError

NOT_IN_JSON = {"in_json": False}
"""Metadata of a field that only `to_text()` shows."""
R = TypeVar("R", bound="Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Base of the results of steps and commands: `to_dict()` is what `--json` prints, `to_text()` what people read.

    The fields are the keys of the JSON, in their order. A field whose default is None is left out where it is None.
    """

    @property
    def exit_code(self) -> int:
        """0, or the code of a command that did its work although a part of its input was bad."""
        return 0

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON takes them; nested results are dicts, too."""
        figures: dict[str, object] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("in_json", True) and not (value is None and field.default is None):
                figures[field.name] = to_json(value)
        return figures

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> Self:
        """The result that `to_dict` wrote, in this version or another: keys that are no fields are passed over.

        DataError where a field that has no default is missing.
        """
        return read(cls, figures)

    def to_text(self) -> str:
        """Aligned lines, one for each key; nested values are a line of JSON."""
        return aligned(self.to_dict())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult(Result):
    """Figures of a report whose keys depend on the data, with the text that people read instead of them."""

    figures: Mapping[str, object]
    text: str | None = None

    def to_dict(self) -> dict[str, object]:
        """The figures."""
        return dict(self.figures)

    def to_text(self) -> str:
        """The text, or the figures as aligned lines."""
        return aligned(self.figures) if self.text is None else self.text


def read(result_type: type[R], figures: Mapping[str, Any]) -> R:
    """A result from its JSON, as `Result.from_dict` says."""
    names = [field.name for field in dataclasses.fields(result_type)]
    try:
        return result_type(**{name: figures[name] for name in names if name in figures})
    except TypeError as error:
        raise DataError(
            f"these are no {result_type.__name__}: {json.dumps(dict(figures), ensure_ascii=False)[:200]}",
            why=str(error).partition(" ")[2],
            fix="they were written by another program, or by a newer version: remove them and run the step again",
        ) from None


def to_json(value: object) -> object:
    """A value as `json.dumps` takes it: results and mappings as dicts, sequences as lists."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def aligned(figures: Mapping[str, object]) -> str:
    """Figures as aligned lines; nested ones are a line of JSON."""
    width = max((len(key) for key in figures), default=0)

    def show(value: object) -> str:
        if isinstance(value, float):
            return f"{value:,.4f}".rstrip("0").rstrip(".")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return "\n".join(f"{key:<{width}}  {show(value)}" for key, value in figures.items())
