"""The names of `import voxstill`: documented, typed, lazy, and the example of each runs."""

from __future__ import annotations

import ast
import doctest
import inspect
import io
import json
import pkgutil
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import voxstill
from narrow_models import narrow
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.monitor import start_logging
from voxstill.core.result import Result

LINE = ("load_config", "index", "label", "filter", "shard", "train", "evaluate")
"""The examples that others stand on come first, in this order."""
SPLITS = ("train", "train", "dev", "test")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tone_student: Path) -> Path:
    """A folder with `my.yaml`, its corpus of twelve utterances, `speech.wav`, and a student in `exp/student`."""
    folder = tmp_path_factory.mktemp("door")
    rows = []
    for number in range(12):
        text, speaker = TEXTS[number % len(TEXTS)], f"s{number % 4}"
        (folder / f"{number}.wav").write_bytes(codec.encode(speak(text, number)[0], "wav"))
        row = {"audio": f"{number}.wav", "text": text, "speaker": speaker, "split": SPLITS[number % 4]}
        rows.append(json.dumps(row))
    (folder / "manifest.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "speech.wav").write_bytes(codec.encode(speak(TEXTS[0])[0], "wav"))
    shutil.copytree(tone_student, folder / "exp/student/model")
    options = {
        "work": "work",
        "source": {"uri": "manifest.jsonl"},
        "teacher": {"name": "reference"},
        "engine": {"name": "inline", "workers": 1},
        "filter": {"min_chars_per_s": 0, "max_chars_per_s": 1e9},
        "student": {"size": "tiny"},
        "pretrain": {"size": "tiny"},
        "plan": {"budget_ms": 6000},
        "train": {"steps": 2, "log_every": 1, "loader_workers": 0},
        "evaluate": {"bootstrap_draws": 100},
    }
    (folder / "my.yaml").write_text(json.dumps(options))
    return folder


def examples() -> list[str]:
    return [*LINE, *sorted(set(voxstill.__all__) - set(LINE))]


def test_the_example_of_every_name_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch)
    monkeypatch.chdir(place)
    start_logging("error")
    names: dict[str, Any] = {"voxstill": voxstill, "Path": Path, "np": np, "Recognizer": voxstill.Recognizer}
    names |= {"cfg": voxstill.load_config("my.yaml")}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL, verbose=False)
    report: list[str] = []
    results: list[Result] = []
    for name in examples():
        value = getattr(voxstill, name)
        test = doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", names, name, None, None)
        assert test.examples or (isinstance(value, type) and issubclass(value, voxstill.VoxstillError)), name
        runner.run(test, out=report.append, clear_globs=False)
        results += [value for key, value in test.globs.items() if isinstance(value, Result) and value != names.get(key)]
        names |= test.globs
        if name == "train":
            names["experiment"] = test.globs["summary"].path
    assert not report, "".join(report)
    assert len(results) > 10
    for result in results:
        assert type(result).from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_every_name_is_typed_as_it_is_loaded() -> None:
    tree = ast.parse(Path(voxstill.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("voxstill.")
        for alias in node.names
    }
    assert imported - {"__version__"} == set(voxstill.__all__)
    assert set(dir(voxstill)) >= set(voxstill.__all__)
    for name in voxstill.__all__:
        assert inspect.getdoc(getattr(voxstill, name))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="hear"):
        voxstill.hear  # noqa: B018


def test_no_name_is_that_of_a_package_which_would_stand_in_its_place_once_imported() -> None:
    assert not {module.name for module in pkgutil.iter_modules(voxstill.__path__)} & set(voxstill.__all__)


def samples(path: Path) -> np.ndarray:
    return codec.decode(path.read_bytes()).samples_T


FORMS: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "text": str,
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "open file": lambda path: path.open("rb"),
    "file in memory": lambda path: io.BytesIO(path.read_bytes()),
    "int16": samples,
    "big-endian int16": lambda path: samples(path).astype(">i2"),
    "float32": lambda path: samples(path).astype(np.float32) / 32768,
    "float64": lambda path: samples(path) / 32768,
    "tensor of int16": lambda path: torch.from_numpy(samples(path)),
    "tensor of float32": lambda path: (torch.from_numpy(samples(path)).float() / 32768).requires_grad_(),
    "of another rate": lambda path: np.repeat(samples(path), 3),
}


@pytest.fixture(scope="module")
def recognizer(place: Path) -> voxstill.Recognizer:
    return voxstill.Recognizer.from_pretrained(place / "exp/student")


@pytest.mark.parametrize("form", FORMS)
def test_a_recogniser_takes_audio_of_every_form_alone_and_in_a_list(
    place: Path, recognizer: voxstill.Recognizer, form: str
) -> None:
    rate_hz = np.int64(48_000) if form == "of another rate" else 16_000
    path = place / "speech.wav"
    [alone] = recognizer.transcribe(FORMS[form](path), rate_hz=rate_hz)
    first, again = recognizer.transcribe((FORMS[form](path) for _ in range(2)), rate_hz=rate_hz)
    assert alone == first == again
    assert (first.text, first.error) == (TEXTS[0], None)
    assert [word.text for word in first.words] == TEXTS[0].split()
    named = form in ("path", "text", "open file")
    assert first.audio == (str(path) if named else "bytes" if "y" in form and "big" not in form else "samples")


