"""transcribe: every format, every file, and the reason where a file is damaged."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import forked
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.pipeline import transcribe
from waiting import until


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A sound file, one that is no audio, and another sound one."""
    folder = tmp_path_factory.mktemp("audio")
    for name, text in (("one.flac", TEXTS[0]), ("two.wav", TEXTS[1])):
        (folder / name).write_bytes(codec.encode(speak(text)[0], Path(name).suffix[1:]))  # type: ignore[arg-type]
    (folder / "bad.flac").write_text("these are words")
    return [str(folder / name) for name in ("one.flac", "bad.flac", "two.wav")]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(["transcribe", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_text_is_a_line_a_file_and_a_damaged_one_has_its_reason(
    capsys: pytest.CaptureFixture[str], tone_student: Path, files: list[str]
) -> None:
    code, out, err = run(capsys, str(tone_student), *files)
    assert code == 3
    assert out.splitlines() == [f"{files[0]}: {TEXTS[0]}", f"{files[2]}: {TEXTS[1]}"]
    assert "bad.flac: " in err


def test_json_is_one_object_with_every_file_in_order(
    capsys: pytest.CaptureFixture[str], tone_student: Path, files: list[str]
) -> None:
    code, out, _ = run(capsys, str(tone_student), *files, "--json")
    transcripts = json.loads(out)["transcripts"]
    assert (code, [transcript["audio"] for transcript in transcripts]) == (3, files)
    assert [transcript["text"] for transcript in transcripts] == [TEXTS[0], None, TEXTS[1]]
    assert [transcript["error"] is None for transcript in transcripts] == [True, False, True]
    for transcript in (transcripts[0], transcripts[2]):
        times = [time for word in transcript["words"] for time in (word["start_ms"], word["end_ms"])]
        assert times == sorted(times)
        assert times[-1] <= transcript["duration_ms"] + 80
        assert " ".join(word["text"] for word in transcript["words"]) == transcript["text"]
        assert all(0 < word["prob"] <= 1 for word in transcript["words"])


def test_the_format_json_is_one_object_a_line(
    capsys: pytest.CaptureFixture[str], tone_student: Path, files: list[str]
) -> None:
    _, out, _ = run(capsys, str(tone_student), *files, "--format", "json")
    assert [json.loads(line)["text"] for line in out.splitlines()] == [TEXTS[0], TEXTS[1]]


@pytest.mark.parametrize(
    ("form", "first", "times"),
    [
        ("srt", "1", r"\d\d:\d\d:\d\d,\d{3} --> \d\d:\d\d:\d\d,\d{3}"),
        ("vtt", "WEBVTT", r"\d\d:\d\d:\d\d\.\d{3} --> \d\d:\d\d:\d\d\.\d{3}"),
    ],
)
def test_subtitles_are_written_one_for_each_intact_file(
    capsys: pytest.CaptureFixture[str],
    tone_student: Path,
    files: list[str],
    tmp_path: Path,
    form: str,
    first: str,
    times: str,
) -> None:
    code, out, err = run(
        capsys, str(tone_student), *files, "--format", form, "--output", str(tmp_path / "deep" / "subs")
    )
    written = [tmp_path / "deep" / "subs" / f"{name}.{form}" for name in ("one", "two")]
    assert (code, out.splitlines()) == (3, [str(path) for path in written])
    assert "bad.flac" in err
    for path, text in zip(written, TEXTS, strict=False):
        lines = path.read_text().splitlines()
        assert lines[0] == first
        assert re.search(times, path.read_text())
        assert text in path.read_text()


def test_files_of_one_name_are_numbered(tmp_path: Path) -> None:
    transcripts = [transcribe.Transcript(audio=f"{folder}/a.wav", text=folder, error=None) for folder in "xyz"]
    paths = transcribe.write_all(transcripts, "text", tmp_path)
    assert [path.name for path in paths] == ["a.txt", "a-2.txt", "a-3.txt"]
    assert [path.read_text() for path in paths] == ["x\n", "y\n", "z\n"]


def test_each_file_is_written_as_soon_as_it_is_transcribed(
    capsys: pytest.CaptureFixture[str],
    tone_student: Path,
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # closed: the command ends here
    code, out, err = run(capsys, str(tone_student), files[0], "-", "--output", str(tmp_path / "texts"))
    assert (code, out) == (2, "")
    assert "standard input is closed" in err
    assert [path.read_text() for path in (tmp_path / "texts").iterdir()] == [f"{TEXTS[0]}\n"]


def test_short_recordings_together_have_the_transcripts_of_each_alone(
    tone_student: Path, files: list[str], tmp_path: Path
) -> None:
    (tmp_path / "silent.wav").write_bytes(codec.encode(np.zeros(16_000, np.int16), "wav"))
    (tmp_path / "long.flac").write_bytes(codec.encode(np.tile(speak(TEXTS[0])[0], 30), "flac"))
    audio = [*files, str(tmp_path / "silent.wav"), *files[::-1], str(tmp_path / "long.flac"), *files] * 2
    recognizer = transcribe.Recognizer(tone_student)
    together = recognizer.transcribe(audio)
    assert [transcript.audio for transcript in together] == audio
    for path, transcript in zip(audio, together, strict=True):
        [alone] = recognizer.transcribe(path)
        assert (transcript.text, transcript.error, transcript.duration_ms) == (
            alone.text,
            alone.error,
            alone.duration_ms,
        )
        assert [(word.text, word.start_ms, word.end_ms) for word in transcript.words] == [
            (word.text, word.start_ms, word.end_ms) for word in alone.words
        ]


def test_recordings_without_speech_are_not_kept_back(tone_student: Path) -> None:
    asked = []

    def silent() -> Iterator[np.ndarray]:
        for number in range(50):
            asked.append(number)
            yield np.zeros(1600, np.int16)

    transcript = next(transcribe.Recognizer.from_pretrained(str(tone_student)).transcripts(silent()))
    assert (transcript.text, transcript.error) == ("", None)
    assert len(asked) < 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_the_process_that_decodes(
    tone_student: Path, files: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "audio").mkdir()
    for i in range(3000):
        (tmp_path / f"audio/{i:04}.flac").symlink_to(files[0])
    command = ["transcribe", tone_student, tmp_path / "audio", "--output", tmp_path / "texts"]
    with forked.forked(forked.command, command, log=tmp_path / "log") as process:
        until(lambda: any(tmp_path.glob("texts/*")) or not process.is_alive(), 60)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join(10)
        assert process.exitcode not in (None, 0)
    assert children
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    # what SIGTERM has ended while it was written is not there under its name: the store renames `0000.txt#1`
    texts = [path.read_text() for path in (tmp_path / "texts").glob("*.txt")]
    assert 0 < len(texts) < 3000
    assert set(texts) == {f"{TEXTS[0]}\n"}


def test_a_folder_that_cannot_be_written_is_a_storage_error(
    capsys: pytest.CaptureFixture[str], tone_student: Path, files: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    code, out, err = run(capsys, str(tone_student), files[0], "--output", str(tmp_path / "file"))
    assert (code, out) == (4, "")
    assert "error: " in err


def test_a_model_that_is_not_there_is_a_configuration_error(
    capsys: pytest.CaptureFixture[str], files: list[str], tmp_path: Path
) -> None:
    code, out, err = run(capsys, str(tmp_path), files[0])
    assert (code, out) == (2, "")
    assert "fix: " in err


def test_a_beam_with_a_language_model_gives_the_same_text_on_clear_audio(
    capsys: pytest.CaptureFixture[str], tone_student: Path, files: list[str], tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arpa = str(tmp_path / "words.arpa.gz")
    assert cli.main(["train-lm", str(tmp_path / "texts.txt"), "--output", arpa, "--json"]) == 0
    decode = f"decode={{beam: 10, lm: '{arpa}', boost: [mi ba]}}"
    code, out, _ = run(capsys, str(tone_student), files[0], files[2], "--json", "--set", decode)
    assert (code, [transcript["text"] for transcript in json.loads(out)["transcripts"]]) == (0, [TEXTS[0], TEXTS[1]])
    _, plain, _ = run(capsys, str(tone_student), files[0], files[2], "--json")
    assert json.loads(plain)["transcripts"][0]["words"] == json.loads(out)["transcripts"][0]["words"]


def test_a_strongly_boosted_phrase_is_transcribed(
    capsys: pytest.CaptureFixture[str], tone_student: Path, files: list[str]
) -> None:
    wanted = "decode={beam: 10, boost: [du], boost_weight: 30}"
    _, out, _ = run(capsys, str(tone_student), files[0], "--set", wanted)
    assert out.split().count("du") > TEXTS[0].split().count("du")


def test_a_blank_penalty_makes_words_likelier_in_every_search(
    capsys: pytest.CaptureFixture[str], tone_student: Path, files: list[str], tmp_path: Path
) -> None:
    grammar = grammar_file(tmp_path, f"({' | '.join(sorted(set(' '.join(TEXTS).split())))})*")
    for options in ((), ("--set", "decode={beam: 4}"), ("--set", grammar)):
        probs = []
        for penalty in (0, 2):
            more = ("--json", "--set", f"decode.blank_penalty={penalty}")
            _, out, _ = run(capsys, str(tone_student), files[0], *options, *more)
            [transcript] = json.loads(out)["transcripts"]
            assert transcript["text"] == TEXTS[0]
            probs.append([word["prob"] for word in transcript["words"]])
        assert all(less < more for less, more in zip(*probs, strict=True))


def grammar_file(folder: Path, sentences: str) -> str:
    (folder / "g.jsgf").write_text(f"#JSGF V1.0;\ngrammar g;\npublic <s> = {sentences};\n")
    return f"decode.grammar={folder / 'g.jsgf'}"


def test_only_sentences_of_a_grammar_are_transcribed(
    capsys: pytest.CaptureFixture[str], tone_student: Path, files: list[str], tmp_path: Path
) -> None:
    audio, first = files[::2], TEXTS[0]
    _, free, _ = run(capsys, str(tone_student), *audio, "--json")
    words = " | ".join(sorted({word for text in TEXTS for word in text.split()}))
    code, out, _ = run(capsys, str(tone_student), *audio, "--json", "--set", grammar_file(tmp_path, f"({words})+"))
    assert code == 0
    for ours, greedy in zip(json.loads(out)["transcripts"], json.loads(free)["transcripts"], strict=True):
        assert (ours["text"], [w["text"] for w in ours["words"]]) == (
            greedy["text"],
            [w["text"] for w in greedy["words"]],
        )
    other = f"{' '.join(first.split()[:-1])} | {first.split()[0]} xylophone"
    code, out, err = run(capsys, str(tone_student), audio[0], "--json", "--set", grammar_file(tmp_path, other))
    assert (code, json.loads(out)["transcripts"][0]["text"]) == (0, " ".join(first.split()[:-1]))
    assert "lacks `xylophone`: sentences with this word are left out" in err
    code, _, err = run(capsys, str(tone_student), audio[0], "--set", grammar_file(tmp_path, "xylophone"))
    assert (code, "cannot output any sentence of the grammar" in err) == (3, True)


@pytest.mark.parametrize(
    ("decode", "code", "message"),
    [
        ("{grammar: README.md, beam: 4}", 2, "`decode.grammar` and `decode.beam`"),
        ("{grammar: README.md}", 3, "cannot be used"),
        ("{grammar: none.jsgf}", 4, "none.jsgf"),
        ("{lm: words.arpa}", 2, "decode.beam"),
        ("{boost: [ba]}", 2, "decode.beam"),
        ("{beam: 4, lm: README.md}", 3, "ARPA"),
        ("{beam: 0}", 2, "decode.beam"),
    ],
)
def test_impossible_decoding_options_are_errors(
    capsys: pytest.CaptureFixture[str], tone_student: Path, files: list[str], decode: str, code: int, message: str
) -> None:
    decode = decode.replace("README.md", files[1])
    exit_code, out, err = run(capsys, str(tone_student), files[0], "--set", f"decode={decode}")
    assert (exit_code, out) == (code, "")
    assert message in err
