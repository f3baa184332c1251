"""`source.channels`: the mix of a recording, one of its channels, or utterances of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import soundfile

from voxstill.audio import codec, read_utterances
from voxstill.core.config import Config, Segment, Source
from voxstill.core.errors import VoxstillError
from voxstill.core.records import UtteranceInfo
from voxstill.indexing.scan import by_file, scan
from voxstill.indexing.segment import IndexedFile, index

CHANNELS_TC = np.random.default_rng(0).uniform(-0.5, 0.5, (32_000, 3)).astype(np.float32)


def indexed(path: Path, channels: Literal["mix", "split"] | int, **fields: Any) -> IndexedFile:
    source = Source(uri=str(path), channels=channels)
    [file] = by_file([replace(next(iter(scan(source))), **fields)])
    return index(file, Segment(), source, 0)


def write(folder: Path, num_channels: int, *silent: int) -> Path:
    samples_TC = CHANNELS_TC[:, :num_channels].copy()
    samples_TC[:, list(silent)] = 0
    soundfile.write(folder / "a.wav", samples_TC, 16_000)
    return folder / "a.wav"


def test_each_channel_has_its_utterances(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    one = indexed(path, "split", id="one", text="all three", info=UtteranceInfo(speaker="ann"))
    assert [(row.channel, row.text, row.info.speaker) for row in one.utterances] == [(k, None, "ann") for k in range(3)]
    assert len({row.id for row in one.utterances} | {"one"}) == 4
    assert (one.recording.num_channels, one.recording.error) == (3, None)
    assert (
        one.recording.metadata_hash
        == indexed(path, "mix", id="one", text="all three", info=UtteranceInfo(speaker="ann")).recording.metadata_hash
    )
    for row in one.utterances:
        [alone] = indexed(path, row.channel or 0).utterances
        assert alone.id == row.id


def test_a_silent_channel_is_a_reason_and_the_others_are_used(tmp_path: Path) -> None:
    row = indexed(write(tmp_path, 3, 0, 2), "split")
    assert [utterance.channel for utterance in row.utterances] == [1]
    assert [error.partition(":")[0] for error in row.recording.segment_errors] == ["silent", "silent"]
    row = indexed(write(tmp_path, 2, 0, 1), "split")
    assert row.recording.error is not None
    assert row.recording.error.startswith("silent")


def test_a_mono_recording_is_the_same_however_it_is_split(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    assert indexed(path, "split", id="one", text="la") == indexed(path, "mix", id="one", text="la")


def test_one_channel_can_be_taken_from_all(tmp_path: Path) -> None:
    path = write(tmp_path, 2)
    [utterance] = indexed(path, 1, id="one", text="la").utterances
    assert (utterance.channel, utterance.id, utterance.text) == (1, "one", "la")
    missing = indexed(write(tmp_path, 1), 1).recording
    assert missing.error == "no such channel: channel 1 of 1"


def test_the_channel_of_a_manifest_counts(tmp_path: Path) -> None:
    for channels in ("mix", "split", 0):
        [utterance] = indexed(write(tmp_path, 2), channels, channel=1, id="one", text="la").utterances
        assert (utterance.channel, utterance.id, utterance.text) == (1, "one", "la")


def test_damage_is_the_same_reason_in_every_mode(tmp_path: Path) -> None:
    path = write(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:-999])
    errors = {indexed(path, channels).recording.error for channels in ("mix", "split", 0)}
    assert len(errors) == 1
    assert str(errors.pop()).startswith("truncated")


def test_channels_that_cancel_have_the_id_of_their_mix(tmp_path: Path) -> None:
    left_T = CHANNELS_TC[:, 0]
    soundfile.write(tmp_path / "a.wav", np.stack([left_T * 0.98, -left_T], axis=1), 16_000)
    row = indexed(tmp_path / "a.wav", "mix")
    [utterance] = row.utterances
    assert (utterance.channel, row.recording.num_channels, row.recording.segment_errors) == (None, 2, ())
    assert row.recording.louder_channel == 1
    [(_, samples_T)] = read_utterances.samples([utterance])
    assert isinstance(samples_T, np.ndarray)
    assert np.array_equal(samples_T, codec.decode((tmp_path / "a.wav").read_bytes(), channel=1).samples_T)
    soundfile.write(tmp_path / "a.wav", np.stack([left_T * 0.98, left_T], axis=1), 16_000)
    [mixed] = indexed(tmp_path / "a.wav", "mix").utterances
    assert mixed.id != utterance.id
    assert codec.decode((tmp_path / "a.wav").read_bytes()).louder_channel is None


@pytest.mark.parametrize("channels", ["left", -1, 1.5, True, None])
def test_other_values_are_refused(channels: object) -> None:
    with pytest.raises(VoxstillError, match="channels"):
        Config.model_validate({"source": {"channels": channels}})
