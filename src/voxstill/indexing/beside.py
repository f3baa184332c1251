"""Files beside audio that describe it: `x.txt`, `x.lab` or `x.json` is of `x.wav`, as in the sample of a tar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

from voxstill.core.errors import DataError, StorageError
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.formats.webdataset import AUDIO, TEXTS, Member, ambiguous, description
from voxstill.storage.fetch import Blob, RefusedError, read_many
from voxstill.storage.redaction import redact_uri

_AT_ONCE = 1024
"""Files of which the descriptions are read together."""


@dataclass(frozen=True, slots=True)
class _Audio:
    """A file with those that describe it; several may be described by the same."""

    file: SourceEntry
    descriptions: Sequence[SourceEntry] = ()
    num_audio: int = 1


def with_descriptions(files: Iterable[SourceEntry]) -> Iterator[SourceEntry]:
    """The files of a folder or bucket, with what the files beside them say of them, and without these.

    Files come sorted by name. What describes audio is read only where it is there, many files at a time.
    """
    rows = (row for sample in _samples(files) for row in _rows(sample))
    while batch := list(islice(rows, _AT_ONCE)):
        with closing(read_many(file.uri for row in batch for file in row.descriptions)) as answers:
            for row in batch:
                yield _described(row, [next(answers) for _ in row.descriptions]) if row.descriptions else row.file


def _samples(files: Iterable[SourceEntry]) -> Iterator[list[SourceEntry]]:
    """Files that follow one another and have the name of the first, up to its ending, in common."""
    sample: list[SourceEntry] = []
    for file in files:
        if sample and not file.uri.startswith(f"{_stem(sample[0])}."):
            yield sample
            sample = []
        sample.append(file)
    if sample:
        yield sample


def _rows(sample: Sequence[SourceEntry]) -> Iterator[_Audio]:
    if len(sample) == 1:
        yield _Audio(sample[0])
        return
    num_audio = Counter(_stem(file) for file in sample if _ending(file) in AUDIO)
    descriptions = [file for file in sample if _ending(file) in (*TEXTS, "json") and num_audio[_stem(file)]]
    for file in sample:
        if _ending(file) in AUDIO:
            own = [description for description in descriptions if _stem(description) == _stem(file)]
            yield _Audio(file, own, num_audio[_stem(file)])
        elif file not in descriptions:
            yield _Audio(file)


def _described(row: _Audio, answers: Sequence[Blob | StorageError | RefusedError]) -> SourceEntry:
    members = []
    for file, answer in zip(row.descriptions, answers, strict=True):
        if not isinstance(answer, Blob):
            detail = f"`{redact_uri(file.uri)}` beside it: {answer.why}"
            kind = FailureKind.UNREADABLE if isinstance(answer, StorageError) else FailureKind.BAD_DESCRIPTION
            return replace(row.file, failure=Failure(kind, detail))
        members.append(Member(_ending(file), redact_uri(file.uri), answer.data))
    try:
        metadata = description(members)
    except DataError as error:
        return replace(row.file, failure=Failure(FailureKind.BAD_DESCRIPTION, f"{error.what}: {error.why}"))
    if row.num_audio > 1 and metadata.text is not None:
        return replace(row.file, failure=ambiguous(_stem(row.file).rpartition("/")[2], row.num_audio))
    entry = replace(metadata.located(row.file), where=members[0].where, is_beside=True)
    return replace(entry, id=None, implied_id=None) if row.num_audio > 1 else entry


def _stem(file: SourceEntry) -> str:
    """The address without its ending."""
    folder, slash, name = file.uri.rpartition("/")
    return folder + slash + (name.rpartition(".")[0] or name)


def _ending(file: SourceEntry) -> str:
    return file.uri.rpartition("/")[2].rpartition(".")[2].lower()
