"""Readers of transcripts: Kaldi text, plain lines, JSONL, TRN, STM, CTM and SegLST, all into the same rows.

Nothing is normalised here but the space around words. A malformed line is a DataError that names file and line.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from voxstill.core.errors import ConfigError, DataError
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_uri

IGNORED = "IGNORE_TIME_SEGMENT_IN_SCORING"
"""Marks a segment in sclite's STM that is not scored."""
_TRN = re.compile(r"(.*)\(([^()\s]+)\)\s*$")
_LABEL = re.compile(r"<[^<>]*>$")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that UTF-8 cannot hold where it stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptSegment:
    """One segment of a transcript. `session` is its recording; None if the form has no such field."""

    id: str
    text: str
    speaker: str | None = None
    session: str | None = None
    channel: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None


def read(uri: str, form: str | None = None) -> list[TranscriptSegment]:
    """Read a transcript in the order of its lines; `form` is one of `FORMS`, by default that of the file's ending.

    A CTM has a row for each word. DataError for a malformed line, ConfigError for an unknown form.
    """
    name = form or form_of(uri)
    if name not in FORMS:
        raise ConfigError(f"unknown format `{name}`", code="unknown-name", fix=f"use one of {', '.join(FORMS)}")
    return list(FORMS[name](read_text(uri), redact_uri(uri)))


def column(uri: str, field: str) -> dict[str, object]:
    """One field of the objects of a JSONL, by their ids; objects without either are left out."""
    values: dict[str, object] = {}
    for number, line in numbered_lines(read_text(uri)):
        row = _parsed(line, redact_uri(uri), number)
        if isinstance(row, dict) and "id" in row and field in row:
            values[str(row["id"])] = row[field]
    return values


def form_of(uri: str) -> str:
    """The form of a file by its ending; Kaldi's text for an unknown one."""
    ending = PurePosixPath(uri).suffix.lower().removeprefix(".")
    return "seglst" if ending == "json" else ending if ending in _BY_ENDING else "kaldi"


def read_text(uri: str) -> str:
    """Read a file as UTF-8; DataError if it is not."""
    try:
        return read_uri(uri).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"`{redact_uri(uri)}` is not UTF-8",
            code="unreadable-file",
            why=str(error),
            fix="convert it, for example with `iconv`",
        ) from None


def bad_line(address: str, number: int, why: str) -> DataError:
    """The error of a malformed line."""
    return DataError(
        f"{address}:{number} cannot be read",
        code="bad-line",
        why=why,
        fix="correct the line, or give the format with `--form`",
    )


def numbered_lines(text: str, comment: str = "") -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and content of each line that is neither empty nor a comment."""
    for number, line in enumerate(
        text.split("\n"), start=1
    ):  # splitlines would also split at characters that ids may contain
        if line.strip() and not (comment and line.lstrip().startswith(comment)):
            yield number, line.strip()


def milliseconds(seconds: str, address: str, number: int) -> int:
    """Parse a time in seconds; DataError that names the line where it is none."""
    try:
        return round(float(seconds) * 1000)
    except (ValueError, OverflowError):
        raise bad_line(address, number, f"`{seconds}` is not a time in seconds") from None


def join_by_segment(
    segments: Sequence[TranscriptSegment], words: Sequence[TranscriptSegment]
) -> list[TranscriptSegment]:
    """Join the words of a CTM to one row for each segment of an STM that has words, with the id of the segment.

    As in sclite a word belongs to the first segment of its recording and channel that does not end before the word's
    middle, or else to the last; so words between segments go to the next. Words of a recording without segments are a
    row with an id of its own.
    """
    segments_of_channel: dict[tuple[str | None, str | None], list[TranscriptSegment]] = {}
    for segment in sorted(segments, key=lambda segment: segment.end_ms or 0):
        segments_of_channel.setdefault((segment.session, segment.channel), []).append(segment)
    ends_of_channel = {
        channel: [segment.end_ms or 0 for segment in channel_segments]
        for channel, channel_segments in segments_of_channel.items()
    }
    words_of_segment: dict[str, list[str]] = {}
    for word in sorted(words, key=lambda word: word.start_ms or 0):
        channel = word.session, word.channel
        if channel_segments := segments_of_channel.get(channel):
            middle_ms = ((word.start_ms or 0) + (word.end_ms or 0)) / 2
            position = bisect_left(ends_of_channel[channel], middle_ms)
            id_ = channel_segments[min(position, len(channel_segments) - 1)].id
        else:
            id_ = f"{word.session}-{word.channel}"
        words_of_segment.setdefault(id_, []).append(word.text)
    return [TranscriptSegment(id=id_, text=" ".join(words)) for id_, words in words_of_segment.items()]


def _parsed(text: str, address: str, number: int) -> Any:
    """Parse JSON that begins in a line; DataError where it is none, or has half of a surrogate pair."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise bad_line(address, number, "it has an escape of half a surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise bad_line(address, number, f"it is not JSON: {error}") from None
    return value


def _without_alternatives(text: str, address: str, number: int) -> str:
    """Return the text; DataError for sclite's alternatives, which would be counted as words."""
    if "{" in text.split():
        raise bad_line(address, number, "it has alternatives, `{ a / b }`, which are not read: keep one of them")
    return text


