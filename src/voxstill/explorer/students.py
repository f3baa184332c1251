"""What students wrote of utterances, from the results of their evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxstill.explorer.columns import Column
from voxstill.storage.arrays import arrow_array

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StudentText:
    """The text of a student with its errors against the human text."""

    text: str
    errors: int
    words: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentTexts:
    """What one student wrote in an evaluation, by the id of the utterance; `name` is that of the experiment."""

    number: int
    name: str
    rows: Mapping[str, StudentText]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its columns: text, errors, words of the human text, and errors per word."""
        return (
            Column(name=self.prefix, title=self.name, kind="text", place="students"),
            self._number("errors", "errors", max((row.errors for row in self.rows.values()), default=0)),
            self._number("words", "words of the human text", max((row.words for row in self.rows.values()), default=0)),
            self._number("wer", "errors per word", 1),
        )

    @property
    def prefix(self) -> str:
        """The name of the column of its texts; those of the others begin with it."""
        return f"student_{self.number}"

    def values(self, ids: Sequence[str]) -> dict[str, pa.Array]:
        """The values of `columns` by name, for utterances in a row; null where it wrote nothing."""
        import pyarrow as pa

        known = [self.rows.get(id_) for id_ in ids]
        return {
            self.prefix: arrow_array([row and row.text for row in known], pa.string()),
            f"{self.prefix}_errors": arrow_array([row and row.errors for row in known], pa.int64()),
            f"{self.prefix}_words": arrow_array([row and row.words for row in known], pa.int64()),
            f"{self.prefix}_wer": arrow_array(
                [row.errors / row.words if row is not None and row.words else None for row in known], pa.float64()
            ),
        }

    def _number(self, name: str, title: str, high: float) -> Column:
        return Column(
            name=f"{self.prefix}_{name}",
            title=f"{title}, {self.name}",
            kind="number",
            place="students",
            low=0,
            high=max(1, high),
        )
