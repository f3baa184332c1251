"""The teacher `consensus`: combines the finished labels of several teachers by ROVER; no audio is transcribed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import field_validator

from voxstill.core.config import Section, option
from voxstill.core.errors import TeacherError
from voxstill.teachers.teacher import Clip, Transcription


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
    """A ROVER vote (`scoring/rover.py`), computed by `labelling/consensus.py`; its confidence is the agreement."""

    Options: ClassVar[type[Section]] = ConsensusOptions
    reads_texts: ClassVar[bool] = False

    def __init__(self, options: ConsensusOptions) -> None:
        self.of = tuple(options.of)

    def revision(self) -> str:
        """Number of the voting algorithm."""
        return "1"

    def load(self) -> None:
        """TeacherError: a consensus is computed from labels, not from audio."""
        raise TeacherError(
            "a consensus cannot transcribe audio",
            code="wrong-model",
            why="it is made from the labels of other teachers",
            fix="run `voxstill label` with it",
        )

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Raise TeacherError, as `load` does."""
        self.load()
        return []

    def close(self) -> None:
        """Nothing to release."""
