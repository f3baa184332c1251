"""Utterances are cut where another speaker begins, and have speakers of their recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from voxstill.audio import codec, vad
from voxstill.core.config import Segment, Source
from voxstill.core.records import UtteranceInfo
from voxstill.diarization.diarizer import Diarization
from voxstill.diarization.turns import Turn
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import by_file, scan
from voxstill.indexing.segment import IndexedFile, index

SOURCE = Source(dev_share=0.5, test_share=0.4)


def turns_of(*spans: tuple[int, int, int]) -> list[Turn]:
    return [Turn(start_ms=start, end_ms=end, speaker=speaker) for start, end, speaker in spans]


def write(folder: Path, channels: int = 1) -> SourceEntry:
    time_T = np.arange(4 * 16_000) / 16_000
    tone_T = (8_000 * np.sin(2 * np.pi * 200 * time_T)).astype(np.int16)
    path = folder / "a.wav"
    import soundfile

    soundfile.write(path, np.stack([tone_T, tone_T // 2][:channels], axis=1), 16_000, subtype="PCM_16")
    [entry] = scan(Source(uri=str(path)))
    return entry


def halves(samples_T: vad.Samples) -> Diarization:
    end_ms = len(samples_T) // 16
    return Diarization(turns=tuple(turns_of((0, 1_000, 1), (1_000, end_ms, 2))))


def run(*entries: SourceEntry, diarize: object = halves, source: Source = SOURCE) -> IndexedFile:
    [file] = by_file(entries)
    return index(file, Segment(), source, 0, diarize=diarize)  # type: ignore[arg-type]


def facts(row: IndexedFile) -> Sequence[tuple[int, int, str | None]]:
    return [(one.start_ms, one.end_ms, one.info.speaker) for one in row.utterances]


def test_a_short_recording_is_cut_at_turns_and_stays_in_one_split(tmp_path: Path) -> None:
    entry = write(tmp_path)
    row = run(entry)
    name = row.recording.id
    assert facts(row) == [(0, 1_000, f"{name}/1"), (1_000, 4_000, f"{name}/2")]
    whole = run(entry, diarize=None)
    assert facts(whole) == [(0, 4_000, None)]
    assert {one.split for one in row.utterances} == {one.split for one in whole.utterances}
    assert row.recording.speaker_doubts == ()
    assert whole.recording.speaker_doubts is None


def test_a_speaker_of_the_manifest_wins_and_is_not_cut(tmp_path: Path) -> None:
    entry = replace(write(tmp_path), info=UtteranceInfo(speaker="ann"))
    row = run(entry)
    assert facts(row) == [(0, 4_000, "ann")]
    assert row.recording.speaker_doubts is None  # nothing was diarized


def test_what_the_manifest_has_words_for_stays_whole(tmp_path: Path) -> None:
    entry = write(tmp_path)
    row = run(replace(entry, text="la la", id="one"))
    assert facts(row) == [(0, 4_000, f"{row.recording.id}/2")]
    assert [(one.id, one.text) for one in row.utterances] == [("one", "la la")]
    parts = run(replace(entry, start_ms=0, end_ms=900), replace(entry, start_ms=800, end_ms=2_500))
    assert facts(parts) == [(0, 900, f"{row.recording.id}/1"), (800, 2_500, f"{row.recording.id}/2")]


def test_speakers_are_numbered_through_the_channels(tmp_path: Path) -> None:
    row = run(write(tmp_path, channels=2), source=Source(channels="split"))
    assert [(one.channel, (one.info.speaker or "").rpartition("/")[2]) for one in row.utterances] == [
        (0, "1"),
        (0, "2"),
        (1, "3"),
        (1, "4"),
    ]


@pytest.mark.parametrize("doubt", ["error", "warning"])
def test_a_recording_that_cannot_be_diarized_keeps_its_utterances(tmp_path: Path, doubt: str) -> None:
    row = run(write(tmp_path), diarize=lambda samples_T: Diarization(**{doubt: "diarization has failed: x"}))
    assert facts(row) == [(0, 4_000, None)]
    assert row.recording.error is None
    assert row.recording.speaker_doubts == ("diarization has failed: x",)


def test_codec_audio_is_what_is_diarized(tmp_path: Path) -> None:
    lengths: list[int] = []

    def diarize(samples_T: vad.Samples) -> Diarization:
        lengths.append(len(samples_T))
        return halves(samples_T)

    entry = write(tmp_path)
    run(replace(entry, start_ms=0, end_ms=900), replace(entry, start_ms=900, end_ms=2_500), diarize=diarize)
    assert lengths == [len(codec.decode((tmp_path / "a.wav").read_bytes()).samples_T)]  # once, and all of it