BAD: dict[str, tuple[Any, str, str]] = {
    "no audio": (b"no audio", "bytes", ""),
    "None": (None, "NoneType", "None"),
    "a number": (5, "int", "int"),
    "a list": ([0.0, 0.1], "list", "list"),
    "stereo": (np.zeros((2, 1600), np.float32), "samples", r"\(2, 1600\)"),
    "stereo tensor": (torch.zeros(2, 1600), "samples", r"\(2, 1600\)"),
    "not finite": (np.full(1600, np.nan, np.float32), "samples", "not a number"),
    "int32": (np.zeros(1600, np.int32), "samples", "full scale.*bit depth"),
    "uint8": (np.zeros(1600, np.uint8), "samples", "full scale.*bit depth"),
    "a file of text": (io.StringIO("text"), "bytes", "opened as text"),
    "nothing there": ("nothing/there.wav", "nothing/there.wav", "there"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_read_is_an_error_with_its_reason_and_ends_nothing(
    place: Path, recognizer: voxstill.Recognizer, kind: str
) -> None:
    recording, name, why = BAD[kind]
    first, bad, last = recognizer.transcribe([place / "speech.wav", recording, place / "speech.wav"])
    assert first.text == last.text == TEXTS[0]
    assert (bad.audio, bad.text, bad.words) == (name, None, ())
    assert bad.error is not None
    assert re.search(why, bad.error)


def test_a_closed_file_is_an_error_in_its_place(place: Path, recognizer: voxstill.Recognizer) -> None:
    with (place / "speech.wav").open("rb") as file:
        pass
    [transcript] = recognizer.transcribe(file)
    assert transcript.error is not None


def test_no_samples_are_no_words(recognizer: voxstill.Recognizer) -> None:
    [transcript] = recognizer.transcribe(np.zeros(0, np.float32))
    assert (transcript.text, transcript.duration_ms) == ("", 0) or transcript.error is not None


@pytest.mark.parametrize("rate_hz", [0, -1, None, "16000", True, 16_000.5])
def test_a_rate_that_is_none_is_a_configuration_error(recognizer: voxstill.Recognizer, rate_hz: Any) -> None:
    with pytest.raises(voxstill.ConfigError, match="rate_hz"):
        recognizer.transcribe(np.zeros(1600, np.float32), rate_hz=rate_hz)


def test_a_form_that_transcripts_do_not_have_is_a_configuration_error(tmp_path: Path) -> None:
    transcript = voxstill.Transcript(audio="a.wav", text="ba", error=None)
    with pytest.raises(voxstill.ConfigError, match="`foo`") as caught:
        transcript.render("foo")  # type: ignore[arg-type]
    assert "srt" in caught.value.fix
    with pytest.raises(voxstill.ConfigError, match="`foo`"):
        voxstill.write_transcripts([], tmp_path, "foo")  # type: ignore[arg-type]


def test_a_model_folder_is_evaluated_as_the_shell_does(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    voxstill.index(voxstill.load_config("my.yaml"))
    monkeypatch.setenv("VOXSTILL__WORK", "work")
    monkeypatch.setenv("VOXSTILL__SOURCE__URI", "manifest.jsonl")
    evaluation = voxstill.evaluate("exp/student/model")
    assert cli.main(["evaluate", "exp/student/model", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {**evaluation.to_dict(), "rtfx": 0} == {**printed, "rtfx": 0}


def test_pages_are_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (place / "ref.txt").write_text("a turn it on\nb turn it off\n")
    (place / "hyp.txt").write_text("a turn on\nb turn it off\n")
    comparison = voxstill.compare("hyp.txt", "ref.txt", "ref.txt", report="pages/compared.html", form="kaldi")
    assert comparison.report == "pages/compared.html"
    assert "<html" in Path(comparison.report).read_text()
    with pytest.raises(voxstill.StorageError, match=r"hyp\.txt"):
        voxstill.compare("hyp.txt", "ref.txt", "ref.txt", report="hyp.txt/compared.html", form="kaldi")


def test_a_configuration_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("seed: 3\n")
    with pytest.raises(voxstill.ConfigError, match="exists"):
        voxstill.create_config(path)
    voxstill.create_config(path, overwrite=True)
    assert voxstill.load_config(path).seed == 0


def test_repacking_takes_overrides_last(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    cfg = voxstill.load_config("my.yaml", "work=packed-short", "filter.max_repeats=1")
    assert voxstill.repack(cfg, ["manifest.jsonl"]).utterances == 9
    with pytest.raises(voxstill.DataError, match="dropped as `too_fast`"):
        voxstill.repack(cfg, ["manifest.jsonl"], "filter.max_chars_per_s=0.001")


def test_explained_options_have_their_json() -> None:
    [option] = voxstill.explain("seed")
    assert option.to_dict() == {
        "path": "seed",
        "type": "whole number",
        "unit": "",
        "default": 0,
        "limits": "≥ 0",
        "meaning": "All chance comes from here.",
    }
