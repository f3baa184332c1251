"""One row of a source: a file, or one stretch of it, and what its manifest says of it; and the columns of manifests.

A new column is a field of `UtteranceInfo` in `records.py`, and a line in `column_names.py` for the names that other
tools have for it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Any, get_args

from voxstill.core.errors import DataError
from voxstill.core.records import MOST_WEIGHT, Split, UtteranceInfo, fingerprint, recording_id
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.formats.column_names import (
    COLUMN_NAMES,
    END_NAMES,
    INFO_COLUMNS,
    LATER_NAMES,
    START_NAMES,
    like_times,
    spelling,
)
from voxstill.storage.fetch import local_etag
from voxstill.storage.files import NOT_A_FILE, is_file
from voxstill.storage.uri import is_local, local_path

SPLIT_NAMES: Mapping[str, Split] = {
    **dict.fromkeys(("train", "training", "trainset"), "train"),
    **dict.fromkeys(("dev", "devel", "development", "devset", "val", "valid", "validation", "valset"), "dev"),
    **dict.fromkeys(("test", "tests", "testing", "testset", "tst", "holdout", "heldout", "unseen"), "test"),
    **dict.fromkeys(("eval", "evals", "evalset", "evaluation"), "test"),
}
"""What data sets call a split, in small letters; more may follow behind `-`, `_` or `.`, and a number: `test-clean`,
`eval92`."""
_SPLIT_WORD = re.compile(r"(?:(h[eo]ld)[-_. ](out)|([a-z]+?))\d*(?![^-_. ])")
NO_SPLIT = {"", "-", "all", "none", "null", "unlabelled", "unlabeled"}
"""Values of a column `split` that name none."""
_SAME_TIME_MS = 10
"""Times that are not further apart were rounded differently."""
_HASHED_BY_PLACE = ("speaker", "language", "dialect", "dataset")
"""Columns of the first release. A later one takes part in the hash of metadata only where it has a value: so files that
were indexed before it existed are not taken for edited ones."""
_hashed_by_place = attrgetter(*_HASHED_BY_PLACE)
_HASHED_BY_NAME = tuple(name for name in INFO_COLUMNS if name not in _HASHED_BY_PLACE)
TimedWord = tuple[str, int, int]
"""A word, its start and its end in milliseconds from the start of its file."""
_BYTE_RANGE = re.compile(r"#\d+\+\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEntry:
    """One file, or one stretch of it, and what its manifest says. Without an etag its size stands for its content.

    With a `failure` it is known already that it cannot be used. `where` is the line of the manifest, for people.
    """

    uri: str
    etag: str | None = None
    num_bytes: int = 0
    id: str | None = None
    text: str | None = None
    info: UtteranceInfo = field(default_factory=UtteranceInfo)
    split: Split | None = None
    implied_split: Split | None = None
    """By another name of a split, or by the folder it lies in. Not in the metadata: tables that were made before these
    were known keep what they have."""
    duration_ms: int | None = None
    """How long the manifest says that the whole file is; not in the metadata either."""
    channel: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    sample_ms: tuple[int | None, int | None] | None = None
    """Start and end that the description of a sample in a tar or in Parquet states: of its audio, or of the recording
    that this was cut from. Not in the metadata: tables that were made before it was read keep what they have."""
    weight: float | None = None
    """How much the loss of its utterances counts; None is 1."""
    words: tuple[TimedWord, ...] | str | None = None
    """Words of `text` with their times in the file, or why those that the source has are not used."""
    failure: Failure | None = None
    implied_id: str | None = None
    """Name of the utterance where `id` is none or is taken by another tar. Not in the metadata: tables that were made
    before it was read keep what they have."""
    sample: str | None = field(default=None, compare=False)
    """Of a member of a tar: the name of its sample there. Not in the metadata."""
    where: str | None = field(default=None, compare=False)
    implied_info: tuple[str, ...] = ()
    """What of `info` has one of `LATER_NAMES`. Not in the metadata: tables made before keep what they have."""
    columns: tuple[str, ...] = field(default=(), compare=False)
    """Names of all columns of its row, read or not. Not in the metadata."""
    source: int = 0
    """The place of its source in the list of sources. Not in the metadata."""
    is_beside: bool = field(default=False, compare=False)
    """Whether a file beside the audio says it; what a manifest says comes first. Not in the metadata."""
    origin: str | None = field(default=None, compare=False)
    """The compressed tar or Parquet file that its tar was unpacked from. Not in the metadata."""

    @property
    def is_cut(self) -> bool:
        """Whether it says where its utterance begins and ends, or what is spoken in it: then the VAD cuts none."""
        return self.text is not None or self.start_ms is not None or self.end_ms is not None

    @property
    def recording_id(self) -> str:
        """The same for the same file with the same content."""
        return recording_id(self.uri, self.etag, self.num_bytes)

    @property
    def utterance_id(self) -> str | None:
        """The name that its utterance has; None if the source gives none."""
        return self.implied_id or self.id

    def renamed(self) -> SourceEntry:
        """This member of a tar, with the name of its tar in its id: another tar has a sample with that id."""
        tar = self.uri.rpartition("#")[0]
        name = f"{PurePosixPath(tar).stem}-{self.sample}-{fingerprint(tar)[:8]}"
        return replace(self, implied_id=name)

    @property
    def metadata(self) -> tuple[object, ...]:
        """All that the source says of the file; equal to `NO_METADATA` where a listing named it and nothing more.

        Its `repr` is hashed and kept in the table of recordings, so the order stays.
        """
        info: tuple[object, ...] = _hashed_by_place(self.info)
        if implied := self.implied_info:
            info = tuple(None if name in implied else getattr(self.info, name) for name in _HASHED_BY_PLACE)
        named = (*((name, getattr(self.info, name)) for name in _HASHED_BY_NAME), ("weight", self.weight))
        later = [(name, value) for name, value in named if value is not None]
        if isinstance(self.words, tuple):
            later.append(("words", self.words))
        return (self.id, self.text, *info, self.split, self.channel, self.start_ms, self.end_ms, *later)

    def located(self, file: SourceEntry) -> SourceEntry:
        """This metadata, of that file."""
        return replace(self, uri=file.uri, etag=file.etag, num_bytes=file.num_bytes, failure=file.failure)

    def failed(self, uri: str, kind: str, detail: str | None = None) -> SourceEntry:
        """This metadata, of a file that cannot be used."""
        return replace(self, uri=uri, failure=Failure(kind, detail))


NO_METADATA = SourceEntry(uri="").metadata


def local_entry(path: str) -> SourceEntry:
    """A local file with its size and its etag, which is made of time and size; without them where it is not there."""
    try:
        path.encode()
    except UnicodeEncodeError:
        escaped = path.encode("utf-8", "backslashreplace").decode()
        return SourceEntry(uri=escaped, failure=Failure(FailureKind.BAD_NAME, "it is not UTF-8; rename the file"))
    try:
        stat = os.stat(_BYTE_RANGE.sub("", path) if "#" in path else path)
    except (OSError, ValueError):
        return SourceEntry(uri=path)
    failure = None if is_file(stat) else Failure(FailureKind.NOT_READ, NOT_A_FILE)
    return SourceEntry(uri=path, etag=local_etag(stat), num_bytes=stat.st_size, failure=failure)


def resolve(audio: str, manifest: str) -> SourceEntry:
    """The file that a manifest means by a path or URI: its paths start where it lies."""
    if "://" in audio and not is_local(audio):
        return SourceEntry(uri=audio)
    if is_local(manifest):
        path = os.path.expanduser(str(local_path(audio)))
        return local_entry(os.path.normpath(os.path.join(folder_of(manifest), path)))
    return SourceEntry(uri=f"{folder_of(manifest)}/{audio}")


def resolve_either(audio: str, manifest: str) -> SourceEntry:
    """The file that a list means by a path, which starts where the list lies, or else where the command runs."""
    file = resolve(audio, manifest)
    is_path = "://" not in audio and is_local(manifest) and file.failure is None
    return local_entry(os.path.abspath(audio)) if is_path and not file.etag and os.path.exists(audio) else file


def folder_of(manifest: str) -> str:
    """The folder in which a manifest lies."""
    return _folder_from(os.getcwd(), manifest)


@functools.lru_cache(maxsize=1)  # lines of one manifest follow one another
def _folder_from(_: str, manifest: str) -> str:
    """The same for a process in this working directory, which a path may start at."""
    if is_local(manifest):
        return str(local_path(manifest).expanduser().absolute().parent)
    return manifest.rpartition("/")[0]


# ------------------------------------------------------------------------------------------------- values of a row


def metadata_of(row: Mapping[str, object], where: str) -> SourceEntry:
    """What a row says of its audio but for its times, as an entry without a file; DataError if a value is wrong."""
    texts = {column: _text(row, column, where) for column in COLUMN_NAMES if column != "audio"}
    channel = row.get("channel")
    if channel is not None and (
        isinstance(channel, bool) or not isinstance(channel, int | float) or not 0 <= channel < 1 << 15
    ):
        raise bad_row(where, f"`channel` is {channel!r}, not a channel number from 0")
    name = (texts["split"] or _split_of_later_names(row, where) or "").strip()
    implied_split = None if name.lower() in NO_SPLIT else split_named(name)
    if name.lower() not in NO_SPLIT and implied_split is None:
        raise bad_row(where, f"`split` is {name!r}: write train, dev or test, or leave it out")
    later = {
        column: next((value for name in names if isinstance(value := row.get(name), str) and value), None)
        for column, names in LATER_NAMES.items()
        if column in INFO_COLUMNS and texts[column] is None
    }
    _refuse_translation(row, where)
    split: Any = name if texts["split"] and name in get_args(Split) else None
    return SourceEntry(
        uri="",
        id=texts["id"],
        implied_id=stripped(texts["id"]),
        text=texts["text"],
        info=UtteranceInfo(**{column: texts[column] or later.get(column) for column in INFO_COLUMNS}),
        split=split,
        implied_split=implied_split,
        channel=None if channel is None else int(channel),
        weight=_weight(row, where),
        where=where,
        implied_info=tuple(column for column, value in later.items() if value is not None),
        columns=tuple(row),
    )


def _weight(row: Mapping[str, object], where: str) -> float | None:
    """How much the loss of a row counts; None if it counts as any other does. DataError if it is not a weight."""
    if (weight := row.get("weight")) in (None, ""):
        return None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= MOST_WEIGHT:
        raise bad_row(where, f"`weight` is {weight!r:.40}, not a number from 0 to {MOST_WEIGHT:,}")
    return None if weight == 1 else float(weight)


def _split_of_later_names(row: Mapping[str, object], where: str) -> str | None:
    """What columns such as `subset` call a split, where they name one; DataError if they name several."""
    values = ((name, value) for name in LATER_NAMES["split"] if isinstance(value := row.get(name), str))
    named = {name: value for name, value in values if split_named(value.strip())}
    if len({split_named(value.strip()) for value in named.values()}) > 1:
        raise bad_row(where, f"{_contradiction(row, list(named))}: set the split in a column `split`")
    return next(iter(named.values()), None)


def stripped(name: str | None) -> str | None:
    """An id without the spaces around it; None if there are none, and where it is nothing else."""
    return None if name is None or name.strip() in ("", name) else name.strip()


def _refuse_translation(row: Mapping[str, object], where: str) -> None:
    """DataError for a row of NeMo whose text is in another language than its audio."""
    spoken, written = row.get("source_lang"), row.get("target_lang")
    if isinstance(spoken, str) and isinstance(written, str) and spoken != written:
        raise bad_row(where, f"`source_lang` is {spoken!r} and `target_lang` {written!r}: its text is a translation")


def split_named(name: str) -> Split | None:
    """The split that a data set means by a name: `validation` is dev, `test-clean` is test; None for other names."""
    word = _SPLIT_WORD.match(name.lower())
    return SPLIT_NAMES.get("".join(filter(None, word.groups()))) if word else None


def stretch_ms(row: Mapping[str, object], where: str) -> tuple[int | None, int | None, int | None]:
    """Start and end of the stretch that a row means, and the length of the whole file where it means that.

    `start_ms` and `end_ms` come first; other tools write seconds: `offset` or `start`, and `duration` or `end`.
    DataError if a value is no time, and where two names of one time have different values.
    """
    start_ms, end_ms = (_one_time_ms(row, names, where) for names in (START_NAMES, END_NAMES))
    duration_ms = time_ms(row, "duration", where, 1000)
    if end_ms is None and start_ms is not None and duration_ms is not None:
        end_ms = start_ms + duration_ms
    is_whole = start_ms is None and end_ms is None
    if not is_whole:
        _refuse_half_stretch(row, start_ms, end_ms, where)
    return start_ms, end_ms, duration_ms if is_whole else None


def _refuse_half_stretch(row: Mapping[str, object], start_ms: int | None, end_ms: int | None, where: str) -> None:
    """DataError if the other end of a stretch has a name that is not known: the stretch would be another one."""
    starts, ends = like_times(tuple(row))
    unread = (*(starts if start_ms is None else ()), *(ends if end_ms is None else ()))
    for name in unread:
        if row[name] not in (None, ""):
            why = f"`{name}` is {row[name]!r}, which looks like a time but is not a known column"
            raise bad_row(
                where, f"{why}: rename it to `start_ms` or `end_ms`, or in seconds `start`, `end` or `duration`"
            )


def _one_time_ms(row: Mapping[str, object], names: Sequence[str], where: str) -> int | None:
    """A time in milliseconds that a row may call by several names; DataError if they contradict one another."""
    unit_of = {names[0]: 1, **dict.fromkeys(names[1:], 1000)}
    times = {name: ms for name, unit in unit_of.items() if (ms := time_ms(row, name, where, unit)) is not None}
    if times and max(times.values()) - min(times.values()) > _SAME_TIME_MS:
        raise bad_row(where, f"{_contradiction(row, list(times))}: it is not clear which time is meant")
    return next(iter(times.values()), None)


def _contradiction(row: Mapping[str, object], names: Sequence[str]) -> str:
    return " and ".join(f"`{name}` is {row[name]!r}" for name in names)


def timed(entry: SourceEntry, start_ms: int | None, end_ms: int | None, where: str) -> SourceEntry:
    """The entry as the stretch between two times; DataError if they are none."""
    if (start_ms or 0) < 0 or (end_ms is not None and end_ms <= (start_ms or 0)):
        raise bad_row(where, f"it starts at {start_ms or 0} ms and ends at {end_ms} ms")
    return replace(entry, start_ms=start_ms, end_ms=end_ms)


def with_known_names(row: Mapping[str, object], where: str) -> Mapping[str, object]:
    """The row with its columns as they are known, such as `text` for `Text`; DataError if that makes two of one."""
    if all(name == spelling(name) for name in row):
        return row
    spelled: dict[str, object] = {}
    for name, value in row.items():
        known = spelling(name)
        if spelled.get(known) in (None, ""):
            spelled[known] = value
        elif value not in (None, "", spelled[known]):
            values = f"{spelled[known]!r} and {value!r}"
            raise bad_row(
                where, f"two columns are both `{known}`, with {values}: it is not clear which of them is right"
            )
    return spelled


def value_of(row: Mapping[str, object], column: str) -> object:
    """The first value among the names of a column; None if it has none."""
    return next((row[name] for name in COLUMN_NAMES[column] if row.get(name) is not None), None)


def _text(row: Mapping[str, object], column: str, where: str) -> str | None:
    value = value_of(row, column)
    if column == "text":
        texts = {name: text.split() for name in COLUMN_NAMES[column] if isinstance(text := row.get(name), str) and text}
        if len(set(map(tuple, texts.values()))) > 1:
            raise bad_row(where, f"{_contradiction(row, list(texts))}: it is not clear which of them is spoken")
    if column in {"id", "speaker"} and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise bad_row(where, f"`{column}` is {value!r}, not text")
    return value if column == "text" else value or None


def time_ms(row: Mapping[str, object], column: str, where: str, unit_ms: int = 1) -> int | None:
    """A time of a row in milliseconds, which stands there in units of `unit_ms`; None if there is none."""
    value = row.get(column)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise bad_row(where, f"`{column}` is {value!r}, not {'milliseconds' if unit_ms == 1 else 'seconds'}")
    return round(value * unit_ms)


def bad_row(where: str, why: str) -> DataError:
    """The error of a line that cannot be read."""
    return DataError(f"{where} is not a line of a manifest", code="bad-line", why=why, fix="correct or remove the line")
