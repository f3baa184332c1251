"""What several teachers agree on, made of labels that are there: nothing is heard again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import field_validator

from voxstill.config import Section, option
from voxstill.errors import TeacherError
from voxstill.teachers.teacher import Clip, Heard


class ConsensusOptions(Section):
    """Options of the teacher `consensus`."""

    of: list[str] = option()
    """Recipes of finished labels, the best teacher first: `voxstill compare-teachers` lists them."""

    @field_validator("of")
    @classmethod
    def _several(cls, of: list[str]) -> list[str]:
        if len(set(of)) < 2 or len(set(of)) < len(of):
            raise ValueError("two different recipes are needed, three are better")
        return of


class ConsensusTeacher:
    """A vote on each word by ROVER (`score/rover.py`); its confidence is the agreement. `factory/agree.py` makes it."""

    Options: ClassVar[type[Section]] = ConsensusOptions
    reads_texts: ClassVar[bool] = False

    def __init__(self, options: ConsensusOptions) -> None:
        self.of = tuple(options.of)

    def revision(self) -> str:
        """Rises when the vote is counted in another way."""
        return "1"

    def open(self) -> None:
        """TeacherError: it is made of labels, not of audio."""
        raise TeacherError(
            "a consensus hears nothing", why="it is made of the labels of others", fix="run `voxstill label` with it"
        )

    def hear(self, clips: Sequence[Clip]) -> list[Heard]:
        """TeacherError, as `open`."""
        self.open()
        return []

    def close(self) -> None:
        """Nothing was taken."""
