"""listen: words of a recording while it is read, by a student here and by a server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from serving_process import API_KEY, samples_of, serving
from tones import TEXTS
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.errors import ConfigError
from voxstill.core.records import RATE_HZ
from voxstill.pipeline import serve

VAD = "segment.threshold=0.05"
"""Tones are hardly speech."""


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "call.flac"
    path.write_bytes(codec.encode(samples_of(TEXTS[0], TEXTS[2]), "flac"))
    return path


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def check(rows: list[dict[str, Any]]) -> None:
    """The words of segments are those of their texts, and some came before."""
    segments = [row for row in rows if "text" in row]
    assert " ".join(row["text"] for row in segments).split() == [
        word["text"] for row in segments for word in row["words"]
    ]
    assert any("text" not in row for row in rows)
    assert segments


def test_a_student_transcribes_a_recording_while_it_is_read(
    tone_student: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start_s = time.monotonic()
    arguments = ["listen", str(tone_student), "--from", str(recording), "--paced", "--set", VAD]
    assert cli.main([*arguments, "--json"]) == 0
    assert time.monotonic() - start_s > len(samples_of(TEXTS[0], TEXTS[2])) / RATE_HZ
    check(lines(capsys))
    assert cli.main([*arguments[:4], "--set", VAD]) == 0
    output = capsys.readouterr()
    assert set(output.out.split()) <= {"ba", "du", "ko", "mi"}
    assert "listen: ... " in output.err


def test_an_exported_student_gives_the_same_words(
    tone_student: Path, exported_tone_student: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for student in (tone_student, exported_tone_student):
        assert cli.main(["listen", str(student), "--from", str(recording), "--set", VAD, "--json"]) == 0
        rows = lines(capsys)
        check(rows)
        texts.append([(row["text"], row["start_ms"], row["end_ms"]) for row in rows if "text" in row])
    assert texts[0] == texts[1]


def test_a_beam_is_used_for_a_streaming_student(
    streaming_tone_student: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def text(boost_weight: int) -> str:
        decode = f"decode={{beam: 8, boost: [du], boost_weight: {boost_weight}}}"
        listen = ["listen", str(streaming_tone_student), "--from", str(recording), "--set", VAD, "--set", decode]
        assert cli.main([*listen, "--json"]) == 0
        output = capsys.readouterr()
        assert output.err.count("words come later") == 1
        rows = [json.loads(line) for line in output.out.splitlines()]
        check(rows)
        return " ".join(row["text"] for row in rows if "text" in row)

    assert text(100).count("du") > text(0).count("du")


def test_a_server_does_the_same(
    tone_student: Path,
    recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VOXSTILL_API_KEY", API_KEY)
    models = [f"one={tone_student}", f"two={tone_student}"]
    with serving(tmp_path, models, VAD) as server:
        assert cli.main(["listen", f"{server.url}?model=two", "--from", str(recording), "--json"]) == 0
        check(lines(capsys))
        assert cli.main(["listen", server.url, "--from", str(recording)]) == 2
        assert "the session has no model; the models are `one`, `two`" in capsys.readouterr().err
        monkeypatch.setenv("VOXSTILL_API_KEY", "wrong")
        assert cli.main(["listen", server.url, "--from", str(recording)]) == 2
        assert "no server responds at" in capsys.readouterr().err


def test_a_recording_that_is_no_audio_is_an_error(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.wav").write_bytes(b"no audio")
    assert cli.main(["listen", str(tone_student), "--from", str(tmp_path / "a.wav")]) == 3
    assert "not audio" in capsys.readouterr().err


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real = serve.importlib.util.find_spec
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name))
    with pytest.raises(ConfigError, match="the server is not installed") as caught:
        serve.check_packages()
    assert caught.value.fix == "pip install 'voxstill[serve]'"
    assert caught.value.why == "uvicorn is not installed"


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://["])
def test_an_address_that_is_none_is_an_error(url: str, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["listen", url, "--from", str(recording)]) == 2
    assert "no server responds" in capsys.readouterr().err
