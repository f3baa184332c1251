"""The names of `import voxstill`: documented, typed, lazy, and the example of each runs."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import pkgutil
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import voxstill
from tones import TEXTS, speak
from voxstill.audio import codec
from voxstill.core.monitor import start_logging

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
        "plan": {"budget_ms": 6000},
        "train": {"steps": 2, "log_every": 1, "loader_workers": 0},
        "evaluate": {"bootstrap_draws": 100},
    }
    (folder / "my.yaml").write_text(json.dumps(options))
    return folder


def examples() -> list[str]:
    return [*LINE, *sorted(set(voxstill.__all__) - set(LINE))]


def test_the_example_of_every_name_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    start_logging("error")
    names: dict[str, Any] = {"voxstill": voxstill, "Path": Path, "np": np, "Recognizer": voxstill.Recognizer}
    names |= {"cfg": voxstill.load_config("my.yaml")}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL, verbose=False)
    report: list[str] = []
    for name in examples():
        value = getattr(voxstill, name)
        test = doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", names, name, None, None)
        assert test.examples or (isinstance(value, type) and issubclass(value, voxstill.VoxstillError)), name
        runner.run(test, out=report.append, clear_globs=False)
        names |= test.globs
        if name == "train":
            names["experiment"] = test.globs["summary"].path
    assert not report, "".join(report)


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


@pytest.mark.parametrize("form", ["path", "bytes", "int16", "float32", "of another rate"])
def test_a_recogniser_takes_paths_bytes_and_arrays(place: Path, form: str) -> None:
    recognizer = voxstill.Recognizer.from_pretrained(place / "exp/student")
    data = (place / "speech.wav").read_bytes()
    samples_T = codec.decode(data).samples_T
    audio: dict[str, Any] = {
        "path": place / "speech.wav",
        "bytes": data,
        "int16": samples_T,
        "float32": samples_T.astype(np.float32) / 32768,
        "of another rate": np.repeat(samples_T, 3),
    }
    rate_hz = 48_000 if form == "of another rate" else 16_000
    first, again = recognizer.transcribe([audio[form], audio[form]], rate_hz=rate_hz)
    assert first == again
    assert (first.text, first.error) == (TEXTS[0], None)
    assert [word.text for word in first.words] == TEXTS[0].split()


def test_audio_that_cannot_be_read_is_an_error_in_its_place(place: Path) -> None:
    recognizer = voxstill.Recognizer.from_pretrained(place / "exp/student")
    stereo = np.zeros((2, 1600), np.float32)
    broken = np.full(1600, np.nan, np.float32)
    transcripts = recognizer.transcribe([b"no audio", place / "speech.wav", stereo, broken])
    assert [transcript.text for transcript in transcripts] == [None, TEXTS[0], None, None]
    assert [transcript.error is None for transcript in transcripts] == [False, True, False, False]
