"""Recordings with odd names and addresses: each has its transcript, and no secret of an address is shown."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import pytest

from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.pipeline.transcribe import Transcript, write_all


def test_files_are_written_for_names_that_are_no_utf_8_too_long_or_alike(tmp_path: Path) -> None:
    names = [os.fsdecode(b"caf\xe9.wav"), "a" * 251 + ".wav", "b/" + "a" * 251 + ".wav", "x-2.wav", "x.wav", "b/x.wav"]
    transcripts = [Transcript(audio=name, text=name[0], error=None) for name in names]
    written = write_all(transcripts, "json", tmp_path)
    assert len(set(written)) == len(names)
    assert [path.name for path in written[3:]] == ["x-2.json", "x.json", "x-3.json"]
    for path, name in zip(written, names, strict=True):
        assert json.loads(path.read_text(encoding="utf-8"))["audio"] == name


def test_credentials_of_an_address_are_not_logged_and_closed_standard_input_is_told(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    audio = tmp_path / "a.flac"
    audio.write_bytes(codec.encode(speak(TEXTS[0], 0)[0], "flac"))
    address = "http://user:canary1@127.0.0.1:9/x.wav?X-Amz-Signature=canary2"
    assert cli.main(["transcribe", str(tone_student), str(audio), address]) == 3
    printed = capsys.readouterr()
    assert "127.0.0.1:9/x.wav" in printed.err
    assert "canary" not in printed.out + printed.err
    assert cli.main(["transcribe", str(tone_student), str(audio), address, "--json"]) == 3
    printed = capsys.readouterr()
    assert [row["audio"] for row in json.loads(printed.out)["transcripts"]] == [
        str(audio),
        "http://127.0.0.1:9/x.wav?...",
    ]
    assert "canary" not in printed.out + printed.err
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main(["transcribe", str(tone_student), "-"]) == 2
    assert "standard input is closed" in capsys.readouterr().err
    logging.getLogger("voxstill").handlers.clear()


def test_a_line_break_in_the_name_of_a_file_makes_no_transcript_of_another_file(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a.wav: yes\nb.wav"
    for file in (name, "c.wav"):
        (tmp_path / file).write_bytes(codec.encode(speak(TEXTS[0], 0)[0], "wav"))
    assert cli.main(["transcribe", str(tone_student), str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[0] for line in lines] == [f"{tmp_path}/a.wav: yes\\u000ab.wav", f"{tmp_path}/c.wav"]
    assert cli.main(["transcribe", str(tone_student), str(tmp_path), "--output", str(tmp_path / "out")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    logging.getLogger("voxstill").handlers.clear()
