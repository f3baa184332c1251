"""The files that an utterance passes through: file -> label, shard -> loss, checkpoint -> transcript.

    python benchmarks/utterance_files.py [--source FOLDER] [--json]

Counts the distinct files of `src/voxstill` of which a function takes or returns the utterance in this process, in the
order in which they first do. The utterance is its stored bytes, its samples, features, logits or batch, and its
records: recording, utterance, label, hypothesis, alone or within a list or a dataclass. These are the files that one
reads to follow it. What names it by text alone (commands, options, paths), the nouns and units of `core/`, and what
only watches a step of the training (`WATCHERS`) does not count.

- file -> label: `index` and `label` of a spoken file without a text, with speech detection, the engine in this process
  and PocketSphinx;
- shard -> loss: `train`, from the end of the first step's backward pass to that of the last step's, so that starting
  and ending a training do not count;
- checkpoint -> transcript: `transcribe` of a file by the student.

Everything is imported before, so what runs on import does not count, nor does what runs in child processes. `--source`
names another `src` folder, for example that of an older version.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import soundfile
import torch

RATE_HZ = 16_000
PITCHES_HZ = {"ba": 400, "du": 900, "ko": 1700, "mi": 3000}
SPEECH = "turn on the lights in the kitchen"
MIN_VALUES = 200
"""Bytes or numbers below which an array or a string of bytes is a setting or a figure, not an utterance."""
LEFT_OUT = ("core/", "config", "errors", "monitor", "records", "world")
"""How the paths of files begin that all others use; version 0.1 had them at the top."""
WATCHERS = ("guard", "meter")
"""Files, in any folder."""
RECORDS = {"Recording", "Utterance", "Label", "Alignment", "Hypothesis", "Word"}
MAX_DEPTH = 3
"""Lists and dataclasses within one another that are searched for an utterance."""


def main() -> None:
    """Trace the three ways and print the files of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sys.path.insert(0, str(args.source.resolve()))
    with tempfile.TemporaryDirectory() as folder:
        ways = trace_ways(Path(folder))
    if args.json:
        print(json.dumps(ways, indent=1))
        return
    for name, files in ways.items():
        print(f"{name}: {len(files)}", *files, sep="\n  ")


def trace_ways(folder: Path) -> dict[str, list[str]]:
    """The files of each way, for a corpus of tones that is made in `folder`."""
    package = import_all("voxstill")
    tracer = Tracer(package)
    manifest, config, work = str(write_corpus(folder)), str(write_config(folder)), str(folder / "work")
    audio, spoken, unlabelled = str(folder / "train-0.flac"), folder / "spoken.jsonl", str(folder / "unlabelled")
    spoken.write_text(json.dumps({"audio": str(write_speech(folder)), "language": "en"}) + "\n")
    teacher = ("--set", "engine=inline", "--set", "teacher=pocketsphinx", "--set", "segment.vad=always")
    with tracer.way("file -> label"):
        run("index", str(spoken), "--work", unlabelled, *teacher)
        run("label", unlabelled, *teacher)
    if not any(Path(unlabelled, "labels").rglob("*.parquet")):
        raise SystemExit("no label was made of the spoken file, so nothing was traced")
    run("index", manifest, "--work", work, "--config", config)
    for step in ("label", "filter", "shard"):
        run(step, work, "--config", config)
    with tracer.way("shard -> loss", between_steps=True):
        run("train", config)
    (experiment,) = (folder / "exp").iterdir()
    with tracer.way("checkpoint -> transcript"):
        run("transcribe", str(experiment), audio)
    return tracer.files


