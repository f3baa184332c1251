from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from voxstill.audio import codec
from voxstill.errors import DataError, StorageError
from voxstill.factory import extract
from voxstill.records import Utterance

RAMP_T = np.arange(16_000, dtype=np.int16)


def utterance(uri: Path, start_ms: int, end_ms: int, *, id_: str = "") -> Utterance:
    name = id_ or f"{uri.name}:{start_ms}"
    return Utterance(id=name, recording_id="r", uri=str(uri), start_ms=start_ms, end_ms=end_ms)


def test_every_utterance_has_its_samples_and_each_recording_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a.wav", tmp_path / "b.wav"
    for path in (a, b):
        path.write_bytes(codec.encode(RAMP_T, "wav"))
    wanted = [utterance(a, 0, 300), utterance(b, 0, 1000), utterance(a, 300, 1000)]
    decoded: list[int] = []
    decode = codec.decode
    monkeypatch.setattr(codec, "decode", lambda data, **more: decoded.append(len(data)) or decode(data, **more))
    found = {each.id: samples_T for each, samples_T in extract.samples(wanted)}
    assert found.keys() == {each.id for each in wanted}
    assert len(decoded) == 2
    assert np.array_equal(found["a.wav:0"], RAMP_T[:4800])
    assert np.array_equal(found["a.wav:300"], RAMP_T[4800:])
    assert np.array_equal(found["b.wav:0"], RAMP_T)


def test_what_is_not_there_is_an_error_of_its_utterances_alone(tmp_path: Path) -> None:
    short, bad = tmp_path / "short.wav", tmp_path / "bad.wav"
    short.write_bytes(codec.encode(RAMP_T[:8000], "wav"))
    bad.write_text("no audio")
    wanted = [
        utterance(short, 0, 500),
        utterance(short, 400, 600),
        utterance(bad, 0, 500),
        utterance(tmp_path / "gone.wav", 0, 500),
    ]
    found = {each.id: answer for each, answer in extract.samples(wanted)}
    assert len(found["short.wav:0"]) == 8000  # type: ignore[arg-type]
    assert isinstance(found["short.wav:400"], DataError)
    assert "ends at 600 ms" in str(found["short.wav:400"])
    assert isinstance(found["bad.wav:0"], DataError)
    assert isinstance(found["gone.wav:0"], StorageError)
