"""A student on the Hub, trained or exported: pushed with its card, and a MODEL by its name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import soundfile

from hub import Hub, hub_server
from tones import TEXTS, speak
from voxstill.core.records import RATE_HZ

PROGRAM = """
import contextlib, io, json, sys
from voxstill.cli import main
answers = []
for words in json.loads(sys.argv[1]):
    output, messages = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(messages):
        code = main(words)
    answers.append((code, output.getvalue(), messages.getvalue(), "torch" in sys.modules))
json.dump(answers, sys.stdout)
"""
Answer = tuple[int, str, str, bool]
"""Exit code, output and messages of a command, and whether torch is loaded after it."""


def run_on_hub(hub: Hub, folder: Path, *commands: Sequence[object]) -> list[Answer]:
    """Commands, in a process of their own: the address of the Hub is read when its library is loaded."""
    variables = {**os.environ, **hub.environment(), "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", PROGRAM, json.dumps([list(map(str, words)) for words in commands])]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, timeout=200, check=True)
    return [tuple(answer) for answer in json.loads(done.stdout)]


@pytest.fixture
def speech(tmp_path: Path) -> tuple[Path, str]:
    """A recording of a text of the tones."""
    path, text = tmp_path / "speech.wav", TEXTS[0]
    samples_T, _ = speak(text)
    soundfile.write(path, samples_T, RATE_HZ)
    return path, text


def test_an_exported_student_goes_to_the_hub_and_is_a_model_by_its_name(
    exported_tone_student: Path, speech: tuple[Path, str], tmp_path: Path
) -> None:
    path, text = speech
    with hub_server() as hub:
        [(code, output, messages, _)] = run_on_hub(
            hub, tmp_path, ("push", exported_tone_student, "team/tone", "--json")
        )
        assert code == 0, messages
        assert json.loads(output)["url"].endswith("/team/tone")
        names = {file.name for file in exported_tone_student.iterdir()}
        assert {name.removeprefix("team/tone/") for name in hub.files} == names
        commands = [("transcribe", name, path) for name in ("team/tone", "team/tone@main")]
        for code, output, messages, has_torch in run_on_hub(hub, tmp_path, *commands):
            assert (code, output.strip()) == (0, text), messages
            assert not has_torch
        hub.files["team/tone/tokens.txt"] += b"more 99\n"
        commands = [("transcribe", name, path) for name in ("team/tone", "team/none")]
        reasons = ("tokens.txt", "`team/none` cannot be fetched from the Hugging Face Hub")
        for reason, (code, _, messages, _) in zip(reasons, run_on_hub(hub, tmp_path / "anew", *commands), strict=True):
            assert code != 0
            assert reason in messages


@pytest.mark.slow
def test_a_trained_student_goes_to_the_hub_with_a_card_and_is_a_model_by_its_name(
    tone_student: Path, speech: tuple[Path, str], tmp_path: Path
) -> None:
    path, text = speech
    with hub_server() as hub:
        experiment = shutil.copytree(tone_student.parent, tmp_path / "exp")
        (experiment / "summary.json").write_text("{}")
        commands = (("push", experiment, "team/tone"), ("transcribe", "team/tone", path))
        (code, _, messages, _), (transcribed, output, errors, _) = run_on_hub(hub, tmp_path, *commands)
        assert code == 0, messages
        assert hub.files["team/tone/training/summary.json"] == b"{}"
        card = hub.files["team/tone/README.md"].decode()
        assert 'library_name: "transformers"' in card
        assert "$ voxstill transcribe team/tone speech.wav" in card
        assert (transcribed, output.strip()) == (0, text), errors
        assert not [name for name in hub.fetched if name.endswith(".onnx")]


def test_what_cannot_be_pushed_is_refused_in_words(exported_tone_student: Path, tmp_path: Path) -> None:
    with hub_server() as hub:
        refused = {
            (tmp_path, "team/tone"): "there is no student in",
            (exported_tone_student, "tone"): "is not a repository of the Hub",
            ("team/other", "team/tone"): "is already on the Hub",
        }
        answers = run_on_hub(hub, tmp_path, *(("push", *words) for words in refused))
        for reason, (code, _, messages, _) in zip(refused.values(), answers, strict=True):
            assert code != 0
            assert reason in messages
        assert not hub.files


def test_what_does_not_belong_to_a_model_is_not_uploaded(exported_tone_student: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported_tone_student, tmp_path / "exported")
    (folder / ".git").mkdir()
    for name in (".env", "notes.txt", ".git/config"):
        (folder / name).write_text("private")
    with hub_server() as hub:
        [(code, output, messages, _)] = run_on_hub(hub, tmp_path, ("push", folder, "team/tone", "--json"))
        assert code == 0, messages
        assert sorted(json.loads(output)["files"]) == sorted(path.name for path in exported_tone_student.iterdir())
        assert not [name for name in hub.files if "notes" in name or "/." in name]
