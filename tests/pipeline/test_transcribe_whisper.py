"""Recognisers that take a limited length of audio at once: nothing is lost, and what has no text is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from small_students import write_whisper
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.records import RATE_HZ
from voxstill.pipeline.transcribe import Recognizer

LONG = Config.model_validate({"segment": {"max_ms": 60_000, "vad": "never"}})


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper"))


def audio_of(seconds: float) -> np.ndarray:
    """The first text again and again."""
    text_T = speak(TEXTS[0])[0]
    num = int(seconds * RATE_HZ)
    return np.tile(text_T, -(-num // len(text_T)))[:num]


def write_wav(path: Path, seconds: float) -> str:
    path.write_bytes(codec.encode(audio_of(seconds), "wav"))
    return str(path)


def test_audio_is_cut_to_what_a_whisper_takes_at_once(whisper: Path, caplog: pytest.LogCaptureFixture) -> None:
    recognizer = Recognizer(whisper, LONG)
    assert "takes at most 30 s at once: audio is cut to that, and not to `segment.max_ms`" in caplog.text
    for seconds in (45, 100):
        [transcript] = recognizer.transcribe(audio_of(seconds))
        assert (transcript.error, transcript.warning) == (None, None)
        assert transcript.words[0].start_ms == 0
        assert transcript.words[-1].end_ms == seconds * 1000
        assert len(transcript.words) >= seconds / 30


def test_the_command_writes_all_of_a_long_recording(
    whisper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--set", "segment={max_ms: 60000, vad: never}", "--json"]
    assert cli.main(["transcribe", str(whisper), write_wav(tmp_path / "a.wav", 45), *options]) == 0
    [transcript] = json.loads(capsys.readouterr().out)["transcripts"]
    assert transcript["text"]
    assert transcript["words"][-1]["end_ms"] == 45_000


def test_the_default_needs_no_word_about_it(whisper: Path, caplog: pytest.LogCaptureFixture) -> None:
    Recognizer(whisper)
    assert "takes at most" not in caplog.text


def test_an_utterance_that_fails_is_named_and_the_others_stay(
    tone_student: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = Config.model_validate({"segment": {"max_ms": 4000, "vad": "never"}})
    recognizer = Recognizer(tone_student, cfg)
    [whole] = recognizer.transcribe(audio_of(10))
    monkeypatch.setattr(recognizer._student._model, "max_duration_ms", 3000)  # less than it was cut to
    [transcript, short, none] = recognizer.transcribe([audio_of(10), audio_of(1.5), audio_of(3.5)])
    assert transcript.text
    assert transcript.error is None
    assert len(transcript.text) < len(whole.text or "")
    assert "0 to " in (transcript.warning or "")
    assert " s cannot be transcribed: longer than the 3 s taken at once" in (transcript.warning or "")
    assert (short.error, short.warning) == (None, None)
    assert (none.text, none.error) == (None, "0 to 3.5 s cannot be transcribed: longer than the 3 s taken at once")


def test_less_audio_than_a_frame_is_no_error(tone_student: Path) -> None:
    [transcript] = Recognizer(tone_student).transcribe(audio_of(0.009))
    assert (transcript.text, transcript.error, transcript.warning) == ("", None, None)


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_no_subtitle_lasts_longer_than_the_audio(
    whisper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert cli.main(["transcribe", str(whisper), write_wav(tmp_path / "a.wav", 1.384), "--format", form]) == 0
    ends = [line.split(" --> ")[1] for line in capsys.readouterr().out.splitlines() if " --> " in line]
    assert ends
    assert max(ends).replace(",", ".") == "00:00:01.384"


def test_live_audio_is_cut_to_what_a_whisper_takes_at_once(
    whisper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_wav(tmp_path / "a.wav", 40)
    options = ["--set", "segment={max_ms: 60000, threshold: 0.02, min_silence_ms: 2000}", "--set"]
    options += ["serve.partial_every_ms=10000", "--json"]
    assert cli.main(["listen", str(whisper), "--from", source, *options]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    segments = [row for row in rows if "text" in row]
    assert max(row["end_ms"] - row["start_ms"] for row in segments) > 30_000
    assert all("error" not in row and row["text"] for row in segments)


def test_options_of_a_search_are_refused_for_a_whisper_and_named(
    whisper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wav = write_wav(tmp_path / "a.wav", 1)
    options = ["--set", "decode={beam: 8, boost: [ba]}"]
    for arguments in (["transcribe", str(whisper), wav], ["serve", f"a={whisper}", "--port", "0"]):
        assert cli.main([*arguments, *options]) == 2
        message = capsys.readouterr().err
        assert "`decode.beam`, `decode.boost`" in message
        assert str(whisper) in message
        assert "serve this one on another" in message
        assert "num_beams" not in message
