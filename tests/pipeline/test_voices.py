"""voices: synthetic speech of a grammar or of sentences, the same for a seed, of which no voice is in two splits."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from voxstill import cli
from voxstill.audio import codec
from voxstill.pipeline import voices

GRAMMAR = "#JSGF V1.0;\ngrammar g;\npublic <s> = turn (on | off) the (light | radio);\n"


@pytest.fixture(scope="module")
def grammar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "g.jsgf"
    path.write_text(GRAMMAR)
    return path


def make(capsys: pytest.CaptureFixture[str], texts: Path, output: Path, *options: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert cli.main(["voices", str(texts), "--output", str(output), "--hours", "0.01", "--json", *options]) == code
    out, err = capsys.readouterr()
    return json.loads(out) if not code else err


def test_a_grammar_becomes_a_corpus_that_is_indexed_as_it_says(
    capsys: pytest.CaptureFixture[str], grammar: Path, tmp_path: Path
) -> None:
    figures = make(capsys, grammar, tmp_path / "one")
    assert 0.01 <= figures["hours"] < 0.012
    rows = [json.loads(line) for line in Path(figures["path"]).read_text().splitlines()]
    assert len(rows) == figures["utterances"]
    assert figures["sentences"] == len({row["text"] for row in rows}) <= 4
    assert {word for row in rows for word in row["text"].split()} <= {"turn", "on", "off", "the", "light", "radio"}
    for row in rows:
        samples_T = codec.decode((tmp_path / "one" / row["audio"]).read_bytes()).samples_T
        assert len(samples_T) / 16_000 == pytest.approx(row["duration"], abs=1e-3)
    assert cli.main(["index", figures["path"], "--work", str(tmp_path / "work"), "--set", "engine=inline"]) == 0
    capsys.readouterr()
    label = ["label", str(tmp_path / "work"), "--set", "engine=inline", "--set", "teacher=reference", "--json"]
    assert cli.main(label) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == len(rows)


def test_equal_seeds_make_equal_bytes_and_nothing_twice(
    capsys: pytest.CaptureFixture[str], grammar: Path, tmp_path: Path
) -> None:
    one, two = (make(capsys, grammar, tmp_path / name) for name in ("one", "two"))
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert len(files) == one["utterances"] + 2
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    audio = next((tmp_path / "two").rglob("*.flac"))
    before = audio.stat().st_mtime_ns
    assert make(capsys, grammar, tmp_path / "two") == two  # whole: it is not made again
    assert audio.stat().st_mtime_ns == before
    (tmp_path / "two" / "manifest.jsonl").unlink()  # as a kill leaves it
    audio.write_bytes(b"")
    assert make(capsys, grammar, tmp_path / "two") == two
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    error = make(capsys, grammar, tmp_path / "two", "--set", "seed=8", code=2)
    assert "it contains voices of other texts or options" in error


def test_several_corpora_are_sources_of_one_work_folder(
    capsys: pytest.CaptureFixture[str], grammar: Path, tmp_path: Path
) -> None:
    manifests = [make(capsys, grammar, tmp_path / f"{seed}", "--set", f"seed={seed}") for seed in (0, 1)]
    index = ["index", *(figures["path"] for figures in manifests), "--work", str(tmp_path / "work"), "--json"]
    assert cli.main([*index, "--set", "engine=inline"]) == 0
    assert json.loads(capsys.readouterr().out)["utterances"] == sum(figures["utterances"] for figures in manifests)


def test_no_voice_is_in_two_splits_and_tempo_pitch_and_pauses_vary() -> None:
    prompts = list(itertools.islice(voices.draw(itertools.repeat("one"), "en", 0), 2000))
    splits: dict[str, set[str]] = {}
    for prompt in prompts:
        splits.setdefault(prompt.speech.voice.partition("+")[2], set()).add(prompt.split)
    assert all(len(of_voice) == 1 for of_voice in splits.values())
    assert sum(prompt.split == "train" for prompt in prompts) / 2000 == pytest.approx(0.9, abs=0.03)
    speech = [prompt.speech for prompt in prompts]
    for drawn in ("words_per_minute", "pitch", "word_gap_ms"):
        assert len({getattr(job, drawn) for job in speech}) > 10


def test_sentences_of_a_text_are_all_spoken_before_one_comes_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sentences = ["guten Morgen", "bis  später", "wie geht es", "auf Wiedersehen"]
    (tmp_path / "texts.txt").write_text("\n".join(["", *sentences, "\t"]), encoding="utf-8")
    figures = make(capsys, tmp_path / "texts.txt", tmp_path / "de", "--language", "de")
    rows = [json.loads(line) for line in Path(figures["path"]).read_text(encoding="utf-8").splitlines()]
    assert {row["text"] for row in rows[:4]} == {" ".join(text.split()) for text in sentences}
    assert {row["language"] for row in rows} == {"de"}
    assert all(row["speaker"].startswith("de+") for row in rows)


@pytest.mark.parametrize(
    ("texts", "options", "code", "message"),
    [
        ("", (), 3, "it is empty"),
        ("\xff", (), 3, "it is not UTF-8"),
        ("#JSGF V1.0;\ngrammar g;\npublic <s> = <NULL>;", (), 3, "no sentence of the grammar has a letter"),
        ("#JSGF V1.0;\ngrammar g;\npublic <s> = , | -;", (), 3, "no sentence of the grammar has a letter"),
        ("#JSGF V1.0;\ngrammar g;\npublic <s> = (a;", (), 3, "line 3"),
        ("one", ("--language", "tlh-x"), 3, "tlh-x"),
        ("one", ("--hours", "0"), 2, "there would be no audio"),
        ("one", ("--hours", "nan"), 2, "hours"),
        ("one", ("--hours", "1e-9"), 2, "there would be no audio"),
        ("...\n---", (), 3, "no line has a letter or a digit"),
        ("o\0n\0e\0", (), 3, "it is not text"),
    ],
)
def test_what_cannot_be_spoken_is_an_error_in_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, texts: str, options: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "texts.txt").write_bytes(texts.encode("latin-1"))
    assert message in make(capsys, tmp_path / "texts.txt", tmp_path / "out", *options, code=code)


def test_a_folder_with_other_files_is_left_alone(
    capsys: pytest.CaptureFixture[str], grammar: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.wav").write_bytes(b"RIFF")
    assert "it is not empty" in make(capsys, grammar, tmp_path / "mine", code=2)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["a.wav"]


def test_a_folder_that_was_begun_with_another_option_is_begun_again(
    capsys: pytest.CaptureFixture[str], grammar: Path, tmp_path: Path
) -> None:
    message = make(capsys, grammar, tmp_path / "out", "--language", "tlh-x", code=3)
    assert "use a language that it has" in message
    figures = make(capsys, grammar, tmp_path / "out")
    assert "contains voices of other texts" in make(capsys, grammar, tmp_path / "out", "--language", "de", code=2)
    assert Path(figures["path"]).is_file()


def test_sentences_of_a_grammar_that_nobody_can_say_are_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "g.jsgf").write_text("#JSGF V1.0;\ngrammar g;\npublic <s> = one | , ;")
    figures = make(capsys, tmp_path / "g.jsgf", tmp_path / "out")
    rows = [json.loads(line) for line in Path(figures["path"]).read_text(encoding="utf-8").splitlines()]
    assert {row["text"] for row in rows} == {"one"}


def test_lines_that_nobody_can_say_are_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_bytes("\ufeffone\r\n---\r\n...\r\ntwo\r\n".encode())
    figures = make(capsys, tmp_path / "texts.txt", tmp_path / "out")
    rows = [json.loads(line) for line in Path(figures["path"]).read_text(encoding="utf-8").splitlines()]
    assert {row["text"] for row in rows} == {"one", "two"}


def test_of_two_commands_at_once_the_second_waits_and_deletes_nothing(grammar: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "voxstill.cli", "voices", str(grammar), "--output", str(tmp_path / "out")]
    with open_folder(tmp_path / "out") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with subprocess.Popen([*command, "--hours", "0.01"], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert any("waiting" in line for line in process.stderr)
            assert not any((tmp_path / "out").iterdir())
            fcntl.flock(held, fcntl.LOCK_UN)
            process.stderr.read()
    assert process.returncode == 0
    assert (tmp_path / "out" / "manifest.jsonl").is_file()


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
