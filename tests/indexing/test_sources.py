"""Folders and buckets that hold several forms of source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import entries_in, indexed, refused, wav, write_tar
from servers import http_server
from voxstill.core.config import Segment, Source
from voxstill.indexing.scan import by_file, scan
from voxstill.indexing.segment import index
from voxstill.storage.store import Store


def test_a_folder_with_metadata_knows_what_it_says_and_loses_no_file(tmp_path: Path) -> None:
    for name in ["train/a.wav", "train/deep/b.wav", "train/c.wav", "train/x.wav", "other.wav"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(wav())
    (tmp_path / "train/metadata.csv").write_text("file_name,transcription\na.wav,eins\ndeep/b.wav,zwei\n")
    (tmp_path / "train/deep/metadata.jsonl").write_text('{"file_name": "../c.wav", "text": "drei"}\n')
    files = list(by_file(scan(Source(uri=str(tmp_path)))))
    texts = {Path(file.entries[0].uri).name: [entry.text for entry in file.entries] for file in files}
    assert texts == {"a.wav": ["eins"], "b.wav": ["zwei"], "c.wav": ["drei"], "x.wav": [None], "other.wav": [None]}


def test_metadata_of_another_kind_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "metadata.csv").write_text("LJ001|Printing, in the only sense|Printing\n")
    assert [Path(row.uri).name for row in entries_in(tmp_path)] == ["a.wav"]


def test_a_bucket_holds_the_same_forms(tmp_path: Path) -> None:
    store = Store("memory://forms")
    tar = write_tar(tmp_path / "t.tar", {f"{k}.wav": wav(300 + k) for k in range(30)}).read_bytes()
    pq.write_table(pa.table({"audio": ["clips/a.wav"], "text": ["p"]}), tmp_path / "m.parquet")
    store.replace("set/clips/a.wav", wav())
    store.replace("set/clips/b.wav", wav(400))
    store.replace("set/metadata.csv", b"file_name,text\nclips/a.wav,said\n")
    store.replace("set/t.tar", tar)
    store.replace("set/m.parquet", (tmp_path / "m.parquet").read_bytes())
    store.replace("set/l.txt", b"clips/b.wav\n")
    files = list(by_file(scan(Source(uri="memory://forms/set"))))
    assert len(files) == 32
    texts = {file.entries[0].uri: file.entries[0].text for file in files}
    assert texts["memory://forms/set/clips/a.wav"] == "said"
    assert texts["memory://forms/set/clips/b.wav"] is None
    assert all(file.entries[0].etag for file in files)
    rows = [index(file, Segment(), Source(), 0) for file in files]
    assert {row.recording.error for row in rows} == {None}
    assert [row.text for row in entries_in("memory://forms/set/m.parquet")] == ["p"]
    assert [row.uri for row in entries_in("memory://forms/set/l.txt")] == ["memory://forms/set/clips/b.wav"]
    [read] = indexed("memory://forms/set/l.txt")
    assert read.recording.etag  # the list knows none: it is what the read answered
    assert "cannot read the manifest" in refused("memory://forms/none.jsonl").what


def test_one_file_far_away_knows_its_version_and_a_signature_is_never_shown() -> None:
    Store("memory://one").replace("a/b.wav", wav())
    [entry] = entries_in("memory://one/a/b.wav")
    assert (entry.uri, entry.num_bytes) == ("memory://one/a/b.wav", len(wav()))
    assert entry.etag
    for name in ("m.jsonl", "t.tar.gz"):
        error = refused(f"http://127.0.0.1:9/{name}?X-Amz-Signature=canary")
        assert "canary" not in f"{error}{error!r}"


def test_a_page_of_a_web_server_is_no_source_and_a_file_there_is() -> None:
    with http_server({"calls": b"<html>", "a": wav()}) as port:
        assert "does not list its files" in refused(f"http://127.0.0.1:{port}/calls/").why
        assert [row.num_bytes for row in entries_in(f"http://127.0.0.1:{port}/a")] == [len(wav())]
        assert "does not exist" in refused(f"http://127.0.0.1:{port}/none").why


def test_a_login_in_place_of_audio_is_tried_again_by_the_next_index(tmp_path: Path) -> None:
    objects = {"a.wav": b"<!DOCTYPE html><html>Please log in</html>"}
    with http_server(objects, content_type="text/html; charset=utf-8") as port:
        (tmp_path / "m.jsonl").write_text(f'{{"audio": "http://127.0.0.1:{port}/a.wav"}}\n')
        [row] = indexed(tmp_path / "m.jsonl")
        assert row.recording.failure is not None
        assert row.recording.failure.is_transient
        assert "web page" in str(row.recording.error)
        assert "web page" in refused(f"http://127.0.0.1:{port}/a.wav").what
        objects["a.wav"] = wav()  # a server that takes every file for a page
        assert [row.recording.error for row in indexed(tmp_path / "m.jsonl")] == [None]


def test_a_file_of_another_size_than_the_server_stated_is_tried_again_by_the_next_index() -> None:
    Store("memory://sized").replace("a.wav", wav())
    [file] = by_file(scan(Source(uri="memory://sized/a.wav")))
    for etag, num_bytes, is_whole in ((None, len(wav()), True), (None, len(wav()) + 100, False), ("other", 0, False)):
        entry = replace(file.entries[0], etag=etag, num_bytes=num_bytes)
        failure = index(replace(file, entries=(entry,)), Segment(), Source(), 0).recording.failure
        assert (failure is None) == is_whole
        assert failure is None or failure.is_transient


@pytest.mark.parametrize("name", ["metadata.parquet", "manifest.parquet", "m.parquet"])
@pytest.mark.parametrize("root", ["folder", "bucket"])
def test_a_torn_parquet_is_refused_in_words(tmp_path: Path, name: str, root: str) -> None:
    path = tmp_path / "set" / name
    path.parent.mkdir()
    pq.write_table(pa.table({"file_name": ["a.wav"] * 99, "audio": ["a.wav"] * 99}), path)
    whole = path.read_bytes()
    hurt = (b"", b"PAR1", whole[: len(whole) // 2], whole[:-9] + b"xPAR1xPAR", whole[:40] + bytes(60) + whole[100:])
    not_text = (whole.replace(b"file_name", b"file_\xffame"), whole.replace(b"a.wav", b"\xff.wav"))
    for data in (*hurt, *not_text):
        path.write_bytes(data)
        Store("memory://torn").replace(f"set/{name}", data)
        uri = path if root == "folder" else f"memory://torn/set/{name}"
        assert name in refused(uri).what


def test_a_name_that_is_not_utf8_is_a_row_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    bad = bytes(tmp_path) + b"/\xff\xfe.wav"
    Path(bad.decode("utf-8", "surrogateescape")).write_bytes(wav())
    reasons = [(row.recording.error or "fine").partition(":")[0] for row in indexed(tmp_path)]
    assert sorted(reasons) == ["fine", "unreadable name"]
