"""The result of an evaluation: figures, and files beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from voxstill.core.result import NOT_IN_JSON, Result, aligned, to_json
from voxstill.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Result):
    """The figures of one split, `split` among them, and files to be kept beside them, such as a page.

    `detail` names the figures that are too long for a terminal.
    """

    figures: Mapping[str, Any]
    detail: tuple[str, ...] = field(default=(), compare=False, metadata=NOT_IN_JSON)
    files: Mapping[str, str] = field(default_factory=dict, compare=False, metadata=NOT_IN_JSON)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", to_json(self.figures))

    def to_dict(self) -> dict[str, object]:
        """The figures."""
        return dict(self.figures)

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> Self:
        """The same figures, without files."""
        return cls(figures=figures)

    def to_text(self) -> str:
        """The figures that fit on a terminal."""
        return aligned({name: value for name, value in self.figures.items() if name not in self.detail})


def write(folder: Path, evaluation: Evaluation) -> None:
    """Write the files of an evaluation to a folder, and then its figures as `<split>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(str(folder))
    for name, text in evaluation.files.items():
        store.replace(name, text.encode())
    figures = json.dumps(evaluation.figures, indent=1, ensure_ascii=False) + "\n"
    store.replace(f"{evaluation.figures['split']}.json", figures.encode())
