from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from voxstill.audio import codec, read_utterances
from voxstill.core.config import Config, Segment, Source
from voxstill.core.errors import ConfigError
from voxstill.core.records import Recording, Utterance, UtteranceInfo
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import by_file, scan
from voxstill.indexing.segment import Indexer, index, set_aside

SOURCE = Source(language="en", dataset="here")


def tone(seconds: float) -> NDArray[np.int16]:
    time_T = np.arange(int(seconds * 16_000)) / 16_000
    return (8000 * np.sin(2 * np.pi * 200 * time_T)).astype(np.int16)


def write(folder: Path, samples_T: NDArray[np.int16], name: str = "a.wav") -> SourceEntry:
    (folder / name).write_bytes(codec.encode(samples_T, "wav"))
    [entry] = scan(Source(uri=str(folder / name)))
    return entry


def run(*entries: SourceEntry, cfg: Segment | None = None) -> tuple[list[Recording], list[Utterance]]:
    rows = [index(file, cfg or Segment(), SOURCE, 0) for file in by_file(entries)]
    return [row.recording for row in rows], [entry for row in rows for entry in row.utterances]


def test_a_short_file_is_one_utterance_with_all_that_is_known(tmp_path: Path) -> None:
    entry = replace(
        write(tmp_path, tone(2)),
        id="one",
        text="la",
        info=UtteranceInfo(speaker="me", dialect="d"),
        split="dev",
        weight=0.5,
    )
    [recording], [utterance] = run(entry)
    assert (recording.codec, recording.rate_hz, recording.num_channels, recording.duration_ms, recording.error) == (
        "pcm_16",
        16_000,
        1,
        2_000,
        None,
    )
    assert utterance == Utterance(
        id="one",
        recording_id=recording.id,
        uri=entry.uri,
        end_ms=2_000,
        split="dev",
        info=UtteranceInfo(language="en", speaker="me", dialect="d", dataset="here"),
        text="la",
        weight=0.5,
    )


def test_several_rows_of_one_file_are_its_utterances_and_one_recording(tmp_path: Path) -> None:
    entry = write(tmp_path, tone(3))
    rows = [replace(entry, start_ms=k * 1_000, end_ms=(k + 1) * 1_000, text=str(k)) for k in range(3)]
    recordings, utterances = run(*rows, rows[0])
    assert len(recordings) == 1
    assert [(row.start_ms, row.end_ms, row.text) for row in utterances] == [
        (0, 1_000, "0"),
        (1_000, 2_000, "1"),
        (2_000, 3_000, "2"),
    ]
    assert len({row.id for row in utterances}) == 3


@pytest.mark.parametrize("vad", ["auto", "never"])
def test_a_long_file_is_cut_into_utterances_within_bounds(shared_data: Callable[[str], Path], vad: str) -> None:
    path = max((shared_data("librispeech-unlabelled-30") / "audio").iterdir(), key=lambda file: file.stat().st_size)
    entries = list(scan(Source(uri=str(path))))
    [recording], utterances = run(*entries, cfg=Segment.model_validate({"max_ms": 4_000, "vad": vad}))
    edges = [edge for row in utterances for edge in (row.start_ms, row.end_ms)]
    assert edges == sorted(edges)
    assert recording.duration_ms is not None
    assert edges[-1] <= recording.duration_ms
    assert len(utterances) > 2
    assert max(row.duration_ms for row in utterances) <= 4_000
    if vad == "never":
        assert sum(row.duration_ms for row in utterances) == recording.duration_ms


def test_the_text_of_a_whole_file_is_not_given_to_its_segments(tmp_path: Path) -> None:
    entry = replace(write(tmp_path, tone(3)), id="one", text="all of it")
    _, utterances = run(entry, cfg=Segment(max_ms=1_000, vad="never"))
    assert len(utterances) >= 3
    assert {row.text for row in utterances} == {None}
    assert "one" not in {row.id for row in utterances}
    assert len({row.split for row in utterances}) == 1


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"start_ms": 0, "end_ms": 9_000}], "beyond the end"),
        ([{"start_ms": 2_500}], "beyond the end"),
        ([{}], None),
        ([{"end_ms": 2_100}], None),
    ],
)
def test_times_beyond_the_end_are_a_reason_but_not_a_rounded_one(
    tmp_path: Path, rows: list[dict[str, int]], reason: str | None
) -> None:
    entry = write(tmp_path, tone(2))
    [recording], utterances = run(*(replace(entry, **row) for row in rows))  # type: ignore[arg-type]
    if reason is None:
        assert recording.error is None
        assert utterances[0].end_ms == 2_000
    else:
        assert recording.error is not None
        assert recording.error.startswith(reason)
        assert not utterances


