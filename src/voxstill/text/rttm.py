"""Diarization files: NIST's RTTM (who spoke when), read and written, and UEM (which parts are scored), in microseconds.

Milliseconds are too coarse: programs write five decimals, and an error rate would differ from md-eval's in its second.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from voxstill.core.errors import DataError
from voxstill.storage.redaction import redact_uri
from voxstill.text.transcripts import numbered_lines, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class RttmEvent:
    """One line of an RTTM. `kind` is SPEAKER for a turn; NOSCORE, NON-LEX and others mark other events."""

    kind: str
    session: str
    channel: str
    speaker: str
    subtype: str
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRegion:
    """A stretch of a recording that is scored."""

    session: str
    channel: str
    start_us: int
    end_us: int


def read(uri: str) -> list[RttmEvent]:
    """Read an RTTM in the order of its lines, without those that have no time; DataError for a malformed line.

    `SPEAKER recording channel start duration ...`, the speaker in column eight.
    """
    marks = []
    for number, line in numbered_lines(read_text(uri), ";"):
        parts = line.split()
        if parts[0].startswith("#"):
            continue
        if len(parts) < 8:
            raise _bad(uri, number, "it has fewer than eight columns")
        if parts[3].upper() == "<NA>":
            continue
        start_us = microseconds(parts[3], uri, number)
        length_us = 0 if parts[4].upper() == "<NA>" else microseconds(parts[4], uri, number)
        if length_us < 0:
            raise _bad(uri, number, f"it lasts {parts[4]} s")
        marks.append(
            RttmEvent(
                kind=parts[0].upper(),
                session=parts[1],
                channel=parts[2].lower(),
                speaker=parts[7],
                subtype=parts[6].lower(),
                start_us=start_us,
                end_us=start_us + length_us,
            )
        )
    return marks


def one_word(name: str) -> str:
    """A name with an underscore for white space, which ends a column."""
    return "_".join(name.split()) or "_"


def line_of(session: str, start_ms: int, end_ms: int, speaker: str) -> str:
    """The line of an RTTM of one turn; white space in names, which ends a column, is an underscore."""
    session, speaker = one_word(session), one_word(speaker)
    seconds = f"{start_ms / 1000:.3f} {(end_ms - start_ms) / 1000:.3f}"
    return f"SPEAKER {session} 1 {seconds} <NA> <NA> {speaker} <NA> <NA>"


def read_uem(uri: str) -> list[ScoredRegion]:
    """Read a UEM, `recording channel start end`; DataError for a malformed line, or where two overlap."""
    stretches = []
    for number, line in numbered_lines(read_text(uri), ";"):  # of one semicolon or two, as md-eval has them
        parts = line.split()
        if parts[0].startswith("#"):
            continue
        if len(parts) < 4:
            raise _bad(uri, number, "it is not `recording channel start end`")
        start_us, end_us = (microseconds(seconds, uri, number) for seconds in parts[2:4])
        if end_us <= start_us:
            raise _bad(uri, number, "it ends before it starts")
        stretches.append(ScoredRegion(session=parts[0], channel=parts[1].lower(), start_us=start_us, end_us=end_us))
    stretches.sort(key=lambda stretch: (stretch.session, stretch.channel, stretch.start_us))
    for earlier, later in pairwise(stretches):
        same_channel = (earlier.session, earlier.channel) == (later.session, later.channel)
        if same_channel and later.start_us < earlier.end_us:
            raise DataError(
                f"`{redact_uri(uri)}` has overlapping segments of `{later.session}`",
                code="bad-line",
                why=f"one ends at {earlier.end_us / 1e6} s, another starts at {later.start_us / 1e6} s",
                fix="merge them",
            )
    return stretches


def microseconds(seconds: str, uri: str, number: int) -> int:
    """Parse a time in seconds; DataError that names the line where it is none."""
    try:
        return round(float(seconds) * 1_000_000)
    except (ValueError, OverflowError):
        raise _bad(uri, number, f"`{seconds}` is not a time in seconds") from None


def _bad(uri: str, number: int, why: str) -> DataError:
    return DataError(f"{redact_uri(uri)}:{number} cannot be read", code="bad-line", why=why, fix="correct the line")
