from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import soundfile

from voxstill.audio import codec
from voxstill.core.config import Segment, Source
from voxstill.core.records import Recording, Utterance
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import by_file, scan
from voxstill.indexing.segment import index

REASONS = {
    "not audio",
    "no audio",
    "truncated",
    "damaged",
    "silent",
    "not finite",
    "too long",
    "too short",
    "impossible rate",
}


def segment(entries: list[SourceEntry]) -> tuple[list[Recording], list[Utterance]]:
    rows = [index(file, Segment(), Source(), 0) for file in by_file(entries)]
    return [row.recording for row in rows], [utterance for row in rows for utterance in row.utterances]


def indexed(folder: Path) -> dict[str, Recording]:
    names = [json.loads(line)["file"] for line in (folder / "manifest.jsonl").read_text().splitlines()]
    entries = [row for name in names for row in scan(Source(uri=str(folder / name)))]
    recordings, utterances = segment(entries)
    assert len(recordings) == len(names)
    assert {utterance.recording_id for utterance in utterances} == {row.id for row in recordings if row.error is None}
    return dict(zip(names, recordings, strict=True))


def test_every_awkward_file_is_audio_or_a_row_with_a_reason(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("nasty-audio")
    rows = {json.loads(line)["file"]: json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()}
    recordings = indexed(folder)
    outcome = Counter(
        (rows[name]["kind"], (row.error or "sound").partition(":")[0]) for name, row in recordings.items()
    )
    assert {reason for _, reason in outcome} <= REASONS | {"sound"}
    for name, recording in recordings.items():
        if recording.error is None:
            assert recording.duration_ms
            assert recording.rate_hz
            assert recording.codec, name
    assert outcome["bad", "sound"] <= 12
    assert outcome["odd", "sound"] >= 10


def test_no_intact_file_is_shorter_than_libsndfile_decodes_it(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("nasty-audio")
    compared = 0
    for name, recording in indexed(folder).items():
        if recording.error is not None:
            continue
        try:
            with soundfile.SoundFile(io.BytesIO((folder / name).read_bytes())) as file:
                num_samples = len(file.read(60 * file.samplerate, always_2d=True)) if file.frames < 2**40 else 0
                longest_ms = 1000 * num_samples // file.samplerate
        except (soundfile.SoundFileError, RuntimeError):
            continue
        compared += 1
        assert recording.duration_ms is not None
        assert recording.duration_ms >= longest_ms - 1, name
    assert compared >= 8


def test_no_intact_file_is_shorter_than_ffmpeg_decodes_it(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("nasty-audio")
    compared = 0
    for name, recording in indexed(folder).items():
        if recording.error is not None:
            continue
        seconds = 0.0
        with av.open(folder / name) as container, contextlib.suppress(av.error.FFmpegError):
            for frame in container.decode(audio=0):
                seconds += frame.samples / frame.sample_rate
        compared += 1
        assert recording.duration_ms is not None
        assert recording.duration_ms >= 1000 * seconds - 1, name
    assert compared >= 12


def test_a_folder_of_awkward_files_is_indexed_around_them(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "good.flac").write_bytes(codec.encode(np.arange(-8000, 8000, dtype=np.int16), "flac"))
    entries: list[SourceEntry] = [*scan(Source(uri=str(shared_data("nasty-audio")))), *scan(Source(uri=str(tmp_path)))]
    recordings, utterances = segment(entries)
    assert recordings[-1].error is None
    assert utterances[-1].end_ms == 1_000
    assert not any(row.uri.endswith((".jsonl", ".md", ".txt")) for row in recordings)
