"""Manifests that are tables, from real files that the tests write."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import entries_in, refused, wav
from voxstill.core.records import UtteranceInfo


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_the_same_manifest_in_every_form_is_the_same_source(tmp_path: Path, ending: str) -> None:
    (tmp_path / "ä, b.wav").write_bytes(b"x")
    rows = [
        {"audio": "ä, b.wav", "id": "1", "text": 'say "yes"', "start_ms": 0, "end_ms": 900, "channel": 1},
        {"audio": "ä, b.wav", "id": "2", "text": "two\nlines", "speaker": "s", "split": "dev", "language": "de"},
    ]
    path = tmp_path / f"m.{ending}"
    columns = ["audio", "id", "text", "start_ms", "end_ms", "channel", "speaker", "split", "language", "extra"]
    if ending == "parquet":
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in columns}), path)
    elif ending == "csv":
        cells = [
            ["" if row.get(c) is None else '"' + str(row[c]).replace('"', '""') + '"' for c in columns] for row in rows
        ]
        path.write_text("\n".join(",".join(row) for row in [columns, *cells]), encoding="utf-8-sig")
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    one, two = entries_in(path)
    assert (one.uri, one.num_bytes, one.id, one.text) == (str(tmp_path / "ä, b.wav"), 1, "1", 'say "yes"')
    assert (one.start_ms, one.end_ms, one.channel, one.info.speaker) == (0, 900, 1, None)
    assert (two.text, two.split, two.end_ms) == ("two\nlines", "dev", None)
    assert two.info == UtteranceInfo(speaker="s", language="de")
    assert one.where is not None
    assert one.where.startswith(f"{path}:")


def test_columns_may_have_the_names_of_other_tools(tmp_path: Path) -> None:
    rows = [
        {"audio_filepath": "a.wav", "text": "nemo", "offset": 1.5, "duration": 0.25, "lang": "en"},
        {"file_name": "b.wav", "transcription": "hf", "speaker_id": 4},
        {"path": "c.mp3", "sentence": "common voice", "client_id": "x", "locale": "fr", "duration": 3.0},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    nemo, hf, common = entries_in(tmp_path / "m.jsonl")
    assert (nemo.text, nemo.start_ms, nemo.end_ms, nemo.info.language) == ("nemo", 1500, 1750, "en")
    assert (hf.text, hf.info.speaker) == ("hf", "4")
    assert (common.text, common.info.speaker, common.info.language, common.end_ms) == ("common voice", "x", "fr", None)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("file_name,text\na.wav,x\nb.wav,y,z\n", 3, "more cells"),
        ("file_name,start_ms\na.wav,soon\n", 2, "`start_ms` is 'soon'"),
        ("file_name,channel\na.wav,-1\n", 2, "`channel` is -1"),
        ("name,text\na.wav,x\n", 1, "one of them `audio`"),
    ],
)
def test_a_bad_line_of_a_table_is_named(tmp_path: Path, text: str, line: int, why: str) -> None:
    (tmp_path / "m.csv").write_text(text)
    error = refused(tmp_path / "m.csv")
    assert f"{tmp_path / 'm.csv'}:{line} " in error.what
    assert why in error.why


def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    for name, data in [("m.jsonl", b'{"audio": "a.wav"}\n{"audio": "\xff"}'), ("m.lst", b"a.wav\n\xff.wav\n")]:
        (tmp_path / name).write_bytes(data)
        assert f"{name}:2 " in refused(tmp_path / name).what
    (tmp_path / "m.csv").write_bytes(b"file_name\n\xff\n")
    assert "m.csv:" in refused(tmp_path / "m.csv").what


def test_a_list_has_one_address_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"x")
    (tmp_path / "l.txt").write_text("\ufeffa.wav\n\n  s3://bucket/b c.wav \r\n/far/d.wav\n", encoding="utf-8")
    assert [row.uri for row in entries_in(tmp_path / "l.txt")] == [
        str(tmp_path / "a.wav"),
        "s3://bucket/b c.wav",
        "/far/d.wav",
    ]


def test_parquet_as_hugging_face_writes_it_is_read_where_it_names_files(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for name, data in [("paths.parquet", None), ("bytes.parquet", wav())]:
        audio = pa.array([{"bytes": data, "path": f"{k}.wav"} for k in range(3000)], kind)
        texts = pa.array([str(k) for k in range(3000)])
        pq.write_table(pa.table({"audio": audio, "sentence": texts}), tmp_path / name, row_group_size=700)
    entries = entries_in(tmp_path / "paths.parquet")
    assert [entry.text for entry in entries] == [str(k) for k in range(3000)]
    assert entries[-1].uri == str(tmp_path / "2999.wav")
    assert "contains the audio itself" in refused(tmp_path / "bytes.parquet").what
    (tmp_path / "no.parquet").write_bytes(b"PAR1 nothing of the kind PAR1")
    assert "not a Parquet manifest" in refused(tmp_path / "no.parquet").what


def test_a_truncated_gzipped_manifest_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"audio": "a.wav"}\n' * 1000)[:-20])
    assert "is damaged" in refused(path).what


def test_the_shared_manifest_has_the_same_rows_as_a_table(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shared_data("fsdd")
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    for row in rows:
        row["audio"] = str(folder / row["audio"])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "m.parquet")
    assert entries_in(tmp_path / "m.parquet") == entries_in(folder / "manifest.jsonl")


@pytest.mark.parametrize("row", [{"offset": 1.0, "start_ms": 2000}, {"text": "one", "transcript": "two"}], ids=str)
def test_columns_that_contradict_one_another_are_refused(tmp_path: Path, row: dict[str, object]) -> None:
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio": "a.wav", **row}))
    error = refused(tmp_path / "m.jsonl")
    assert all(f"`{name}` is {value!r}" in error.why for name, value in row.items())


def test_columns_that_say_the_same_are_read(tmp_path: Path) -> None:
    row = {"audio": "a.wav", "offset": 1.0004, "start_ms": 1000, "end": 3, "text": "one two", "sentence": " one  two"}
    (tmp_path / "m.jsonl").write_text(json.dumps(row))
    [entry] = entries_in(tmp_path / "m.jsonl")
    assert (entry.start_ms, entry.end_ms, entry.text) == (1000, 3000, "one two")


@pytest.mark.parametrize(("name", "separator"), [("m.csv", ","), ("m.tsv", "\t")])
def test_a_header_that_names_a_column_twice_is_refused(tmp_path: Path, name: str, separator: str) -> None:
    (tmp_path / name).write_text("\n".join(map(separator.join, [("audio", "text", "text"), ("a.wav", "one", "two")])))
    assert "`text` twice" in refused(tmp_path / name).why
    (tmp_path / name).write_text("\n".join(map(separator.join, [("audio", "text", "", ""), ("a.wav", "one", "", "")])))
    assert [entry.text for entry in entries_in(tmp_path / name)] == ["one"]


def test_spaces_around_ids_and_splits_are_no_part_of_them(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("audio,id,split\na.wav, u 1 , test \n")
    [entry] = entries_in(tmp_path / "m.csv")
    assert (entry.utterance_id, entry.split) == ("u 1", "test")
