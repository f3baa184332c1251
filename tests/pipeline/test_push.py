"""A student on the Hub, trained or exported: pushed with its card, and a MODEL by its name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from hub import Hub, hub_server
from tones import TEXTS, speak
from voxstill.core.records import RATE_HZ

TRANSCRIBE = """
import sys
from voxstill.cli import main
try:
    sys.exit(main())
finally:
    print("torch" if "torch" in sys.modules else "no torch", file=sys.stderr)
"""


def run_on_hub(
    hub: Hub, folder: Path, *words: object, program: str = "import sys; from voxstill.cli import main; sys.exit(main())"
) -> tuple:
    """Exit code, output and messages of a command; the address of the Hub is read when its library is loaded."""
    variables = {**os.environ, **hub.environment(), "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", program, *map(str, words)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout, done.stderr


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
        code, output, messages = run_on_hub(hub, tmp_path, "push", exported_tone_student, "team/tone", "--json")
        assert code == 0, messages
        assert json.loads(output)["url"].endswith("/team/tone")
        names = {file.name for file in exported_tone_student.iterdir()}
        assert {name.removeprefix("team/tone/") for name in hub.files} == names
        for name in ("team/tone", "team/tone@main"):
            code, output, messages = run_on_hub(hub, tmp_path, "transcribe", name, path, program=TRANSCRIBE)
            assert (code, output.strip()) == (0, text), messages
            assert messages.strip().endswith("no torch")
        hub.files["team/tone/tokens.txt"] += b"more 99\n"
        code, _, messages = run_on_hub(hub, tmp_path / "anew", "transcribe", "team/tone", path)
        assert code != 0
        assert "tokens.txt" in messages
        code, _, messages = run_on_hub(hub, tmp_path / "anew", "transcribe", "team/none", path)
        assert code != 0
        assert "`team/none` cannot be fetched from the Hugging Face Hub" in messages


@pytest.mark.slow
def test_a_trained_student_goes_to_the_hub_with_a_card_and_is_a_model_by_its_name(
    tone_student: Path, speech: tuple[Path, str], tmp_path: Path
) -> None:
    path, text = speech
    with hub_server() as hub:
        experiment = shutil.copytree(tone_student.parent, tmp_path / "exp")
        (experiment / "summary.json").write_text("{}")
        code, _, messages = run_on_hub(hub, tmp_path, "push", experiment, "team/tone")
        assert code == 0, messages
        assert hub.files["team/tone/training/summary.json"] == b"{}"
        card = hub.files["team/tone/README.md"].decode()
        assert 'library_name: "transformers"' in card
        assert "$ voxstill transcribe team/tone speech.wav" in card
        code, output, messages = run_on_hub(hub, tmp_path, "transcribe", "team/tone", path)
        assert (code, output.strip()) == (0, text), messages
        assert not [name for name in hub.fetched if name.endswith(".onnx")]


def test_what_cannot_be_pushed_is_refused_in_words(exported_tone_student: Path, tmp_path: Path) -> None:
    with hub_server() as hub:
        for model, name, reason in (
            (tmp_path, "team/tone", "there is no student in"),
            (exported_tone_student, "tone", "is not a repository of the Hub"),
            ("team/other", "team/tone", "is already on the Hub"),
        ):
            code, _, messages = run_on_hub(hub, tmp_path, "push", model, name)
            assert code != 0
            assert reason in messages
        assert not hub.files


def test_what_does_not_belong_to_a_model_is_not_uploaded(exported_tone_student: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported_tone_student, tmp_path / "exported")
    (folder / ".git").mkdir()
    for name in (".env", "notes.txt", ".git/config"):
        (folder / name).write_text("private")
    with hub_server() as hub:
        code, output, messages = run_on_hub(hub, tmp_path, "push", folder, "team/tone", "--json")
        assert code == 0, messages
        assert sorted(json.loads(output)["files"]) == sorted(path.name for path in exported_tone_student.iterdir())
        assert not [name for name in hub.files if "notes" in name or "/." in name]
