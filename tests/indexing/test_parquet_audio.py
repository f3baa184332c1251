"""Parquet files with the audio inside, as Hugging Face stores data sets, are unpacked once and read."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import voxstill
from manifests import wav, write_tar
from voxstill.core.config import Config, Source
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import by_file, scan
from voxstill.storage.fetch import fetch
from voxstill.storage.store import Store

PITCHES = (300, 400, 500)
FEATURES = {"language": {"_type": "ClassLabel", "names": ["en", "de"]}, "audio": {"_type": "Audio"}}


def parquet(path: Path, rows: int = 3, pitch_hz: int = 0) -> Path:
    """A part of a data set of Hugging Face; each file has other audio and the same ids."""
    columns = {
        "audio": [{"bytes": wav(300 + 100 * k + pitch_hz), "path": f"{k}.wav"} for k in range(rows)],
        "id": [f"u{k}" for k in range(rows)],
        "sentence": [f"text {k}" for k in range(rows)],
        "language": [k % 2 for k in range(rows)],
        "speaker_id": list(range(rows)),
        "start": [7.0] * rows,
        "image": [b"x"] * rows,
    }
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2)
    return path


def entries_of(uri: Path | str, work: Path | str) -> list[SourceEntry]:
    return list(scan(Source(uri=str(uri)), Store(str(work))))


@pytest.mark.parametrize("where", ["file", "folder", "list", "bucket", "object"])
def test_rows_are_read_wherever_the_file_lies(tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture) -> None:
    path = parquet(tmp_path / "d/part.parquet")
    uri: Path | str = path if where == "file" else path.parent
    if where == "list":
        uri = tmp_path / "m.lst"
        uri.write_text("d/part.parquet\n")
    if where in ("bucket", "object"):
        Store(f"memory://parquet-{where}").replace("d/part.parquet", path.read_bytes())
        uri = f"memory://parquet-{where}/d" + "/part.parquet" * (where == "object")
    work = f"memory://parquet-{where}/work" if where in ("bucket", "object") else tmp_path / "work"
    with caplog.at_level(logging.INFO, "voxstill"):
        rows = entries_of(uri, work)
        assert rows == entries_of(uri, work)
    assert [fetch(row.uri).data for row in rows] == [wav(pitch_hz) for pitch_hz in PITCHES]
    facts = [(row.utterance_id, row.text, row.info.speaker, row.info.language, row.start_ms) for row in rows]
    assert facts == [(f"u{k}", f"text {k}", str(k), ("en", "de")[k % 2], None) for k in range(3)]
    assert sum("has audio inside Parquet: unpacking it took" in line for line in caplog.messages) == 1
    assert "`speaker_id` as speaker, `start`" in caplog.text


def test_splits_come_from_the_names_of_files_and_equal_ids_are_told_apart(tmp_path: Path) -> None:
    parts = (
        "train-00000-of-00002",
        "train-00001-of-00002",
        "validation-00000-of-00001-0a1b2c",
        "test.clean-00000-of-00001",
        "validation",
        "test_0",
    )
    for number, name in enumerate(parts):
        parquet(tmp_path / f"hf/data/{name}.parquet", pitch_hz=10 * number)
    cfg = Config(work=str(tmp_path / "work"), source=Source(uri=str(tmp_path / "hf")), engine="inline")
    figures = voxstill.index(cfg)
    assert (figures.recordings, figures.damaged) == (18, 0)
    assert figures.splits == {"train": 6, "dev": 6, "test": 6}
    files = by_file(scan(cfg.source, Store(cfg.work)))
    assert len({file.entries[0].utterance_id for file in files}) == 18


@pytest.mark.parametrize("ending", ["parquet", "tar.gz"])
def test_a_file_that_was_only_touched_is_not_unpacked_again(tmp_path: Path, ending: str) -> None:
    path, work = tmp_path / f"a.{ending}", tmp_path / "work"
    if ending == "parquet":
        parquet(path)
    else:
        write_tar(path, {"a.wav": wav()}, "w:gz")
    first = entries_of(path, work)
    os.utime(path, (1, 1))
    assert entries_of(path, work) == first
    assert len(list((work / "unpacked").iterdir())) == 1
    path.write_bytes(path.read_bytes())
    if ending == "parquet":
        parquet(path, rows=2)
        assert len(entries_of(path, work)) == 2
        assert len(list((work / "unpacked").iterdir())) == 2


def test_a_row_without_audio_and_a_file_that_breaks_off_are_recordings_with_a_reason(tmp_path: Path) -> None:
    rows = [{"audio": {"bytes": wav(), "path": None}}, {"audio": {"bytes": None, "path": "gone.wav"}}, {"audio": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    cfg = Config(work=str(tmp_path / "work"), source=Source(uri=str(tmp_path / "a.parquet")), engine="inline")
    figures = voxstill.index(cfg)
    assert (figures.recordings, figures.utterances, figures.reasons) == (3, 1, {"no audio": 2})
    reasons = [entry.failure and entry.failure.text for entry in entries_of(tmp_path / "a.parquet", cfg.work)]
    assert reasons == [None, *(f"no audio: row {row} of `{tmp_path}/a.parquet` has no bytes" for row in (2, 3))]

    path = parquet(tmp_path / "torn/b.parquet", rows=100)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4000] = b"x" * 4000
    path.write_bytes(data)
    torn = entries_of(path, tmp_path / "work2")
    assert torn[-1].failure is not None
    assert torn[-1].failure.text.startswith(f"damaged tar: after {len(torn) - 1} recordings")


def test_a_column_of_bytes_is_audio_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"wav": [wav()], "text": ["x"]}), tmp_path / "a.parquet")
    [row] = entries_of(tmp_path / "a.parquet", tmp_path / "work")
    assert (fetch(row.uri).data, row.text) == (wav(), "x")
