"""Who speaks when: a turn, and the protocol of the engines that find turns.

An engine is one file: a class with these methods, in `engines/` or named in another package's entry point
`voxstill.diarization`. Its `Options` are the rest of the `diarize` section, and `needs: ClassVar[tuple[str, str]]` is
the package that one of voxstill runs on and the extra that installs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from voxstill.audio.vad import Samples
from voxstill.core.config import Section

_FEW_MS = 15_000
"""Speech per speaker below which speakers are hard to distinguish."""
_CLIP_MS = 10_000
"""Less speech of one speaker is a clip, not a conversation."""
_SHORT_MS = 1_700
"""Mean speech between two changes of speaker below which most is attributed wrongly. Of simulated conversations of
other speakers than those of the figures, 12 of 14 with turns of 1 to 3 s are below, and none of 79 with other turns and
a DER below 15 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A stretch in which one speaker speaks, in milliseconds from the start of the recording.

    Speakers are numbered from 1 in the order in which they begin. `overlap` is whether another one speaks in a part of
    it.

    >>> from voxstill.diarization.turns import Turn
    >>> Turn(start_ms=0, end_ms=1500, speaker=1).overlap
    False
    """

    start_ms: int
    end_ms: int
    speaker: int
    overlap: bool = False


class DiarizationEngine(Protocol):
    """Constructed from its options without loading anything; used by one thread at a time.

    A class may have a `revision`, a whole number above 0 that rises where the same options give other turns: it is part
    of the recipe of the utterances.
    """

    Options: ClassVar[type[Section]]

    def __init__(self, options: Section) -> None: ...

    def load(self) -> None:
        """Load the model; ConfigError if that cannot be done."""
        ...

    def turns(self, samples_T: Samples) -> list[Turn]:
        """The turns of a recording at 16 kHz, in order of their starts; none without speech.

        DataError if this recording cannot be diarized; any other error ends the command.
        """
        ...

    def close(self) -> None:
        """Release the model."""
        ...


def numbered(spans: Sequence[tuple[int, int, str]]) -> list[Turn]:
    """Turns of start, end and any name of the speaker: ordered, numbered, with their overlaps; empty ones left out.

    Turns of one speaker that touch or overlap are one.
    """
    joined: list[tuple[int, int, str]] = []
    last_of: dict[str, int] = {}
    for start_ms, end_ms, name in sorted(span for span in spans if span[1] > span[0]):
        last = last_of.get(name)
        if last is not None and start_ms <= joined[last][1]:
            joined[last] = (joined[last][0], max(joined[last][1], end_ms), name)
        else:
            last_of[name] = len(joined)
            joined.append((start_ms, end_ms, name))
    number = {name: i for i, name in enumerate(dict.fromkeys(name for *_, name in joined), 1)}
    overlapped = [False] * len(joined)
    latest = -1  # the turn that ends last of those before
    for i, (start_ms, end_ms, _) in enumerate(joined):
        if latest >= 0 and start_ms < joined[latest][1]:
            overlapped[i] = overlapped[latest] = True
        following = i + 1
        if following < len(joined) and joined[following][0] < end_ms:
            overlapped[i] = True
        if latest < 0 or end_ms > joined[latest][1]:
            latest = i
    return [
        Turn(start_ms=start_ms, end_ms=end_ms, speaker=number[name], overlap=overlap)
        for (start_ms, end_ms, name), overlap in zip(joined, overlapped, strict=True)
    ]


def within(turns: Sequence[Turn], duration_ms: int) -> tuple[Turn, ...]:
    """The turns as far as they lie in the recording: a program may write any time."""
    if all(0 <= turn.start_ms < turn.end_ms <= duration_ms for turn in turns):
        return tuple(turns)
    spans = [(max(0, turn.start_ms), min(turn.end_ms, duration_ms), str(turn.speaker)) for turn in turns]
    return tuple(numbered(spans))


def doubt(turns: Sequence[Turn]) -> str | None:
    """Why the speakers of a recording are doubtful, in words; None if there is enough speech to distinguish the
    speakers.

    Few seconds of speech of several speakers is where diarization fails: some are taken for one, or one for several. A
    clip of some seconds has one speaker as a rule, and is not a doubt. It fails, too, where speakers alternate so fast
    that no stretch is of one voice alone.
    """
    num_speakers = len({turn.speaker for turn in turns})
    speech_ms = sum(turn.end_ms - turn.start_ms for turn in turns)
    if num_speakers < 2 and speech_ms < _CLIP_MS:
        return None
    if speech_ms < _FEW_MS * max(2, num_speakers):
        number = "one speaker" if num_speakers == 1 else f"{num_speakers} speakers"
        return (
            f"doubtful speakers: {number} in {speech_ms / 1000:.0f} s of speech, "
            f"and speakers can only be distinguished from {_FEW_MS // 1000} s each"
        )
    mean_ms = speech_ms / len(list(itertools.groupby(turns, lambda turn: turn.speaker)))
    if num_speakers > 1 and mean_ms < _SHORT_MS:
        return (
            f"doubtful speakers: they change after {mean_ms / 1000:.1f} s of speech on average, "
            f"and speakers can only be distinguished in turns of {_SHORT_MS / 1000:g} s or more"
        )
    return None
