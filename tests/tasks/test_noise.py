"""Noises and rooms are found wherever audio is found; what cannot be read is named, and nothing is not silence."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from voxstill.audio import codec
from voxstill.core.config import Augment
from voxstill.core.errors import DataError
from voxstill.tasks import noise


def write(path: Path, num: int, value: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(codec.encode(np.full(num, value, np.int16), "flac"))


def test_a_folder_and_a_manifest_are_read_and_the_order_is_always_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(5):
        write(tmp_path / "noise" / f"{i}.flac", 100 + i, i + 1)
    (tmp_path / "noise/torn.wav").write_bytes(b"RIFF")
    write(tmp_path / "room.flac", 50)
    (tmp_path / "rooms.jsonl").write_text(json.dumps({"audio": "room.flac"}) + "\n")
    cfg = Augment(noise=str(tmp_path / "noise"), rirs=str(tmp_path / "rooms.jsonl"))
    with caplog.at_level(logging.WARNING):
        one, two = noise.load(cfg), noise.load(cfg)
    assert "torn.wav" in caplog.text
    assert sorted(one.length_R.tolist()) == [100, 101, 102, 103, 104]
    assert one.length_R.tolist() == two.length_R.tolist()
    assert sorted(one.noise_T.unique().tolist()) == [1, 2, 3, 4, 5]
    assert one.rir_RK.shape == (1, 50)


def test_without_either_there_is_none() -> None:
    noise_bank = noise.load(Augment())
    assert (len(noise_bank.noise_T), len(noise_bank.rir_RK)) == (0, 0)


def test_of_too_much_a_part_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(noise.MOST_S, "augment.noise", 2)
    for i in range(4):
        write(tmp_path / f"{i}.flac", 15_000)
    noise_bank = noise.load(Augment(noise=str(tmp_path)))
    assert int(noise_bank.length_R.sum()) == 32_000


def test_no_audio_is_an_error_that_says_where(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(DataError, match="has no audio") as caught:
        noise.load(Augment(noise=str(tmp_path)))
    assert "a.wav" in (caught.value.why or "")
