"""Why a recording cannot be used: a kind that is counted and acted on, and a detail for people.

The table of recordings holds it as text. `Failure.text` writes that text and `Failure.parse` reads it; nothing else
looks inside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from voxstill.core.errors import VoxstillError
from voxstill.storage.figures import UNREADABLE


class FailureKind(StrEnum):
    """What the index itself finds wrong with a file; decoders and the engine give kinds of their own."""

    UNREADABLE = UNREADABLE
    """Storage did not give it, so the next index tries it again: the only kind that may pass."""
    AMBIGUOUS = "ambiguous sample"
    APART = "descriptions apart from their audio"
    BAD_DESCRIPTION = "unreadable description"
    BAD_NAME = "unreadable name"
    BEYOND_END = "beyond the end"
    CONTRADICTED = "not the length that the manifest says"
    COMMAND = "is a command"
    COMPRESSED_TAR = "compressed tar"
    DAMAGED_TAR = "damaged tar"
    DUPLICATE = "duplicate"
    """Other recordings hold its audio: it is no damage."""
    IN_PARQUET = "audio inside Parquet"
    NO_AUDIO = "no audio"
    NO_SPEECH = "no speech"
    NOT_AUDIO = "not audio"
    NOT_READ = "not read"
    NOT_THERE = "not there"
    SPARSE = "sparse"
    TOO_SHORT = "too short"
    UNDECODABLE = "cannot be decoded"


@dataclass(frozen=True, slots=True)
class Failure:
    """One reason; `detail` is None if the kind says it all."""

    kind: str
    detail: str | None = None

    @property
    def text(self) -> str:
        """What the table of recordings holds."""
        return str(self.kind) if self.detail is None else f"{self.kind}: {self.detail}"

    @property
    def is_transient(self) -> bool:
        """Whether storage is at fault, and not the file."""
        return self.kind == FailureKind.UNREADABLE

    @classmethod
    def parse(cls, text: str) -> Failure:
        """Read what `text` wrote, or any other reason: its kind is what stands before the first colon and space."""
        kind, separator, detail = text.partition(": ")
        return cls(kind, detail if separator else None)

    @classmethod
    def of(cls, error: VoxstillError) -> Failure:
        """Give the failure that an error of reading or decoding is."""
        return cls.parse(f"{error.what}: {error.why}")
