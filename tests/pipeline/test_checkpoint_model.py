"""Checkpoints of an experiment, also of one that is still training, are judged and transcribed with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from judged import corpus, experiment
from tones import TEXTS
from voxstill import cli
from voxstill.core.config import Train
from voxstill.evaluation import results
from voxstill.nn import students
from voxstill.storage import checked_json
from voxstill.storage.rundir import RunDir
from voxstill.text.tokenizer import Vocabulary
from voxstill.training import checkpoint, optim
from voxstill.training.state import State


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Mapping[str, Any]:
    capsys.readouterr()
    assert cli.main([*map(str, arguments), "--json", "--log-level", "error"]) == code
    printed = capsys.readouterr()
    return json.loads(printed.out) if code == 0 else {"error": printed.err}


@pytest.fixture
def training(tone_student: Path, tmp_path: Path) -> Path:
    """An experiment in the middle of its training: no `model/`; the better checkpoint is the older one."""
    exp = experiment(tmp_path / "exp", tone_student, corpus(tmp_path / "corpus"))
    shutil.rmtree(exp / "model")
    own, vocabulary = RunDir(exp), Vocabulary.load(tone_student)
    own.corpus.mkdir()
    kept = {"unit": vocabulary.unit, "pieces": vocabulary.pieces, "merges": vocabulary.merges}
    (own.corpus / "vocabulary.json").write_bytes(checked_json.encode(kept))
    model: Any = students.build("tiny", len(vocabulary.pieces), dropout=0.0, seed=0)
    optimizer = optim.make_optimizer(model, Train())
    untrained = {name: value.clone() for name, value in model.state_dict().items()}
    trained = load_file(tone_student / "model.safetensors")
    for step, weights, error in ((10, trained, 0.1), (20, untrained, 0.9)):
        model.load_state_dict(weights)
        checkpoint.save(own, model, optimizer, optim.Average(), State(step=step, error=error), Train())
    return exp


def test_best_and_last_of_a_running_training_are_judged_and_kept_apart(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best, last = (run(capsys, "evaluate", training / "checkpoints" / name) for name in ("best", "last"))
    assert best["wer"] == 0.0 < last["wer"]
    assert best["model"] == str(training / "checkpoints" / "best")
    stored = {result.recogniser: result.figures["wer"] for result in results.read_all(training / "evaluation")}
    assert stored == {"epoch=0-step=10": best["wer"], "epoch=0-step=20": last["wer"]}
    audio = training.parent / "corpus" / "u0.flac"
    for name, text in (("best", TEXTS[0]), ("epoch=0-step=10", TEXTS[0])):
        [transcript] = run(capsys, "transcribe", training / "checkpoints" / name, audio)["transcripts"]
        assert transcript["text"] == text
    assert not (training / "model").exists()


def test_a_broken_checkpoint_and_one_that_is_gone_are_refused_in_words(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = training / "checkpoints" / "epoch=0-step=10" / "model.safetensors"
    save_file({}, broken)
    assert "is not a complete checkpoint" in run(capsys, "evaluate", training / "checkpoints" / "best", code=3)["error"]
    assert "is not a complete checkpoint" in run(capsys, "evaluate", training / "checkpoints" / "none", code=3)["error"]
    error = run(capsys, "evaluate", training, code=2)["error"]
    assert "there is no student" in error
    assert f"give a checkpoint of it: `{training / 'checkpoints' / 'best'}`" in error


def test_a_vocabulary_that_is_not_what_was_written_is_refused(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, audio = training / "corpus" / "vocabulary.json", training.parent / "corpus" / "u0.flac"
    whole = file.read_bytes()
    for broken in (whole.replace(b"ba", b"ca", 1), b"[" * 100_000, b"null", b"{}", b'{"unit": "word", "pieces": 5}'):
        assert broken != whole
        file.write_bytes(broken)
        error = run(capsys, "transcribe", training / "checkpoints" / "best", audio, code=3)["error"]
        assert f"`{file}` contains no vocabulary of a student" in error
    file.unlink()
    error = run(capsys, "transcribe", training / "checkpoints" / "best", audio, code=3)["error"]
    assert "No such file" in error
    assert not file.exists()


def test_a_link_to_itself_and_notes_that_are_none_are_no_traceback(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best, audio = training / "checkpoints" / "best", training.parent / "corpus" / "u0.flac"
    for notes in ("null", "5", "[" * 100_000):
        (training / "environment.json").write_text(notes)
        run(capsys, "transcribe", best, audio)
    best.unlink()
    best.symlink_to("best")
    assert "is not a complete checkpoint" in run(capsys, "transcribe", best, audio, code=3)["error"]
