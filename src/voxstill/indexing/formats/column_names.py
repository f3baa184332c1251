"""Names of the columns of manifests: our own, those of other tools, and those that only look like times."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import fields

from voxstill.core.records import UtteranceInfo

INFO_COLUMNS = tuple(field.name for field in fields(UtteranceInfo))
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "audio": ("path", "audio_filepath", "file_name", "wav"),
    "text": ("transcription", "transcript", "sentence", "txt"),
    "speaker": ("speaker_id", "client_id"),
    "language": ("lang", "locale"),
}
"""What other tools call a column; where a row has several of the names, our own comes first."""
LATER_NAMES: Mapping[str, tuple[str, ...]] = {
    "dialect": ("accent", "accents"),
    "language": ("source_lang", "target_lang"),
    "split": ("subset", "partition", "set", "fold", "usage", "data_split", "split_name"),
}
"""Names that came to be known when tables of such rows were there: they count where they are text and no other name has
a value, and are not part of the metadata."""
COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    column: (column, *OTHER_NAMES.get(column, ())) for column in ("audio", "id", "text", "split", *INFO_COLUMNS)
}
START_NAMES = ("start_ms", "offset", "start", "start_time", "start_sec", "begin", "begin_time", "onset")
END_NAMES = ("end_ms", "end", "end_time", "end_sec", "stop", "stop_time")
"""Names of the times of a stretch, in seconds but for the first."""
NUMBER_COLUMNS = ("channel", "weight", *START_NAMES, *END_NAMES, "duration")
_KNOWN = {name for names in (*COLUMN_NAMES.values(), *LATER_NAMES.values()) for name in names}
_KNOWN |= {*NUMBER_COLUMNS, "words"}
_WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+")
_START_WORDS = ("start", "begin", "onset", "offset")
_END_WORDS = ("end", "stop", "dur", "till", "until")


def spelling(column: str) -> str:
    """The name of a column in small letters and without spaces around it, where that is known; else as it is."""
    name = column.strip().lower()
    return name if name in _KNOWN else column


def is_read(column: str) -> bool:
    """Whether a column says something, or looks like a time."""
    return spelling(column) in _KNOWN or any(like_times((column,)))


@functools.lru_cache(maxsize=1024)  # rows of one manifest have the same columns
def like_times(columns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that are not known but look like starts of a stretch, and those that look like its end or length."""
    unknown = {name: [word.lower() for word in _WORD.findall(name)] for name in columns if spelling(name) not in _KNOWN}
    starts, ends = (
        tuple(name for name, words in unknown.items() if any(word.startswith(beginnings) for word in words))
        for beginnings in (_START_WORDS, _END_WORDS)
    )
    return starts, ends
