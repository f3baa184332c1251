"""Subtitles from words with times: SubRip (SRT) and WebVTT."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from voxstill.core.records import Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """One subtitle, in milliseconds from the start of the audio."""

    start_ms: int
    end_ms: int
    text: str


def cues(words: Iterable[Word], max_chars: int = 42, max_ms: int = 6000, pause_ms: int = 600) -> list[Cue]:
    """Group words into cues in time order; cues never overlap and last at least 1 ms.

    A cue ends before it grows longer than `max_chars` or `max_ms`, and at a pause of `pause_ms`; a single word that is
    longer still has a cue of its own. 42 characters are one line of television subtitles.
    """
    cue_list: list[Cue] = []
    line: list[Word] = []
    for word in sorted((word for word in words if word.text.split()), key=lambda word: (word.start_ms, word.end_ms)):
        if line and (
            word.start_ms - line[-1].end_ms >= pause_ms
            or word.end_ms - line[0].start_ms > max_ms
            or len(_text([*line, word])) > max_chars
        ):
            cue_list.append(_cue(line, cue_list))
            line = []
        line.append(word)
    if line:
        cue_list.append(_cue(line, cue_list))
    return cue_list


def srt(cues: Iterable[Cue]) -> str:
    """SubRip: numbered from 1, a comma before the milliseconds, an empty line after each cue."""
    return "".join(
        f"{number}\n{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}\n{cue.text}\n\n"
        for number, cue in enumerate(cues, 1)
    )


def vtt(cues: Iterable[Cue]) -> str:
    """WebVTT (W3C): a header, a point before the milliseconds, `&`, `<` and `>` escaped."""
    return "WEBVTT\n\n" + "".join(
        f"{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}\n{html.escape(cue.text, quote=False)}\n\n"
        for cue in cues
    )


def _text(line: Iterable[Word]) -> str:
    return " ".join(" ".join(word.text.split()) for word in line)


def _cue(line: Sequence[Word], before: Sequence[Cue]) -> Cue:
    start_ms = max(line[0].start_ms, before[-1].end_ms if before else 0)
    return Cue(start_ms=start_ms, end_ms=max(start_ms + 1, *(word.end_ms for word in line)), text=_text(line))


def _clock(time_ms: int, mark: str) -> str:
    seconds, milliseconds = divmod(time_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{mark}{milliseconds:03}"