def test_every_bad_file_is_a_row_with_a_reason(tmp_path: Path) -> None:
    entries = [write(tmp_path, tone(2), "good.wav"), write(tmp_path, tone(0.01), "short.wav")]
    entries.append(write(tmp_path, np.zeros(16_000, np.int16), "silent.wav"))
    entries.append(SourceEntry(uri=str(tmp_path / "gone.wav")))
    entries.append(SourceEntry(uri=str(tmp_path)))
    entries.append(SourceEntry(uri="nothing://at/all.wav"))
    (tmp_path / "cut.wav").write_bytes(codec.encode(tone(2), "wav")[:20_000])
    entries += scan(Source(uri=str(tmp_path / "cut.wav")))
    recordings, utterances = run(*entries)
    reasons = [(row.error or "fine").partition(":")[0] for row in recordings]
    assert reasons == ["fine", "too short", "silent", *["cannot be read"] * 3, "truncated"]
    assert len(utterances) == 1
    assert recordings[3].error is not None
    assert recordings[3].error.endswith("it does not exist")


def test_a_long_recording_without_speech_says_so(tmp_path: Path) -> None:
    noise_T = np.random.default_rng(0).normal(0, 300, 48_000).astype(np.int16)
    [recording], utterances = run(write(tmp_path, noise_T), cfg=Segment(max_ms=1_000))
    assert recording.error is not None
    assert recording.error.startswith("no speech")
    assert not utterances


def test_the_engine_gets_one_row_for_each_file_in_order(tmp_path: Path) -> None:
    entries = [write(tmp_path, tone(1), "a.wav"), SourceEntry(uri="gone.wav"), write(tmp_path, tone(1), "b.wav")]
    files = list(by_file(entries))
    work = pickle.loads(pickle.dumps(Indexer(Segment(), SOURCE, 0)))
    work.open()
    assert [row.recording.id for row in work(files, None)] == [file.id for file in files]
    assert set_aside(files[0], "it hangs", SOURCE, 0).recording.error == "it hangs"


def test_a_decoder_in_a_process_of_its_own_gives_the_same_rows(tmp_path: Path) -> None:
    entries = [write(tmp_path, tone(1), "a.wav"), SourceEntry(uri="gone.wav"), write(tmp_path, tone(2), "b.wav")]
    (tmp_path / "cut.wav").write_bytes(codec.encode(tone(2), "wav")[:20_000])
    files = list(by_file([*entries, *scan(Source(uri=str(tmp_path / "cut.wav")))]))
    work = Indexer(Segment(), SOURCE, 0, read_utterances.Reading(None, 60.0, 4_000))
    work.open()
    try:
        assert work(files, None) == Indexer(Segment(), SOURCE, 0)(files, None)
    finally:
        work.close()


@pytest.mark.parametrize(("name", "most_damaged"), [("short-fixtures", 0), ("yesno-hebrew", 0)])
def test_the_shared_sets_are_whole(shared_data: Callable[[str], Path], name: str, most_damaged: int) -> None:
    path = shared_data(name)
    recordings, _ = run(*scan(Source(uri=str(path / "manifest.jsonl"))))
    assert [row.uri for row in recordings if row.error] == []
    for row in recordings:
        info = soundfile.info(row.uri)
        assert row.duration_ms is not None
        assert abs(row.duration_ms - 1000 * info.frames / info.samplerate) < 60
        assert (row.rate_hz, row.num_channels) == (info.samplerate, info.channels)


def test_the_index_goes_by_in_hundreds_of_files_a_second(shared_data: Callable[[str], Path]) -> None:
    entries = list(scan(Source(uri=str(shared_data("fsdd") / "manifest.jsonl"))))[:600]
    start = time.process_time()
    recordings, utterances = run(*entries)
    assert len(recordings) == len(utterances) == 600
    assert {row.error for row in recordings} == {None}
    assert 600 / (time.process_time() - start) > 200  # 1,500 on an idle core


def test_what_a_manifest_cut_is_never_packed_and_what_the_detector_cut_is(
    tmp_path: Path, shared_data: Callable[[str], Path]
) -> None:
    paths = sorted((shared_data("librispeech-unlabelled-30") / "audio").iterdir())[:4]
    entry = write(tmp_path, np.concatenate([codec.decode(path.read_bytes()).samples_T for path in paths]))
    unpacked, packed = (run(entry, cfg=Segment(max_ms=20_000, target_ms=target))[1] for target in (None, 20_000))
    assert len(packed) < len(unpacked)
    assert max(row.duration_ms for row in packed) <= 20_000
    assert {row.start_ms for row in packed} < {row.start_ms for row in unpacked}
    cut = [replace(entry, start_ms=k * 2_000, end_ms=(k + 1) * 2_000) for k in range(3)]
    _, utterances = run(*cut, cfg=Segment(max_ms=20_000, target_ms=20_000))
    assert [(row.start_ms, row.end_ms) for row in utterances] == [(0, 2_000), (2_000, 4_000), (4_000, 6_000)]


def test_a_target_above_the_longest_utterance_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`segment\.target_ms` is 20000"):
        Config.model_validate({"segment": {"max_ms": 10_000, "target_ms": 20_000}})
