"""Code that comes with a model never runs unasked, and nobody is asked on standard input, where `yes |` answers."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_waveform_checkpoint, write_whisper_checkpoint
from voxstill import cli
from voxstill.core.config import Augment, Pretrain, Student
from voxstill.core.errors import VoxstillError
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.evaluation import classification
from voxstill.nn import checkpoints, classifiers, self_supervised
from voxstill.teachers.transformers import TransformersOptions, TransformersTeacher
from voxstill.text import pretrained, tokenizer

CODE = """
from pathlib import Path
Path({canary!r}).write_text("it ran")
from transformers import *
class CanaryConfig(Wav2Vec2Config):
    model_type = "unheard_of"
class CanaryModel(Wav2Vec2ForCTC):
    config_class = CanaryConfig
class CanaryTokenizer(Wav2Vec2CTCTokenizer): pass
class CanaryExtractor(Wav2Vec2FeatureExtractor): pass
class CanaryProcessor(Wav2Vec2Processor): pass
def generate(model, *args, **kwargs): pass
"""
AUTO = {
    "AutoConfig": "canary.CanaryConfig",
    **dict.fromkeys(("AutoModel", "AutoModelForCTC", "AutoModelForSpeechSeq2Seq"), "canary.CanaryModel"),
    "AutoTokenizer": ["canary.CanaryTokenizer", None],
    "AutoFeatureExtractor": "canary.CanaryExtractor",
    "AutoProcessor": "canary.CanaryProcessor",
}


def waveform(folder: Path) -> None:
    write_waveform_checkpoint(folder, "Wav2Vec2")


def whisper(folder: Path) -> None:
    write_whisper_checkpoint(folder, ["abc"])
    (folder / "preprocessor_config.json").write_text('{"feature_extractor_type": "WhisperFeatureExtractor"}')


def unknown(folder: Path) -> None:
    waveform(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))


def started(folder: Path) -> object:
    options: dict[str, Any] = {"keep_vocabulary": False, "dropout": None, "seed": 0, "freeze_convolutions": False}
    return [checkpoints.from_checkpoint(str(folder), 7, kind=kind, **options) for kind in ("ctc", "seq2seq")]


LOADS: tuple[Callable[[Path], object], ...] = (
    lambda folder: checkpoints.read_config(str(folder)),
    checkpoints.load,
    started,
    lambda folder: checkpoints.make_frontend(checkpoints.read_config(str(folder)), Augment(), checkpoint=str(folder)),
    classifiers.load,
    lambda folder: classifiers.new(Student(task="classes", checkpoint=str(folder)), ["a", "b"], 0, {}),
    lambda folder: self_supervised.wav2vec2(Pretrain(checkpoint=str(folder)), 0),
    lambda folder: classification.task_of(str(folder)),
    lambda folder: pretrained.CheckpointVocabulary(folder, 0, 32),
    lambda folder: tokenizer.from_checkpoint(str(folder)),
    lambda folder: Recognizer(RecognizerOptions(model=str(folder))).load(),
    lambda folder: TransformersTeacher(TransformersOptions(model=str(folder))).load(),
)


@pytest.fixture(params=(waveform, whisper, unknown))
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with code that leaves a canary beside it, and somebody who answers yes to whatever is asked."""
    folder = tmp_path / "model"
    request.param(folder)
    code = CODE.format(canary=str(tmp_path / "canary"))
    (folder / "custom_generate").mkdir()
    for name in ("canary.py", "custom_generate/generate.py"):
        (folder / name).write_text(code)
    for name in ("config.json", "preprocessor_config.json", "tokenizer_config.json", "processor_config.json"):
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, "auto_map": AUTO}))
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n" * 100))
    return folder


def is_unasked_and_silent(folder: Path) -> bool:
    return sys.stdin.tell() == 0 and not (folder.parent / "canary").exists()


@pytest.mark.parametrize("place", range(len(LOADS)))
def test_nothing_that_loads_a_model_asks_or_runs_its_code(folder: Path, place: int) -> None:
    with contextlib.suppress(VoxstillError):
        LOADS[place](folder)
    assert is_unasked_and_silent(folder)


def test_the_commands_end_and_say_that_the_model_cannot_be_loaded(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = f"work={tmp_path / 'work'}"
    for arguments in (
        ["evaluate", str(folder), "--work", str(tmp_path / "work")],
        ["transcribe", str(folder), str(tmp_path / "none.wav")],
        ["train", str(tmp_path / "work"), "--set", f"student.checkpoint={folder}", "--set", work],
    ):
        assert cli.main(arguments) not in (0, 1), arguments
        assert is_unasked_and_silent(folder), arguments
    assert "Traceback" not in capsys.readouterr().err
