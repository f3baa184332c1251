"""The files that an utterance passes through: file -> label, shard -> loss, checkpoint -> transcript.

    python benchmarks/utterance_files.py [--source FOLDER] [--json]

Counts the distinct files of `src/voxstill` of which a function runs in this process, in the order in which they first
do:

- file -> label: `index` and `label` of a file without a text, with speech detection, the engine in this process and
  PocketSphinx;
- shard -> loss: `train`, from the end of the first step's backward pass to that of the last step's, so that starting
  and ending a training do not count, without the files that have another part in a step (`NOT_OF_THE_LOSS`);
- checkpoint -> transcript: `transcribe` of a file by the student.

Everything is imported before, so what runs on import does not count, nor does what runs in child processes. Left out of
all three is what every command passes and what does nothing to an utterance (`LEFT_OUT`). `--source` names another
`src` folder.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import soundfile
import torch

RATE_HZ = 16_000
PITCHES_HZ = {"ba": 400, "du": 900, "ko": 1700, "mi": 3000}
LEFT_OUT = ("cli", "config", "errors", "monitor", "records", "world")
"""Files, or folders in `core/`: the command line, the configuration, the nouns, the log."""
NOT_OF_THE_LOSS = ("freezing", "guard", "optim", "parallel", "watchdog")
"""Files, in any folder."""


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
    audio, plain, unlabelled = str(folder / "train-0.flac"), str(folder / "plain.jsonl"), str(folder / "unlabelled")
    Path(plain).write_text(json.dumps({"audio": audio, "language": "en"}) + "\n")
    teacher = ("--set", "engine=inline", "--set", "teacher=pocketsphinx", "--set", "segment.vad=always")
    with tracer.way("file -> label"):
        run("index", plain, "--work", unlabelled, *teacher)
        run("label", unlabelled, *teacher)
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
    """Notes the files of a package of which a function is called, in all threads of this process."""

    def __init__(self, package: Path) -> None:
        self.package = f"{package}/"
        self.files: dict[str, list[str]] = {}

    @contextlib.contextmanager
    def way(self, name: str, *, between_steps: bool = False) -> Iterator[None]:
        """Note the files while the block runs; or only from the end of its first backward pass to that of its last."""
        called: dict[str, None] = {}
        in_steps: list[str] | None = None
        backward = torch.Tensor.backward

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(self.package):
                called[frame.f_code.co_filename.removeprefix(self.package)] = None

        def backward_and_note(*args: Any, **kwargs: Any) -> None:
            nonlocal in_steps
            backward(*args, **kwargs)  # type: ignore[no-untyped-call]
            if in_steps is None:
                called.clear()
            in_steps = list(called)

        if between_steps:
            torch.Tensor.backward = backward_and_note  # type: ignore[method-assign]
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            torch.Tensor.backward = backward  # type: ignore[method-assign]
        files = list(called) if in_steps is None else in_steps
        self.files[name] = [file for file in files if not (is_left_out(file) or is_not_of_the_loss(file))]


def is_left_out(file: str) -> bool:
    """Whether a file does nothing to an utterance."""
    return file.removeprefix("core/").split("/")[0].removesuffix(".py") in LEFT_OUT


def is_not_of_the_loss(file: str) -> bool:
    """Whether a file has its part in a step of the training, but not in its loss."""
    return Path(file).stem in NOT_OF_THE_LOSS


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