class Tracer:
    """Notes the files of a package of which a function takes or returns an utterance, in all threads."""

    def __init__(self, package: Path) -> None:
        self.package = f"{package}/"
        self.files: dict[str, list[str]] = {}
        self._thread = threading.local()

    @contextlib.contextmanager
    def way(self, name: str, *, between_steps: bool = False) -> Iterator[None]:
        """Note the files while the block runs; or only from the end of its first backward pass to that of its last."""
        passed: dict[str, None] = {}
        in_steps: list[str] | None = None
        backward = torch.Tensor.backward

        def note(frame: FrameType, event: str, result: object) -> None:
            if self._is_on_the_way(frame, event, result):
                passed[frame.f_code.co_filename.removeprefix(self.package)] = None

        def backward_and_note(tensor: torch.Tensor) -> None:
            nonlocal in_steps
            backward(tensor)  # type: ignore[no-untyped-call]
            if in_steps is None:
                passed.clear()
            in_steps = list(passed)

        if between_steps:
            torch.Tensor.backward = backward_and_note  # type: ignore[method-assign, assignment]
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            torch.Tensor.backward = backward  # type: ignore[method-assign]
        files = list(passed) if in_steps is None else in_steps
        self.files[name] = [file for file in files if not file.startswith(LEFT_OUT) and Path(file).stem not in WATCHERS]

    def _is_on_the_way(self, frame: FrameType, event: str, result: object) -> bool:
        busy = getattr(self._thread, "busy", False)  # reading a property of a value calls functions of the package
        if busy or event not in ("call", "return") or not frame.f_code.co_filename.startswith(self.package):
            return False
        self._thread.busy = True
        try:
            if event == "return":
                return is_utterance(result)
            return any(is_utterance(value) for name, value in frame.f_locals.items() if name not in ("self", "cls"))
        finally:
            self._thread.busy = False


def is_utterance(value: object, depth: int = MAX_DEPTH) -> bool:
    """Whether a value is an utterance in one of its forms, or holds one."""
    if isinstance(value, torch.Tensor):
        return value.numel() >= MIN_VALUES
    if isinstance(value, np.ndarray):
        return value.size >= MIN_VALUES
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value) >= MIN_VALUES
    if type(value).__module__.endswith("records") and type(value).__name__ in RECORDS:
        return True
    if depth == 0:
        return False
    if isinstance(value, list | tuple):
        return any(is_utterance(item, depth - 1) for item in value[:MAX_DEPTH])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(is_utterance(getattr(value, field.name, None), depth - 1) for field in dataclasses.fields(value))
    return False


def import_all(name: str) -> Path:
    """Import all modules of a package whose libraries are there; the folder of the package."""
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}.", onerror=lambda _: None):
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
    return Path(package.__path__[0])


def run(*arguments: str) -> None:
    """One command of `voxstill` in this process; what it prints is dropped, and it must end well."""
    cli: Callable[[list[str]], int] = importlib.import_module("voxstill.cli").main
    with contextlib.redirect_stdout(io.StringIO()):
        code = cli([*arguments, "--log-level", "error", "--json"])
    if code:
        raise SystemExit(f"voxstill {' '.join(arguments)} ended with {code}")


def write_speech(folder: Path) -> Path:
    """A spoken sentence, by the demo's voices of this checkout whatever version is traced; a process of its own."""
    path = folder / "speech.wav"
    code = (
        "import sys, soundfile\n"
        "from voxstill.synthesis import voices\n"
        "(samples_T,) = voices.synthesize([voices.SpeechJob(text=sys.argv[2], voice='en-us')])\n"
        f"soundfile.write(sys.argv[1], samples_T, {RATE_HZ})\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1] / "src")}
    subprocess.run([sys.executable, "-c", code, str(path), SPEECH], env=environment, check=True)
    return path


def write_corpus(folder: Path) -> Path:
    """Files of tones, each tone a word, and the path of their manifest."""
    random = np.random.default_rng(0)
    rows = []
    for split, count in {"train": 16, "dev": 2, "test": 2}.items():
        for number in range(count):
            words = random.choice(list(PITCHES_HZ), size=3).tolist()
            time_T = np.arange(RATE_HZ // 4) / RATE_HZ
            tones = [np.pad(np.sin(2 * np.pi * PITCHES_HZ[word] * time_T), 2000) for word in words]
            audio = f"{split}-{number}.flac"
            soundfile.write(folder / audio, 0.2 * np.concatenate(tones), RATE_HZ)
            rows.append({"audio": audio, "text": " ".join(words), "speaker": audio, "split": split})
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def write_config(folder: Path) -> Path:
    """The configuration of the three ways; YAML reads JSON."""
    train = {"steps": 4, "seed_mode": "debug", "loader_workers": 0, "root": str(folder / "exp")}
    sections = {
        "work": str(folder / "work"),
        "engine": {"name": "inline"},
        "teacher": {"name": "echo"},
        "plan": {"budget_ms": 8000},
        "train": train,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(sections))
    return path


if __name__ == "__main__":
    main()
