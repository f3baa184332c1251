"""What `voxstill transcribe` takes: folders, standard input, addresses, a microphone, and audio that is not whole."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from servers import http_server
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.errors import ConfigError, DataError
from voxstill.pipeline import recordings

SPOKEN = codec.encode(speak(TEXTS[0])[0], "flac")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(["transcribe", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_folder_is_its_audio_in_order_and_the_rest_is_counted(
    capsys: pytest.CaptureFixture[str], tone_student: Path, tmp_path: Path
) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "b.flac").write_bytes(SPOKEN)
    (tmp_path / "in" / "deep" / "a.WAV").write_bytes(codec.encode(speak(TEXTS[1])[0], "wav"))
    for name in ("notes.txt", "a.json", ".hidden.wav", "deep/README"):
        (tmp_path / "in" / name).write_text("no audio")
    code, out, err = run(capsys, str(tone_student), str(tmp_path / "in"), "--json")
    result = json.loads(out)
    assert (code, result["skipped"]) == (0, 3)
    paths = [str(tmp_path / "in" / name) for name in ("b.flac", "deep/a.WAV")]
    assert [(one["audio"], one["text"]) for one in result["transcripts"]] == list(zip(paths, TEXTS, strict=False))
    assert "3 files" in err
    assert ".txt" in err
    code, out, err = run(capsys, str(tone_student), str(tmp_path / "in" / "deep"), "--output", str(tmp_path / "out"))
    assert (code, out.strip()) == (0, str(tmp_path / "out" / "a.txt"))


def test_a_folder_without_audio_and_an_empty_command_line_are_errors(
    capsys: pytest.CaptureFixture[str], tone_student: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no audio")
    code, out, err = run(capsys, str(tone_student), str(tmp_path))
    assert (code, out) == (3, "")
    assert "there is no audio in" in err
    code, out, err = run(capsys, str(tone_student))
    assert (code, out) == (2, "")
    assert "no audio to read" in err
    with pytest.raises(ConfigError, match="twice"):
        recordings.expand(["-", "a.wav", "-"])


def test_a_prefix_of_a_bucket_is_its_audio() -> None:
    from voxstill.storage.store import Store

    store = Store("memory://calls")
    for key in ("2026/b.wav", "2026/a.flac", "2026/list.csv", "2025/c.wav"):
        store.create(key, b"-")
    assert recordings.expand(["memory://calls/2026/"]) == (
        ["memory://calls/2026/a.flac", "memory://calls/2026/b.wav"],
        1,
    )
    with pytest.raises(DataError, match="no audio"):
        recordings.expand(["memory://calls/2024/"])


def test_standard_input_is_a_recording(
    capsys: pytest.CaptureFixture[str], tone_student: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SPOKEN)))
    assert run(capsys, str(tone_student), "-")[:2] == (0, f"{TEXTS[0]}\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SPOKEN)))
    code, out, _ = run(capsys, str(tone_student), "-", "--output", str(tmp_path), "--format", "json")
    assert (code, out.strip()) == (0, str(tmp_path / "stdin.json"))
    assert json.loads((tmp_path / "stdin.json").read_text())["audio"] == "-"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    code, out, err = run(capsys, str(tone_student), "-")
    assert code == 3
    assert "-: not audio" in err


def test_an_address_is_read_and_one_that_is_not_has_its_reason(
    capsys: pytest.CaptureFixture[str], tone_student: Path
) -> None:
    with http_server({"call.flac": SPOKEN}) as port:
        address = f"http://127.0.0.1:{port}"
        code, out, err = run(
            capsys, str(tone_student), f"{address}/call.flac", f"{address}/none.flac", "file:///no/such.wav"
        )
    assert (code, out) == (3, f"{address}/call.flac: {TEXTS[0]}\n")
    assert "none.flac`: it does not exist" in err
    assert "such.wav`: it does not exist" in err


def test_a_truncated_file_gives_the_text_there_is_with_a_warning(
    capsys: pytest.CaptureFixture[str], tone_student: Path, tmp_path: Path
) -> None:
    samples_T, words = speak(TEXTS[2])
    whole = codec.encode(samples_T, "wav")
    cut = words[1].end_ms + 60
    (tmp_path / "cut.wav").write_bytes(whole[: 44 + 2 * 16 * cut])
    code, out, err = run(capsys, str(tone_student), str(tmp_path / "cut.wav"), "--json")
    [transcript] = json.loads(out)["transcripts"]
    assert code == 0
    assert transcript["text"] == " ".join(TEXTS[2].split()[:2])
    assert transcript["error"] is None
    assert transcript["warning"].startswith("truncated: ")
    assert "WARNING" in err
    assert "cut.wav: truncated" in err


@pytest.mark.parametrize("form", ["text", "srt", "json"])
def test_a_silent_file_is_an_empty_transcript(
    capsys: pytest.CaptureFixture[str], tone_student: Path, tmp_path: Path, form: str
) -> None:
    (tmp_path / "silent.flac").write_bytes(codec.encode(np.zeros(32_000, np.int16), "flac"))
    code, out, err = run(capsys, str(tone_student), str(tmp_path / "silent.flac"), "--format", form)
    assert (code, err.count("ERROR")) == (0, 0)
    if form == "json":
        transcript = json.loads(out)
        assert (transcript["text"], transcript["duration_ms"], transcript["error"]) == ("", 2000, None)
    else:
        assert out == "\n"


def test_a_microphone_that_is_not_there_is_an_error_with_the_command_that_helps(
    capsys: pytest.CaptureFixture[str], tone_student: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)  # as where it is not installed
    code, out, err = run(capsys, str(tone_student), "--microphone", "1")
    assert (code, out) == (2, "")
    assert "pip install 'voxstill[microphone]'" in err
