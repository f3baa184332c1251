"""diarize: audio in, the turns of its speakers out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, get_args

from voxstill.core import pcm
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, VoxstillError
from voxstill.core.monitor import Progress
from voxstill.core.result import NOT_IN_JSON, Result
from voxstill.diarization.diarizer import Diarization, Diarizer
from voxstill.pipeline import recordings
from voxstill.pipeline.audio_input import AudioReader, exit_code, in_one_line
from voxstill.pipeline.decode_ahead import Decoded
from voxstill.storage.redaction import redact_uri
from voxstill.text import rttm, subtitles

TurnFormat = Literal["rttm", "json", "srt"]
FORMS: tuple[TurnFormat, ...] = get_args(TurnFormat)
_AHEAD_MS = 60_000
"""So much audio is decoded ahead, and the recording that goes beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerTurn(Result):
    """A turn: the recording, its times in milliseconds, the speaker, and whether another speaks in a part of it.

    Speakers are numbered from 1 in the order in which they begin: `meeting/1` is the first of `meeting.wav`.
    """

    audio: str
    start_ms: int
    end_ms: int
    speaker: str
    overlap: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DiarizedRecording(Result):
    """One recording: how many speakers and turns it has, or why it has none."""

    audio: str
    duration_ms: int | None = None
    speakers: int = 0
    turns: int = 0
    error: str | None
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiarizeResult(Result):
    """The turns of all recordings, in order, and how many speakers they have together.

    A voice in two recordings counts twice.
    """

    turns: Sequence[SpeakerTurn]
    speakers: int
    recordings: Sequence[DiarizedRecording]
    skipped: int = 0
    """Files of folders that are not audio by their names."""
    form: TurnFormat = field(default="rttm", compare=False, metadata=NOT_IN_JSON)

    @property
    def exit_code(self) -> int:
        """That of bad data, where a recording could not be read or diarized."""
        return exit_code(self.recordings)

    def render(self, form: TurnFormat) -> str:
        """RTTM, a line of JSON for each turn, or SubRip (`srt`); ConfigError for another form."""
        if form == "rttm":
            return "\n".join(
                rttm.line_of(turn.speaker.rpartition("/")[0], turn.start_ms, turn.end_ms, turn.speaker)
                for turn in self.turns
            )
        if form == "json":
            return "\n".join(json.dumps(turn.to_dict(), ensure_ascii=False) for turn in self.turns)
        if form == "srt":
            return subtitles.srt(
                subtitles.Cue(start_ms=turn.start_ms, end_ms=turn.end_ms, text=turn.speaker) for turn in self.turns
            ).rstrip("\n")
        raise ConfigError(
            f"unknown format `{form}`",
            code="unknown-name",
            why="this format is not supported",
            fix=f"use one of {', '.join(FORMS)}",
        )

    def to_text(self) -> str:
        """The turns in the form that was asked for."""
        return self.render(self.form)


def diarize(cfg: Config, names: Sequence[str], form: TurnFormat = "rttm") -> DiarizeResult:
    """Diarize recordings: files, folders, addresses or standard input.

    Where `diarize.name` is not set, the engine is `embedded`. One that cannot be read or diarized has its reason
    instead. ConfigError if the engine cannot be loaded, or where subtitles of several recordings are asked for.
    """
    section = cfg.diarize if cfg.diarize.name is not None else cfg.diarize.model_copy(update={"name": "embedded"})
    paths, num_skipped = recordings.expand(names)
    paths = list(dict.fromkeys(paths))
    if form == "srt" and len(paths) > 1:
        raise ConfigError(
            f"subtitles of {len(paths):,} recordings",
            code="option-conflict",
            why="they would share one timeline",
            fix="give one recording, or use another --format",
        )
    session_of = _sessions([redact_uri(path) for path in paths])
    reader, rows, turns = AudioReader(cfg), list[DiarizedRecording](), list[SpeakerTurn]()
    with Diarizer(section) as diarizer, Progress("diarize", len(paths), "files") as bar:
        for sources, names_of_run in recordings.in_runs(paths):
            opened = reader.read_each(sources, ahead_ms=_AHEAD_MS)
            for name, (_, decoding) in zip(names_of_run, opened, strict=True):
                row, diarization = _diarize(diarizer, name, decoding)
                rows.append(row)
                turns += _turns(name, session_of[name], diarization)
                bar.advance()
    return DiarizeResult(
        turns=turns, speakers=sum(row.speakers for row in rows), recordings=rows, skipped=num_skipped, form=form
    )


def _diarize(
    diarizer: Diarizer, name: str, decoding: AbstractContextManager[Decoded]
) -> tuple[DiarizedRecording, Diarization]:
    try:
        with decoding as decoded:
            diarization = Diarization() if decoded.is_silent else diarizer.diarize(decoded.samples_T)
            warnings = [warning for warning in (decoded.warning, diarization.warning) if warning is not None]
            row = DiarizedRecording(
                audio=name,
                duration_ms=pcm.samples_to_ms(len(decoded.samples_T)),
                speakers=diarization.num_speakers,
                turns=len(diarization.turns),
                error=diarization.error,
                warning="; ".join(warnings) or None,
            )
    except ConfigError:
        raise
    except VoxstillError as error:
        row, diarization = DiarizedRecording(audio=name, error=in_one_line(error)), Diarization()
    return row, diarization


def _turns(name: str, session: str, diarization: Diarization) -> Iterator[SpeakerTurn]:
    for turn in diarization.turns:
        yield SpeakerTurn(
            audio=name,
            start_ms=turn.start_ms,
            end_ms=turn.end_ms,
            speaker=f"{session}/{turn.speaker}",
            overlap=turn.overlap,
        )


def _sessions(names: Sequence[str]) -> Mapping[str, str]:
    """A session for each recording: its name without folder and ending, and a number where an earlier one has that."""
    stems = {name: _stem(name) for name in names}
    own = {rttm.one_word(stem) for stem in stems.values()}
    words = set[str]()
    session_of: dict[str, str] = {}
    for name, stem in stems.items():
        numbered = (f"{stem}-{number}" for number in itertools.count(2))
        free = (session for session in numbered if rttm.one_word(session) not in own | words)
        session_of[name] = next(free) if rttm.one_word(stem) in words else stem
        words.add(rttm.one_word(session_of[name]))
    return session_of


def _stem(name: str) -> str:
    return "stdin" if name == recordings.STANDARD_INPUT else PurePosixPath(name.partition("?")[0].rstrip("/")).stem