def _kaldi(text: str, _: str) -> Iterator[TranscriptSegment]:
    """`id words ...`; an id alone has an empty text."""
    for _number, line in numbered_lines(text):
        id_, *words = line.split(None, 1)
        yield TranscriptSegment(id=id_, text=" ".join(words))


def _plain(text: str, _: str) -> Iterator[TranscriptSegment]:
    """Words alone; the number of the line is its id, and an empty line has an empty text."""
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        yield TranscriptSegment(id=str(number), text=line.strip())


def _json_lines(text: str, address: str) -> Iterator[TranscriptSegment]:
    """Objects with `id` and `text`, and where known `speaker`, `session`, `start_ms`, `end_ms`."""
    for number, line in numbered_lines(text):
        row = _parsed(line, address, number)
        if not isinstance(row, dict) or not isinstance(row.get("id"), str | int) or "text" not in row:
            raise bad_line(address, number, "it is not an object with `id` and `text`")
        if not all(isinstance(row.get(name), int | None) for name in ("start_ms", "end_ms")):
            raise bad_line(address, number, "`start_ms` and `end_ms` are whole milliseconds")
        session, speaker = row.get("session"), row.get("speaker")
        yield TranscriptSegment(
            id=str(row["id"]),
            text=str(row["text"] or ""),
            speaker=None if speaker is None else str(speaker),
            session=None if session is None else str(session),
            start_ms=row.get("start_ms"),
            end_ms=row.get("end_ms"),
        )


def _trn(text: str, address: str) -> Iterator[TranscriptSegment]:
    """`words ... (id)`; the speaker is the part of the id before the first `-` or `_`, as sclite's `spu_id`."""
    for number, line in numbered_lines(text, ";;"):
        match = _TRN.match(line)
        if match is None:
            raise bad_line(address, number, "it does not end with `(id)`")
        yield TranscriptSegment(
            id=match[2],
            text=_without_alternatives(match[1].strip(), address, number),
            speaker=re.split("[-_]", match[2])[0],
        )


def _stm(text: str, address: str) -> Iterator[TranscriptSegment]:
    """`recording channel speaker start end [<label>] words ...`."""
    for number, line in numbered_lines(text, ";;"):
        parts = line.split(None, 5)
        if len(parts) < 5:
            raise bad_line(address, number, "it is not `recording channel speaker start end words ...`")
        session, channel, speaker = parts[:3]
        start_ms, end_ms = (milliseconds(seconds, address, number) for seconds in parts[3:5])
        words = parts[5] if len(parts) > 5 else ""
        label, *rest = words.split(None, 1) or [""]
        yield TranscriptSegment(
            id=f"{session}-{channel}-{speaker}-{start_ms}-{end_ms}",
            text=_without_alternatives(" ".join(rest) if _LABEL.match(label) else words, address, number),
            speaker=speaker,
            session=session,
            channel=channel,
            start_ms=start_ms,
            end_ms=end_ms,
        )


def _ctm(text: str, address: str) -> Iterator[TranscriptSegment]:
    """`recording channel start duration word [confidence]`."""
    for number, line in numbered_lines(text, ";;"):
        parts = line.split()
        if len(parts) < 5:
            raise bad_line(address, number, "it is not `recording channel start duration word`")
        start_ms = milliseconds(parts[2], address, number)
        end_ms = start_ms + milliseconds(parts[3], address, number)
        yield TranscriptSegment(
            id=f"{parts[0]}-{parts[1]}-{number}",
            text=parts[4],
            session=parts[0],
            channel=parts[1],
            start_ms=start_ms,
            end_ms=end_ms,
        )


def _seglst(text: str, address: str) -> Iterator[TranscriptSegment]:
    """meeteval's list of objects with `session_id`, `speaker`, `words`, and where known `start_time`, `end_time`."""
    rows = _parsed(text, address, 1)
    if not isinstance(rows, list):
        raise bad_line(address, 1, "it is not a list")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not {"session_id", "speaker", "words"} <= row.keys():
            raise DataError(
                f"segment {number} of {address} has no `session_id`, `speaker` and `words`",
                code="field-missing",
                why="meetings are scored per session and speaker",
                fix="add them; segments of meeteval (SegLST) have all three",
            )
        times = [
            None if row.get(name) is None else milliseconds(str(row[name]), address, number)
            for name in ("start_time", "end_time")
        ]
        yield TranscriptSegment(
            id=f"{row['session_id']}-{number}",
            text=str(row["words"]),
            speaker=str(row["speaker"]),
            session=str(row["session_id"]),
            start_ms=times[0],
            end_ms=times[1],
        )


FORMS: dict[str, Callable[[str, str], Iterator[TranscriptSegment]]] = {
    "kaldi": _kaldi,
    "text": _plain,
    "jsonl": _json_lines,
    "trn": _trn,
    "stm": _stm,
    "ctm": _ctm,
    "seglst": _seglst,
}
"""Form -> reader of a text and its address."""
_BY_ENDING = {"jsonl", "trn", "stm", "ctm"}
