"""What people type and read: options cut short, words that are misspelt, and output that cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from command_lines import parse
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.config import explain


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, " ".join(err.replace("│", " ").split())


def voxstill(
    *arguments: str,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "voxstill", *arguments],
        env={**os.environ, **(environment or {})},
        stdout=stdout,
        stderr=stderr,
        text=True,
        check=False,
    )


@pytest.fixture
def closed_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


@pytest.mark.parametrize(
    ("cut_short", "whole"),
    [
        (["explain", "--js", "seed"], ["explain", "--json", "seed"]),
        (["label", "w", "--max-ch=3"], ["label", "w", "--max-chunks=3"]),
        (["label", "w", "--max-ch", "3", "--s", "seed=1"], ["label", "w", "--max-chunks", "3", "--set", "seed=1"]),
        (["transcribe", "m", "a", "--form=srt"], ["transcribe", "m", "a", "--format=srt"]),
        (["score", "words", "a", "b", "--la", "tr"], ["score", "words", "a", "b", "--lang", "tr"]),
        (["shard", "w", "--fro", "--js", "b.tar"], ["shard", "w", "--from", "--js", "b.tar"]),  # a value stays
        (["transcribe", "m", "--", "--js"], ["transcribe", "m", "--", "--js"]),
    ],
)
def test_a_long_option_may_be_cut_short(cut_short: list[str], whole: list[str]) -> None:
    assert parse(cut_short) == parse(whole)


@pytest.mark.parametrize("arguments", [["--he"], ["--vers"], ["filter", "--he"], ["score", "--hel"]])
def test_help_and_version_may_be_cut_short(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *arguments)[0] == 0


def test_an_option_cut_too_short_is_answered_with_those_that_it_could_be(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "explain", "--h")
    assert (code, out) == (2, "")
    assert "'--h' is ambiguous: it could be --hear, --help." in err


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("arguments", [["--help"], ["filter", "--help"], ["score", "speakers", "--help"]])
def test_a_flag_has_no_value_in_the_help(
    arguments: list[str], columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "--help" in out
    assert "<bool>" not in out


def test_a_wrong_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "trian")
    assert (code, out) == (2, "")
    assert "No such command 'trian'. Did you mean 'train'" in err


def test_a_wrong_choice_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "evaluate", "m", "--on", "tets")
    assert (code, out) == (2, "")
    assert "Invalid value for '--on': 'tets' is not one of 'train', 'dev', 'test'. Did you mean 'test'?" in err
    _, _, err = run(capsys, "explain", "--log-level", "zzz")
    assert "'zzz' is not one of 'debug', 'info', 'warning', 'error'. ╰" in err
    _, _, err = run(capsys, "plan", "w", "--ranks", "two")
    assert "valid integer" in err


@pytest.mark.parametrize(
    ("former", "current"), [("augment.warp", "augment.vtlp"), ("train.stall_s", "train.step_timeout_s")]
)
def test_explain_knows_former_names(
    former: str, current: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "_WARNED_OF", set())
    code, out, err = run(capsys, "explain", former, "--json")
    assert code == 0
    assert [row["path"] for row in json.loads(out)["options"]] == [current]
    assert f"`{former}` is now `{current}`" in err


@pytest.mark.parametrize(
    ("wrong", "what", "fix"),
    [
        ("augment.vltp", "unknown option `augment.vltp`", "did you mean `augment.vtlp`?"),
        ("train.keep_bset", "unknown option `train.keep_bset`", "did you mean `train.keep_best`"),
        ("train.zzz", "unknown option `train.zzz`", "see voxstill explain train"),
        ("augmnt", "unknown section `augmnt`", "did you mean `augment`?"),
        ("agument.vtlp", "unknown section `agument`", "did you mean `augment.vtlp`?"),
        ("zzz", "unknown section `zzz`", "give one of them, or none to see all"),
    ],
)
def test_explain_answers_a_misspelt_name_with_the_nearest(
    wrong: str, what: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "explain", wrong)
    assert (code, out) == (2, "")
    assert what in err
    assert fix in err


def test_explain_lists_the_tasks_and_loads_no_torch() -> None:
    code = (
        "import sys\nfrom voxstill.cli import main\nmain(['explain', 'student.task'])\nprint('torch' in sys.modules)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "one of classes, recognition, speakers" in process.stdout
    assert process.stdout.endswith("False\n")


def test_run_answers_a_misspelt_task_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.yaml").write_text(f"work: {tmp_path}/work\ntrain: {{steps: 1}}\n")
    code, out, err = run(capsys, "run", str(tmp_path / "my.yaml"), "--set", "student.task=recognitoin")
    assert (code, out) == (2, "")
    assert "unknown task `recognitoin`" in err
    assert "did you mean `recognition`?" in err
    _, _, err = run(capsys, "run", str(tmp_path / "my.yaml"), "--set", "student.task=classes")
    assert "is not for `voxstill run`" in err


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"], ["explain"]])
def test_a_reader_that_is_gone_is_no_error(arguments: list[str], closed_pipe: int) -> None:
    process = voxstill(*arguments, stdout=closed_pipe)
    os.close(closed_pipe)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_wrong_command_line_is_two_though_nobody_reads_why(closed_pipe: int) -> None:
    process = voxstill("explain", "--nonsense", stderr=closed_pipe)
    os.close(closed_pipe)
    assert (process.returncode, process.stdout) == (2, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"], ["explain"]])
def test_output_that_cannot_be_written_is_an_error_in_words(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        process = voxstill(*arguments, stdout=full.fileno())
    assert process.returncode == 4
    assert process.stderr.startswith("error: the output cannot be written\n  why: No space left on device\n  fix: ")
    assert "Traceback" not in process.stderr
    assert "Exception" not in process.stderr


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


def test_what_the_encoding_of_the_output_lacks_is_escaped() -> None:
    process = voxstill("explain", "filter", environment=ASCII)
    assert process.returncode == 0, process.stderr
    assert r"(number, \u2265 0)" in process.stdout
    assert voxstill("--help", environment=ASCII).returncode == 0


def test_json_is_json_in_any_encoding() -> None:
    expected = json.loads(voxstill("explain", "--json", environment={"PYTHONUTF8": "1"}).stdout)
    for encoding in ("ascii", "latin-1"):
        process = voxstill("explain", "--json", environment={**ASCII, "PYTHONIOENCODING": encoding})
        assert json.loads(process.stdout) == expected


def test_an_error_with_any_character_is_printed() -> None:
    process = voxstill("explain", "filtr\N{GREEK SMALL LETTER ALPHA}\N{GRINNING FACE}", environment=ASCII)
    assert process.returncode == 2
    assert "unknown section `filtr" in process.stderr
    assert "Traceback" not in process.stderr


OF_A_WORK_FOLDER = ["index", "label", "filter", "shard", "verify", "clean", "plan", "control", "compare-teachers"]


@pytest.mark.parametrize(
    "command",
    [*OF_A_WORK_FOLDER, "explore", "remove --ids ids", "export-labels --output out", "train-lm --output a.arpa"],
)
def test_without_a_work_folder_both_ways_to_name_one_are_said(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == 2
    message = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "there is no work folder: name WORK, or set `work` in the configuration" in message


def test_the_configuration_may_name_work_and_source(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.wav").write_bytes(codec.encode(np.ones(16_000, np.int16), "wav"))
    (tmp_path / "all.jsonl").write_text('{"audio": "one.wav", "text": "one", "split": "train"}')
    (tmp_path / "base.yaml").write_text("work: tables\nsource: {uri: all.jsonl}\nteacher: {name: echo}\n")
    for command in ("index", "label", "filter", "shard", "verify", "clean", "train-lm --output words.arpa"):
        assert cli.main([*command.split(), "--config", "base.yaml", "--json"]) == 0, capsys.readouterr().err
        figures = json.loads(capsys.readouterr().out)
        if command == "index":
            assert figures["recordings"] == 1
    assert (tmp_path / "tables").is_dir()
    assert cli.main(["index", "all.jsonl", "--work", "other", "--json"]) == 0
    assert cli.main(["verify", "other"]) == 0
    assert not (tmp_path / "work").exists()
