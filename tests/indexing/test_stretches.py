"""A row that means a part of a file gives its text to that part alone; one that is wrong costs that row alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import voxstill
from manifests import indexed, wav, write_tar
from voxstill.core.config import Config, Source
from voxstill.core.errors import DataError
from voxstill.indexing.segment import IndexedFile


def manifest(folder: Path, *rows: Mapping[str, object]) -> Path:
    (folder / "a.wav").write_bytes(wav(seconds=14.0))
    path = folder / "manifest.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def stretches(files: list[IndexedFile]) -> list[tuple[int, int, str | None]]:
    return [(row.start_ms, row.end_ms, row.text) for file in files for row in file.utterances]


@pytest.mark.parametrize("audio", ["audio", "path", "file_name", "audio_filepath", "wav"])
@pytest.mark.parametrize(
    "times",
    [
        {"offset": 3.0, "duration": 2.0},
        {"start": 3.0, "end": 5.0},
        {"start_time": 3, "end_time": 5},
        {"start": 3.0, "duration": 2.0},
        {"start_ms": 3000, "end_ms": 5000, "duration": 99.0},
    ],
    ids=str,
)
def test_times_in_seconds_are_read_beside_every_name_of_the_audio(
    tmp_path: Path, audio: str, times: Mapping[str, float]
) -> None:
    files = indexed(manifest(tmp_path, {audio: "a.wav", "text": "two seconds", **times}))
    assert stretches(files) == [(3000, 5000, "two seconds")]


def test_a_duration_that_contradicts_the_audio_is_a_reason(tmp_path: Path) -> None:
    (file,) = indexed(manifest(tmp_path, {"audio": "a.wav", "text": "two seconds", "duration": 2.0}))
    assert file.utterances == ()
    assert (
        file.recording.error
        == "not the length that the manifest says: 2 s in the manifest, 14 s of audio: of another file?"
    )


@pytest.mark.parametrize("duration", [13.6, 14.0, 14.4])
def test_a_duration_that_is_nearly_right_is_no_trouble(tmp_path: Path, duration: float) -> None:
    (file,) = indexed(manifest(tmp_path, {"audio": "a.wav", "text": "all of it", "duration": duration}))
    assert [row.text for row in file.utterances] == ["all of it"]


def test_a_segment_that_cannot_be_used_leaves_the_others(tmp_path: Path) -> None:
    rows = [{"audio": "a.wav", "start": second, "end": second + 2, "text": f"at {second}"} for second in (0, 6, 30)]
    (file,) = indexed(manifest(tmp_path, *rows))
    assert [row.text for row in file.utterances] == ["at 0", "at 6"]
    assert file.recording.error is None
    assert len(file.recording.segment_errors) == 1
    assert file.recording.segment_errors[0].startswith("beyond the end: the manifest says 30000 to 32000 ms")


def test_a_channel_that_is_not_there_leaves_the_others(tmp_path: Path) -> None:
    rows = [{"audio": "a.wav", "channel": channel, "text": f"of {channel}"} for channel in (0, 3)]
    (file,) = indexed(manifest(tmp_path, *rows))
    assert [row.text for row in file.utterances] == ["of 0"]
    assert len(file.recording.segment_errors) == 1


SAMPLES: list[tuple[dict[str, float], object]] = [
    ({"offset": 3.0, "duration": 2.0}, (3000, 5000, "words")),
    ({"start_ms": 3000, "end_ms": 5000}, (3000, 5000, "words")),
    ({"begin_time": 3.0, "end_time": 5.0}, (3000, 5000, "words")),
    ({"start": 12.0}, (12_000, 14_000, "words")),
    ({"offset": 0.0, "duration": 14.2}, (0, 14_000, "words")),
    ({"begin_time": 2900.0, "end_time": 2914.1}, (0, 14_000, "words")),  # cut from a longer recording
    ({"start": 2900.0}, (0, 14_000, "words")),
    ({"start": 2900.0, "end": 2902.0}, "beyond the end"),
    ({"duration": 2.0}, "not the length that the manifest says"),
    ({"start": -1.0}, "unreadable description"),
]


@pytest.mark.parametrize(("times", "expected"), SAMPLES, ids=str)
def test_times_in_the_description_of_a_sample_are_read_too(
    tmp_path: Path, times: dict[str, float], expected: object
) -> None:
    description = json.dumps({"text": "words", **times}).encode()
    (file,) = indexed(write_tar(tmp_path / "t.tar", {"a.wav": wav(seconds=14.0), "a.json": description}))
    assert (stretches([file]) or [(file.recording.error or "").partition(":")[0]]) == [expected]


def test_times_beside_audio_inside_parquet_are_read_too(tmp_path: Path) -> None:
    rows = {"audio": [wav(300, 14.0), wav(400, 14.0)], "text": ["two seconds", "all"], "offset": [3.0, 0.0]}
    pq.write_table(pa.table({**rows, "duration": [2.0, 14.0]}), tmp_path / "a.parquet")
    cfg = Config(work=str(tmp_path / "work"), source=Source(uri=str(tmp_path / "a.parquet")), engine="inline")
    assert voxstill.index(cfg).hours == 16 / 3600


def test_an_index_that_was_made_before_such_times_were_read_goes_on(tmp_path: Path) -> None:
    hashes = set()
    for times in ({}, {"offset": 3.0, "duration": 2.0}):
        description = json.dumps({"text": "words", **times}).encode()
        write_tar(tmp_path / "t.tar", {"a.wav": wav(seconds=14.0), "a.json": description})
        hashes |= {file.recording.metadata_hash for file in indexed(tmp_path / "t.tar")}
    assert len(hashes) == 1


@pytest.mark.parametrize("times", [{}, {"start": 3.0, "end": 5.0}], ids=str)
def test_two_rows_that_say_different_things_of_one_stretch_are_refused(tmp_path: Path, times: dict[str, float]) -> None:
    rows = [{"audio": "a.wav", "text": text, **times} for text in ("one", "two")]
    with pytest.raises(DataError, match=r"two rows differ about .*a\.wav") as caught:
        indexed(manifest(tmp_path, *rows))
    assert "manifest.jsonl:1 and " in caught.value.why
    assert len(stretches(indexed(manifest(tmp_path, rows[0], rows[0])))) == 1
    assert len(stretches(indexed(manifest(tmp_path, *({**row, "id": row["text"]} for row in rows))))) == 2
    other = {**rows[1], "start": 6.0, "end": 7.0}
    assert len(stretches(indexed(manifest(tmp_path, {**rows[0], "start": 3.0, "end": 5.0}, other)))) == 2
