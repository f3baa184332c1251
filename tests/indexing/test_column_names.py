"""Columns are known in any spelling, and one that looks like a time is never passed over beside one that is read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import entries_in, indexed, refused, wav, write_tar
from voxstill.indexing.columns import ColumnsRead


def manifest(folder: Path, form: str, row: dict[str, object]) -> Path:
    """A manifest with one row, of the audio beside it."""
    (folder / "a.wav").write_bytes(wav())
    path = folder / f"m.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif form == "csv":
        path.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    else:
        path.write_text(json.dumps(row) + "\n")
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_columns_are_known_in_capitals_and_with_spaces_around_them(tmp_path: Path, form: str) -> None:
    row: dict[str, object] = {"Audio": "a.wav", " Text": "hello", "SPLIT": "Test", "Speaker ": "ann", "End": 0.1}
    [entry] = entries_in(manifest(tmp_path, form, row))
    assert Path(entry.uri).name == "a.wav"
    assert (entry.text, entry.implied_split, entry.info.speaker, entry.end_ms) == ("hello", "test", "ann", 100)


def test_columns_of_a_sample_and_of_a_folder_are_known_in_capitals_too(tmp_path: Path) -> None:
    [row] = entries_in(write_tar(tmp_path / "t.tar", {"a.wav": wav(), "a.json": b'{"Text": "hello", "Split": "dev"}'}))
    assert (row.text, row.split) == ("hello", "dev")
    (tmp_path / "t.tar").unlink()
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "metadata.csv").write_text("File_Name,Transcription\na.wav,hello\n")
    assert [row.text for row in entries_in(tmp_path) if row.text] == ["hello"]


def test_two_spellings_of_one_column_must_agree(tmp_path: Path) -> None:
    [entry] = entries_in(manifest(tmp_path, "jsonl", {"audio": "a.wav", "text": "", "Text": "hello"}))
    assert entry.text == "hello"
    error = refused(manifest(tmp_path, "jsonl", {"audio": "a.wav", "text": "hello", "Text": "good morning"}))
    assert "two columns are both `text`" in error.why


def test_the_log_names_columns_as_they_are_written() -> None:
    columns = ColumnsRead()
    columns.add(("Audio", "Comment"))
    assert str(columns) == "read `Audio` as audio; ignored `Comment`"


@pytest.mark.parametrize(
    ("row", "split"),
    [
        ({"subset": "test-clean"}, "test"),
        ({"Subset": "dev"}, "dev"),
        ({"subset": "xl"}, None),
        ({"subset": "xl", "partition": "test"}, "test"),
        ({"subset": "test", "split": "train"}, "train"),
        ({"subset": "train", "set": "test", "split": "dev"}, "dev"),
        ({"fold": "test"}, "test"),
        ({"fold": 3, "usage": "Validation"}, "dev"),
    ],
)
def test_a_subset_that_is_named_after_a_split_is_that_split(
    tmp_path: Path, row: dict[str, object], split: str | None
) -> None:
    [entry] = entries_in(manifest(tmp_path, "jsonl", {"audio": "a.wav", **row}))
    assert (entry.split or entry.implied_split) == split


def test_columns_that_name_several_splits_are_refused(tmp_path: Path) -> None:
    error = refused(manifest(tmp_path, "jsonl", {"audio": "a.wav", "subset": "train-other", "set": "test"}))
    assert "`subset` is 'train-other' and `set` is 'test': set the split in a column `split`" in str(error.why)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
    "times",
    [
        {"begin_ms": 50, "end_ms": 150},
        {"startOfSegment": 0.05, "end": 0.15},
        {"offset": 0.05, "duration_ms": 100},
        {"start": 0.05, "stop_sample": 2400},
    ],
)
def test_a_time_by_a_name_that_is_not_known_is_refused_beside_one_that_is(
    tmp_path: Path, form: str, times: dict[str, object]
) -> None:
    error = refused(manifest(tmp_path, form, {"audio": "a.wav", **times}))
    unknown = next(name for name in times if name not in ("end_ms", "end", "offset", "start"))
    assert "looks like a time" in error.why
    assert f"`{unknown}`" in error.why


@pytest.mark.parametrize(
    ("times", "stretch"),
    [
        ({"start": 0.05, "stop": 0.15}, (50, 150)),
        ({"start_ms": 50, "end_ms": 150, "begin_sample": 800, "duration_ms": 100}, (50, 150)),
        ({"start": 0.05, "duration": 0.1, "gender": 1}, (50, 150)),
        ({"duration": 0.2, "duration_ms": 200}, (0, 200)),
    ],
)
def test_columns_beside_a_whole_stretch_are_passed_over(
    tmp_path: Path, times: dict[str, object], stretch: tuple[int, int]
) -> None:
    [file] = indexed(manifest(tmp_path, "jsonl", {"audio": "a.wav", "text": "hello", **times}))
    assert [(row.start_ms, row.end_ms) for row in file.utterances] == [stretch]
