"""A labelling task: a teacher with its options, and the name of the labels that it makes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from voxstill.core import config
from voxstill.core.records import fingerprint
from voxstill.teachers import registry


@dataclass(frozen=True)
class Task:
    """A labelling task: one teacher with its options; equal tasks have equal recipes.

    `table` is the name under which the labels lie that version 0.1 has started.
    """

    teacher: config.Teacher
    name: str
    reads_texts: bool
    calls_at_once: int = 1
    reads_languages: bool = False
    table: str | None = None

    @cached_property
    def identity(self) -> str:
        """The hash of the teacher and of its options that change its transcriptions.

        Every label asks for it, and the options may be those of a plug-in: to look that up takes 10 ms.
        """
        return fingerprint("label", self.name, config.identity(registry.options(self.teacher)))

    @property
    def recipe(self) -> str:
        """Name of this teacher's labels on disk."""
        return self.table or self.identity

    @property
    def prefix(self) -> str:
        """The folder of the labels."""
        return f"labels/{self.recipe}"
