"""Experiments that judge a small student on small corpora, without a training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec

Run = Callable[..., dict[str, Any]]
"""A command with its arguments and, by `code`, the exit code that it must have, to its JSON."""


def texts_of_splits(*, num_dev: int) -> list[dict[str, Any]]:
    """Rows of the texts of `tones` as test split, each of a speaker, and so many of them as dev split."""
    test = [{"id": f"u{i}", "text": text, "speaker": f"s{i}"} for i, text in enumerate(TEXTS)]
    return [*test, *({"id": f"d{i}", "text": text, "split": "dev"} for i, text in enumerate(TEXTS[:num_dev]))]


def corpus(folder: Path, rows: Sequence[Mapping[str, Any]] | None = None) -> Path:
    """A work folder of tones: by default the four texts of `tones`, of two speakers and two data sets.

    A row is one of its manifest; `samples` in it are the audio, where that is not its text as tones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    default = [
        {"id": f"u{i}", "text": text, "speaker": f"s{i % 2}", "dataset": f"d{i // 2}"} for i, text in enumerate(TEXTS)
    ]
    lines = []
    for number, row in enumerate(default if rows is None else rows):
        audio = folder / f"{row['id']}.flac"
        data = row.get("data") or codec.encode(row.get("samples", speak(row["text"] or "ba", number)[0]), "flac")
        audio.write_bytes(data)
        about = {name: value for name, value in row.items() if name not in ("samples", "data")}
        lines.append(json.dumps({"audio": audio.name, "split": "test", **about}) + "\n")
    (folder / "manifest.jsonl").write_text("".join(lines))
    work = folder / "work"
    command = ["index", str(folder / "manifest.jsonl"), "--work", str(work), "--set", "engine=inline"]
    assert cli.main([*command, "--set", "engine.max_failed_share=1"]) == 0
    return work


def experiment(folder: Path, model: Path, work: Path, **sections: Any) -> Path:
    """An experiment folder with this model, whose configuration names this work folder."""
    folder.mkdir(parents=True)
    shutil.copytree(model, folder / "model")
    tree = {"work": str(work), "engine": "inline", "teacher": "echo", **sections}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    return folder
