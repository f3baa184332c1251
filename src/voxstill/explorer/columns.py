"""The columns of the joined file: what a request may name, in a white list of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ColumnKind = Literal["number", "category", "flag", "text", "id"]
"""Numbers have histograms, categories and flags are counted by value, texts are searched, ids are looked up."""
Row = Mapping[str, Any]
"""The columns of one row by their names."""
Place = Literal["rows", "students", "judgements"]
"""The table that holds a column: the joined file, or what is in memory of experiments and of judgements."""


def quoted(name: str) -> str:
    """A name as SQL has it, whatever its characters: that of a folder is part of a column's."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column by its name in SQL, with its title for people."""

    name: str
    title: str
    kind: ColumnKind
    place: Place = "rows"
    low: float | None = None
    """The low end of a histogram; None of others than numbers, and where there is no number."""
    high: float | None = None

    @property
    def sql(self) -> str:
        """The quoted name with its table."""
        return f"{self.place}.{quoted(self.name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherColumn:
    """The column in which the texts of one teacher are."""

    name: str
    teacher: str


TITLES = {
    "id": "id",
    "uri": "file",
    "channel": "channel",
    "start_ms": "start, ms",
    "end_ms": "end, ms",
    "duration_ms": "duration, ms",
    "gain_db": "gain, dB",
    "split": "split",
    "language": "language",
    "speaker": "speaker",
    "dialect": "dialect",
    "dataset": "data set",
    "human": "human text",
    "confidence": "confidence",
    "label_language": "language of the label",
    "finish": "end of the label",
    "error": "error of the label",
    "kept": "kept",
    "reason": "rule",
    "chars_per_s": "characters per second",
    "wer": "errors of the label per word",
    "tar": "shard",
    "compression_ratio": "compression ratio",
    "known_phrase": "known hallucination",
    "other_language": "other language",
    "longest_word": "longest word, characters",
    "min_frames": "fewest frames",
    "reference_words": "words of the human text",
    "errors": "errors of the label",
}
"""Titles of columns whose name is not one."""


def title(name: str) -> str:
    """The title of a column of the joined file."""
    return TITLES.get(name, name.replace("_", " "))
