"""Diarize one recording after another: turns, or the reason why there are none, and a doubt in words."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from voxstill.audio.vad import Samples
from voxstill.core import pcm
from voxstill.core.config import Diarize
from voxstill.core.errors import ConfigError, DataError, VoxstillError, first_line
from voxstill.diarization import registry
from voxstill.diarization.turns import Turn, doubt, within

FAILED = "diarization has failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diarization:
    """The turns of a recording. Without an `error` they may still be doubtful, as `warning` says."""

    turns: tuple[Turn, ...] = ()
    error: str | None = None
    warning: str | None = None

    @property
    def num_speakers(self) -> int:
        """How many speakers have turns."""
        return len({turn.speaker for turn in self.turns})


class Diarizer:
    """An engine, loaded while the block lasts; ConfigError if the section names none or it cannot be loaded."""

    def __init__(self, section: Diarize) -> None:
        engine = registry.create(section)
        if engine is None:
            raise ConfigError(
                "no diarization engine is set",
                code="option-missing",
                why="`diarize.name` is not set",
                fix="set `diarize.name: embedded`",
            )
        self._engine = engine

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Load the engine."""
        self._engine.load()

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()

    def diarize(self, samples_T: Samples) -> Diarization:
        """Diarize a recording at 16 kHz; what fails of this recording is its `error`."""
        try:
            turns = within(self._engine.turns(samples_T), pcm.samples_to_ms(len(samples_T)))
        except DataError as error:
            return Diarization(error=f"{FAILED}: {error.what}: {error.why}")
        except VoxstillError:
            raise  # not the recording's fault
        except Exception as error:
            return Diarization(error=f"{FAILED}: {type(error).__name__}: {first_line(error)}")
        return Diarization(turns=turns, warning=doubt(turns))
