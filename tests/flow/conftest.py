"""A small corpus of spoken digits, and the command line as a user meets it."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from narrow_models import narrow
from voxstill import cli
from voxstill.audio import codec
from voxstill.synthesis.voices import SpeechJob, synthesize

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VOICES = {"train": ("m1", "m2", "m3", "f1"), "dev": ("m5",), "test": ("f2",)}


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 24 strings of digits in six voices, with their texts in `manifest.jsonl`."""
    folder = tmp_path_factory.mktemp("digits")
    chance = random.Random(1)
    rows = [
        {
            "id": f"{voice}-{number}",
            "audio": f"{voice}-{number}.flac",
            "speaker": voice,
            "split": split,
            "language": "en",
        }
        | {"text": " ".join(chance.choices(DIGITS, k=chance.randint(2, 4)))}
        for split, voices in VOICES.items()
        for voice in voices
        for number in range(4)
    ]
    jobs = [SpeechJob(text=row["text"], voice=f"en-us+{row['speaker']}") for row in rows]
    for row, samples_T in zip(rows, synthesize(jobs, processes=2), strict=True):
        (folder / row["audio"]).write_bytes(codec.encode(samples_T, "flac"))
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def narrow_students() -> Iterator[None]:
    """Students of the size `tiny` that are trained in this process are narrow while the tests of a file run."""
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch)
        yield


@pytest.fixture(scope="session")
def voxstill() -> Callable[..., dict[str, Any]]:
    """`voxstill ARGUMENTS --json` in this process: the object it prints; it must end well."""

    def run(*arguments: object) -> dict[str, Any]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = cli.main([*map(str, arguments), "--json", "--log-level", "error"])
        assert code == 0, arguments
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer

    return run


@pytest.fixture(scope="session")
def configure() -> Callable[..., Path]:
    """The path of a small configuration in `folder`; sections given replace those of the same name."""

    def write(folder: Path, source: Path, **sections: Any) -> Path:
        tree = {
            "work": str(folder / "work"),
            "source": {"uri": str(source)},
            "engine": {"name": "inline", "chunk": 5},
            "teacher": {"name": "echo", "substitute": 0.1},
            "shard": {"utterances": 6},
            "plan": {"budget_ms": 8000},
            "train": {
                "steps": 30,
                "optimizer": "adamw",  # in half of the time of a step of Muon, the default
                "seed_mode": "debug",
                "loader_workers": 0,
                "log_every": 5,
                "root": str(folder / "exp"),
            },
        }
        path = folder / "config.yaml"
        path.write_text(json.dumps(tree | sections))
        return path

    return write
