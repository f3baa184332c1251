"""voxstill export: a folder that is whole, compared with torch before, and used like any other model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from judged import corpus, experiment
from small_students import write_student
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.decoding import exported
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.exporting import gate
from voxstill.nn import checkpoints

Command = Callable[..., dict[str, Any]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """A command with `--json`, to its JSON; or to its message where it must fail."""

    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert cli.main([*map(str, arguments), "--json", "--log-level", "warning"]) == code, capsys.readouterr().err
        printed = capsys.readouterr()
        return json.loads(printed.out) if printed.out else {"error": printed.err}

    return run


@pytest.fixture(scope="module")
def judged(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose work folder has the texts of `tones` as its test split."""
    place = tmp_path_factory.mktemp("judged")
    return experiment(place / "exp" / "tones", tone_student, corpus(place / "corpus"))


@pytest.fixture(scope="module")
def target(judged: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("export") / "tones-onnx"
    assert cli.main(["evaluate", str(judged)]) == 0
    assert cli.main(["export", str(judged), "--to", str(folder), "--int8"]) == 0
    return folder


def test_the_result_has_the_files_and_what_was_compared(judged: Path, target: Path, command: Command) -> None:
    result = command("export", judged, "--to", target, "--int8")
    assert result["path"] == str(target)
    assert result["files"] == {path.name: path.stat().st_size for path in target.iterdir()}
    assert set(result["files"]) >= {"model.onnx", "model.int8.onnx", "model.samples.onnx", "tokens.txt", "vocab.txt"}
    assert set(result["files"]) >= {"config.json", "README.md", "export.json"}
    figures = result["gate"]
    assert (figures["equal"], figures["utterances"], figures["wer"], figures["wer_int8"]) == (4, 4, 0.0, 0.0)
    assert figures["interval"] == [0.0, 0.0]
    assert result["files"]["model.int8.onnx"] < result["files"]["model.onnx"] / 2


def test_a_complete_folder_of_the_same_model_is_not_made_again(judged: Path, target: Path, command: Command) -> None:
    before = {path: path.stat().st_mtime_ns for path in target.iterdir()}
    command("export", judged, "--to", target)
    command("export", judged / "model", "--to", target)  # by another name
    assert {path: path.stat().st_mtime_ns for path in target.iterdir()} == before


def test_a_folder_with_a_broken_file_is_made_again(
    judged: Path, target: Path, tmp_path: Path, command: Command
) -> None:
    copy = shutil.copytree(target, tmp_path / "copy")
    (copy / "model.onnx").write_bytes(b"")
    command("export", judged, "--to", copy)
    assert exported.faults(copy, exported.read(copy)) == {}


def test_another_folder_is_refused_in_words(judged: Path, target: Path, tmp_path: Path, command: Command) -> None:
    other = write_student(tmp_path / "other", "ctc", "level")
    assert "contains another model" in command("export", other, "--to", target, code=2)["error"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    assert "contains no exported student" in command("export", judged, "--to", tmp_path / "mine", code=2)["error"]
    assert "exported already" in command("export", target, "--to", tmp_path / "again", code=2)["error"]
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_the_card_says_how_good_the_student_is_and_how_it_is_used(target: Path) -> None:
    _, front_matter, text = (target / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    metadata = yaml.safe_load(front_matter)
    assert metadata["pipeline_tag"] == "automatic-speech-recognition"
    assert "onnx-asr" in metadata["tags"]
    [result] = metadata["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == 0.0
    assert "| greedy | 0.0% | 0.0% to 0.0% over speakers | 4 |" in text
    for part in ("voxstill transcribe", "from_nemo_ctc", "nemo-conformer-ctc", "## Limits", "licence: not recorded"):
        assert part in text


def test_an_exported_student_is_evaluated_and_labels_like_any_other(
    judged: Path, target: Path, tmp_path: Path, command: Command
) -> None:
    work = yaml.safe_load((judged / "config.yaml").read_text())["work"]
    figures = command("evaluate", target, "--work", work, "--set", "engine=inline")
    assert (figures["wer"], figures["utterances"]) == (0.0, 4)
    teacher = ["--set", f"teacher={{name: student, checkpoint: '{target}'}}", "--set", "engine=inline"]
    labels = command("label", work, *teacher)
    assert (labels["labels"], labels["failed"]) == (4, 0)
    (tmp_path / "speech.wav").write_bytes(codec.encode(speak(TEXTS[0])[0], "wav"))
    for model in (target, target / "model.int8.onnx"):
        [transcript] = command("transcribe", model, tmp_path / "speech.wav")["transcripts"]
        assert transcript["text"] == TEXTS[0]


@pytest.mark.parametrize(("kind", "normalization"), [("ctc", "level"), ("rnnt", "utterance"), ("tdt", "level")])
def test_without_a_work_folder_synthetic_speech_is_compared(
    tmp_path: Path, command: Command, kind: Any, normalization: Any
) -> None:
    source = write_student(tmp_path / "model", kind, normalization)
    result = command("export", source, "--to", tmp_path / "out", "--set", f"work={tmp_path / 'none'}")
    assert "synthetic speech" in result["gate"]["on"]
    assert result["gate"]["equal"] == result["gate"]["utterances"] > 10
    assert "wer" not in result["gate"] or result["gate"]["wer"] is None


def test_a_work_folder_whose_test_split_is_empty_is_as_good_as_none(tmp_path: Path, command: Command) -> None:
    rows = [{"id": f"u{i}", "text": text, "split": "train"} for i, text in enumerate(TEXTS)]
    model = write_student(tmp_path / "model", "ctc", "level")
    source = experiment(tmp_path / "exp", model, corpus(tmp_path / "corpus", rows))
    gate_figures = command("export", source, "--to", tmp_path / "out")["gate"]
    assert "synthetic speech" in gate_figures["on"]
    assert gate_figures["equal"] == gate_figures["utterances"] > 10


@torch.no_grad()
def write_with_outlier(source: Path, folder: Path) -> Path:
    """The same student with every other channel before its first matrix product 10^5 times as large, and as small a
    weight on it: in fp32 that changes nothing, in 8 bits the channels between them are zero."""
    shutil.copytree(source, folder)
    model = checkpoints.load(folder)
    stem = model.encoder.subsampling
    conv = [module for module in stem.modules() if isinstance(module, torch.nn.Conv2d)][-1]
    conv.weight[::2] *= 1e5  # and then a ReLU
    conv.bias[::2] *= 1e5
    stem.linear.weight.unflatten(1, (conv.out_channels, -1))[:, ::2] /= 1e5
    model.save_pretrained(folder)
    return folder


def test_an_int8_that_costs_accuracy_is_not_kept(judged: Path, tmp_path: Path, command: Command) -> None:
    model = write_with_outlier(judged / "model", tmp_path / "outlier")
    work = yaml.safe_load((judged / "config.yaml").read_text())["work"]
    arguments = ("export", model, "--to", tmp_path / "out", "--int8", "--set", f"work={work}", "--set", "engine=inline")
    result = command(*arguments, code=3)
    assert result["gate"]["wer_int8"] > gate.INT8_MARGIN
    assert "points of WER" in result["rejected"]
    assert not [name for name in result["files"] if "int8" in name]
    assert command(*arguments, code=3) == result  # and is not tried again


def test_other_tokens_than_those_of_torch_are_an_error_with_the_first_of_them(
    judged: Path, target: Path, tmp_path: Path
) -> None:
    """As where an operator of a runtime is wrong."""
    other = write_student(tmp_path / "other", "ctc", "utterance")
    recognizers = []
    for path in (other, target):
        recognizers.append(Recognizer(RecognizerOptions(model=str(path))))
        recognizers[-1].load()
    samples = [speak(text, i)[0] for i, text in enumerate(TEXTS)]
    utterances = [Utterance(id=text, recording_id="r", uri="u", end_ms=1000) for text in TEXTS]
    audio = gate.GateAudio(name="tones", utterances=utterances, samples=samples)
    first, second = recognizers
    pieces = first.vocabulary.pieces, second.vocabulary.pieces
    with pytest.raises(DataError, match="outputs other tokens") as error:
        gate.parity(audio, first, second, pieces, Config())
    assert f"4 of 4 utterances, first `{TEXTS[0]}`" in error.value.why


def test_a_streaming_student_has_an_encoder_for_each_chunk(
    streaming_tone_student: Path, tmp_path: Path, command: Command
) -> None:
    target, none = tmp_path / "out", f"work={tmp_path / 'none'}"
    result = command("export", streaming_tone_student, "--to", target, "--set", none)
    assert {name for name in result["files"] if name.startswith("encoder")} == {"encoder.560ms.onnx"}
    chosen = ["--streaming", "160,1120", "--set", none]
    result = command("export", streaming_tone_student, "--to", target, *chosen)  # other chunks: made again
    assert {name for name in result["files"] if name.startswith("encoder")} == {
        "encoder.160ms.onnx",
        "encoder.1120ms.onnx",
    }
    assert "OnlineRecognizer" in (target / "README.md").read_text(encoding="utf-8")
    assert result["gate"]["equal"] == result["gate"]["utterances"] > 10
    for wrong in ("200", "560,560", "fast", ""):
        again = ["--to", tmp_path / "again", "--streaming", wrong]
        assert "has no valid chunk sizes" in command("export", streaming_tone_student, *again, code=2)["error"]
