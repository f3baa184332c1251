"""A labelling task: a teacher with its options, and the name of the labels that it makes."""

from __future__ import annotations

from dataclasses import dataclass

from voxstill.core import config
from voxstill.core.records import fingerprint
from voxstill.teachers import registry


@dataclass(frozen=True, slots=True)
class Task:
    """A labelling task: one teacher with its options; equal tasks have equal recipes.

    `table` is the name under which the labels lie that version 0.1 has begun.
    """

    teacher: config.Teacher
    name: str
    reads_texts: bool
    calls_at_once: int = 1
    reads_languages: bool = False
    table: str | None = None

    @property
    def identity(self) -> str:
        """The hash of the teacher and of its options that change its transcriptions."""
        return fingerprint("label", self.name, config.identity(registry.options(self.teacher)))

    @property
    def recipe(self) -> str:
        """Name of this teacher's labels on disk."""
        return self.table or self.identity

    @property
    def prefix(self) -> str:
        """The folder of the labels."""
        return f"labels/{self.recipe}"
