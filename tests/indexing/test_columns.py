"""What of a row is read and what is not is told once for each source; other tools' names of columns are known."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import entries_in, refused, wav, write_tar
from voxstill.core.config import Source
from voxstill.indexing.columns import ColumnsRead
from voxstill.indexing.scan import by_file, scan


def words_of(uri: Path | str | list[str], caplog: pytest.LogCaptureFixture) -> str:
    """What the only line about columns says."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "voxstill"):
        list(scan(Source(uri=uri if isinstance(uri, list) else str(uri))))
    [line] = [record.getMessage() for record in caplog.records if "columns of" in record.getMessage()]
    return line.partition(": columns of ")[2].partition(": ")[2]


ROWS: list[tuple[dict[str, Any], str]] = [
    (
        {"audio": "a.wav", "transcription": "x", "speaker_id": 3, "lang": "de", "accent": "bavarian", "gender": 1},
        "read `audio`, `transcription` as text, `speaker_id` as speaker, `lang` as language, `accent` as dialect; "
        "ignored `gender`",
    ),
    (
        {"audio_filepath": "a.wav", "duration": 0.2, "offset": 0.0, "text": "x", "pred_text": "y", "target_lang": "de"},
        "read `audio_filepath` as audio, `duration`, `offset`, `text`, `target_lang` as language; ignored `pred_text`",
    ),
    ({"key": "u", "wav": "a.wav", "txt": "x"}, "read `key` as id, `wav` as audio, `txt` as text"),
    ({"key": "u", "audio": "a.wav"}, "read `audio`; ignored `key`"),
]


@pytest.mark.parametrize(("row", "words"), ROWS)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_columns_are_told_by_what_they_are_read_as(
    tmp_path: Path, row: dict[str, Any], words: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    path = tmp_path / f"m.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row) + "\n")
    if form == "jsonl" or "key" not in row:
        assert words_of(path, caplog) == words


def test_a_source_of_many_files_has_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "ab":
        (tmp_path / f"{name}.wav").write_bytes(wav())
        (tmp_path / f"{name}.csv").write_text(f"path,sentence,{name}\n" + f"{name}.wav,x,\n" * 3)
    words = words_of([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], caplog)
    assert words == "read `path` as audio, `sentence` as text; ignored `a`, `b`"


def test_a_folder_without_descriptions_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    with caplog.at_level(logging.INFO, "voxstill"):
        list(scan(Source(uri=str(tmp_path))))
    assert "columns" not in caplog.text


def test_common_voice_kaldi_tars_and_cuts_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "train.tsv").write_text(
        "client_id\tpath\tsentence\tlocale\taccents\tage\nc\t../a.wav\tx\tde\tBavaria\t\n"
    )
    assert words_of(tmp_path / "train.tsv", caplog) == (
        "read `client_id` as speaker, `path` as audio, `sentence` as text, `locale` as language, `accents` as dialect; "
        "ignored `age`"
    )
    kaldi = tmp_path / "kaldi"
    kaldi.mkdir()
    for name, line in {"wav.scp": "u ../a.wav", "text": "u x", "utt2spk": "u s", "spk2utt": "s u", "a.txt": ""}.items():
        (kaldi / name).write_text(line + "\n")
    assert words_of(kaldi, caplog) == "read `text`, `utt2spk` as speaker, `wav.scp` as audio; ignored `spk2utt`"
    write_tar(tmp_path / "t.tar", {"a.wav": wav(), "a.txt": b"x", "a.json": b'{"speaker": "s", "x": 1}', "a.cls": b"1"})
    assert words_of(tmp_path / "t.tar", caplog) == "read `.txt` as text, `speaker`; ignored `x`, `.cls`"
    source = {"type": "file", "channels": [0], "source": str(tmp_path / "a.wav")}
    cut = {
        "id": "c", "start": 0, "duration": 0.2, "channel": 0, "custom": {}, "type": "MonoCut",
        "recording": {"id": "r", "sources": [source]},
        "supervisions": [{"id": "s", "start": 0, "duration": 0.2, "text": "x", "gender": "F"}],
    }  # fmt: skip
    (tmp_path / "cuts.jsonl").write_text(json.dumps(cut) + "\n")
    assert words_of(tmp_path / "cuts.jsonl", caplog) == (
        "read `id`, `start`, `duration`, `channel`, `type`, `recording` as audio, `supervisions.start` as start, "
        "`supervisions.duration` as duration, `supervisions.text` as text; "
        "ignored `custom`, `supervisions.id`"
        ", `supervisions.gender`"
    )


def test_names_that_came_later_are_no_part_of_the_metadata(tmp_path: Path) -> None:
    """An index made before they were known has nothing to do with a new one."""
    hashes = []
    for row in ({"accent": "bavarian", "source_lang": "de"}, {"accent": 3}, {}):
        (tmp_path / "m.jsonl").write_text(json.dumps({"audio": "a.wav", **row}) + "\n")
        [file] = by_file(entries_in(tmp_path / "m.jsonl"))
        hashes.append(file.metadata_hash)
        assert file.entries[0].info.dialect == ("bavarian" if "source_lang" in row else None)
        assert file.entries[0].info.language == row.get("source_lang")
    assert len(set(hashes)) == 1


def test_a_translation_is_no_transcript(tmp_path: Path) -> None:
    row = {"audio_filepath": "a.wav", "text": "hallo", "source_lang": "en", "target_lang": "de"}
    (tmp_path / "m.jsonl").write_text(json.dumps(row) + "\n")
    assert "is a translation" in refused(tmp_path / "m.jsonl").why


@pytest.mark.parametrize("part", ["recording", "supervision"])
def test_half_a_manifest_of_lhotse_is_refused_in_words(tmp_path: Path, part: str) -> None:
    row = {"id": "r", "sources": [], "sampling_rate": 16_000, "num_samples": 1, "duration": 1.0, "channel_ids": [0]}
    if part == "supervision":
        row = {"id": "s", "recording_id": "r", "start": 0.0, "duration": 1.0, "channel": 0, "text": "x"}
    (tmp_path / "m.jsonl").write_text(json.dumps(row) + "\n")
    assert "lhotse cut simple" in refused(tmp_path / "m.jsonl").why


def test_a_shard_of_ours_tells_that_its_text_is_a_label() -> None:
    columns = ColumnsRead()
    columns.add((".json", "text", "teacher", "reference"))
    assert str(columns) == "read `reference` as text; ignored `text`, `teacher`"
