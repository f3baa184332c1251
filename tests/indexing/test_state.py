"""What the tables of an index know of each file of the source."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import SourceFile, by_file
from voxstill.indexing.segment import IndexedFile, IndexRow, failed
from voxstill.indexing.state import IndexState, Status
from voxstill.storage import tables
from voxstill.storage.store import Store

_numbers = count()


def file_of(entry: SourceEntry) -> SourceFile:
    [file] = by_file([entry])
    return file


def indexed(file: SourceFile) -> IndexedFile:
    entry = file.entries[0]
    row = IndexRow(id=file.id, uri=entry.uri, duration_ms=1000, metadata_hash=file.metadata_hash)
    return IndexedFile(
        recording=row, utterances=(Utterance(id=entry.id or file.id, recording_id=file.id, uri=entry.uri, end_ms=1000),)
    )


def state_of(*files: IndexedFile) -> IndexState:
    work = Store(f"memory://test-state-{next(_numbers)}")
    utterances = [utterance for file in files for utterance in file.utterances]
    work.create("r/0.parquet", tables.to_parquet([file.recording for file in files], IndexRow))
    work.create("u/0.parquet", tables.to_parquet(utterances, Utterance))
    return IndexState(work, "r", "u")


ENTRY = SourceEntry(uri="s3://b/a.wav", etag="v1", text="one")


def test_a_file_is_new_done_edited_or_changed() -> None:
    state = state_of(indexed(file_of(ENTRY)))
    assert state.status(file_of(SourceEntry(uri="s3://b/b.wav"))) == Status.NEW
    assert state.status(file_of(ENTRY)) == Status.DONE
    assert state.status(file_of(replace(ENTRY, text="two"))) == Status.EDITED
    assert state.status(file_of(replace(ENTRY, etag="v2"))) == Status.CHANGED


def test_only_transient_failures_are_retried_unless_the_source_has_changed() -> None:
    file, mended = file_of(ENTRY), file_of(replace(ENTRY, text="two"))
    unreadable = state_of(failed(file, Failure(FailureKind.UNREADABLE, "timeout")))
    assert unreadable.status(file) == Status.RETRY
    damaged = state_of(failed(file, Failure("truncated", "1 s found")))
    assert damaged.status(file) == Status.DONE
    assert damaged.status(mended) == Status.RETRY
    assert damaged.figures("r").reasons == {"truncated": 1}


def test_an_id_that_another_file_has_is_refused() -> None:
    state = state_of(indexed(file_of(replace(ENTRY, id="x"))))
    with pytest.raises(DataError, match="`x` is already used"):
        state.missing([file_of(SourceEntry(uri="s3://b/b.wav", id="x"))])
