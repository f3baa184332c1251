"""Who spoke when: NIST's RTTM, and the UEM that says what is judged. Times are whole microseconds.

Milliseconds would not do: programs write five digits, and a rate that md-eval counts would differ in its second.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from voxstill.errors import DataError
from voxstill.text.transcripts import rows_of_lines, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One line of an RTTM. `kind` is SPEAKER for a turn; NOSCORE and the rest say what is there besides."""

    kind: str
    session: str
    channel: str
    speaker: str
    subtype: str
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of a recording that is judged."""

    session: str
    channel: str
    start_us: int
    end_us: int


def read(uri: str) -> list[Mark]:
    """The lines of an RTTM in their order, without those that have no time; DataError for one that is not of the form.

    `SPEAKER recording channel start duration ...`, the speaker in column eight.
    """
    found = []
    for number, line in rows_of_lines(text_of(uri), ";;"):
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
        found.append(
            Mark(
                kind=parts[0].upper(),
                session=parts[1],
                channel=parts[2].lower(),
                speaker=parts[7],
                subtype=parts[6].lower(),
                start_us=start_us,
                end_us=start_us + length_us,
            )
        )
    return found


def read_uem(uri: str) -> list[Stretch]:
    """The lines of a UEM, `recording channel start end`; DataError where one is not, or where two overlap."""
    found = []
    for number, line in rows_of_lines(text_of(uri), ";;"):
        parts = line.split()
        if len(parts) < 4:
            raise _bad(uri, number, "it is not `recording channel start end`")
        start_us, end_us = (microseconds(each, uri, number) for each in parts[2:4])
        if end_us <= start_us:
            raise _bad(uri, number, "it ends before it starts")
        found.append(Stretch(session=parts[0], channel=parts[1].lower(), start_us=start_us, end_us=end_us))
    found.sort(key=lambda each: (each.session, each.channel, each.start_us))
    for before, after in pairwise(found):
        same = (before.session, before.channel) == (after.session, after.channel)
        if same and after.start_us < before.end_us:
            raise DataError(
                f"`{uri}` has stretches of `{after.session}` that overlap",
                why=f"one ends at {before.end_us / 1e6} s, another starts at {after.start_us / 1e6} s",
                fix="make them one",
            )
    return found


def microseconds(seconds: str, uri: str, number: int) -> int:
    """What a time in a file means; the error of its line where it is none."""
    try:
        return round(float(seconds) * 1_000_000)
    except (ValueError, OverflowError):
        raise _bad(uri, number, f"`{seconds}` is no time in seconds") from None


def _bad(uri: str, number: int, why: str) -> DataError:
    return DataError(f"{uri}:{number} cannot be read", why=why, fix="correct the line")
