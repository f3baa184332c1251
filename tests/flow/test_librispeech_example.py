"""The files of `examples/librispeech-whisper`, from the archives to the comparison, with tiny models."""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_overfitted_whisper
from shared_folders import made_once
from tones import TEXTS, speak
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.records import Utterance
from voxstill.storage import tables
from voxstill.storage.store import Store

pytestmark = pytest.mark.usefixtures("narrow_students")

Command = Callable[..., dict[str, Any]]
EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDER = EXAMPLES / "librispeech-whisper"
PARTS = {
    "train-clean-100": 19,
    "train-clean-360": 100,
    "train-other-500": 20,
    "dev-clean": 84,
    "dev-other": 116,
    "test-clean": 61,
    "test-other": 367,
}
"""The parts of LibriSpeech, each with one of its speakers."""
SMALL = {
    "engine": "inline",
    "teacher": "{name: transformers, model: whisper}",
    "student.size": "tiny",
    "plan.batches_per_step": 1,
    "train.devices": 1,
    "train.loader_workers": 0,
    "train.epochs": "null",
    "train.steps": 2,
}
"""What replaces eight GPUs and Whisper large-v3; the rest is as in the example."""

JUDGING = ("evaluate", "report", "compare")
"""These take the configuration of the experiment."""


def write_archives(folder: Path) -> None:
    """LibriSpeech's archives, with two utterances of each part."""
    folder.mkdir()
    for number, (part, speaker) in enumerate(PARTS.items()):
        chapter = folder / "LibriSpeech" / part / str(speaker) / "121123"
        chapter.mkdir(parents=True)
        lines = []
        for i in range(2):
            text = TEXTS[(number + i) % len(TEXTS)]
            (chapter / f"{speaker}-121123-{i:04}.flac").write_bytes(
                codec.encode(speak(text, 2 * number + i)[0], "flac")
            )
            lines.append(f"{speaker}-121123-{i:04} {text.upper()}\n")
        (chapter / f"{speaker}-121123.trans.txt").write_text("".join(lines))
        with tarfile.open(folder / f"{part}.tar.gz", "w:gz") as tar:
            tar.add(folder / "LibriSpeech" / part, f"LibriSpeech/{part}")


@pytest.fixture
def checkout(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples and a tiny Whisper, where `curl` gives archives of this machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    write_archives(tmp_path / "archives")
    (tmp_path / "archives/normalizer.json").write_text('{"dhu": "du"}')
    curl = tmp_path / "bin/curl"
    curl.parent.mkdir()
    curl.write_text(
        '#!/bin/sh\nfor address; do true; done\nwhile [ "$1" != --output ]; do shift; done\n'
        f'cp "{tmp_path}/archives/$(basename "$address")" "$2"\n'
    )
    curl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{curl.parent}:{os.environ['PATH']}")

    def make(folder: Path) -> None:
        clips = [speak(text, i)[0] for i, text in enumerate(TEXTS)]
        write_overfitted_whisper(folder, clips, TEXTS, languages=False)

    shutil.copytree(made_once(tmp_path_factory, "english-whisper", make), tmp_path / "whisper")
    return tmp_path


def test_the_example_goes_from_the_archives_to_the_comparison(checkout: Path, voxstill: Command) -> None:
    blocks = re.findall(r"^```console\n(.*?)^```$", (FOLDER / "README.md").read_text(), re.M | re.S)
    lines = [line.removeprefix("$ ").replace(".vllm-", ".transformers-") for line in "".join(blocks).splitlines()]
    answers: dict[str, dict[str, Any]] = {}
    for program, *words in map(shlex.split, lines):
        if program.startswith("examples/"):
            subprocess.run([program, *words], check=True)
        elif program == "voxstill":
            arguments = [path for word in words for path in (glob.glob(word) if "*" in word else [word])]
            small = [f"--set={key}={value}" for key, value in SMALL.items()]
            name = "rehearsal" if "--rehearse" in words else words[0]
            answers[name] = voxstill(*arguments, *([] if name in JUDGING else small))
    assert set(answers) == {"rehearsal", "run", "index", "label", "filter", "shard", "train", *JUDGING}
    assert not list(Path("data").glob("*.tar.gz"))
    rows = list(tables.read(Store("work/librispeech"), f"utterances/{answers['index']['recipe']}", Utterance))
    splits = {split: [row for row in rows if row.split == split] for split in ("train", "dev", "test")}
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 6, "dev": 4, "test": 4}
    assert {row.text for row in splits["train"]} == {None}
    assert None not in {row.text for row in splits["test"]}
    [experiment] = Path("exp").iterdir()
    assert answers["run"]["student"]["path"] == str(experiment)
    assert answers["run"]["teacher"]["wer"] == 0.0
    assert answers["compare"]["normalizer"] == "whisper:data/normalizer.json"
    assert set(answers["evaluate"]["by_dataset"]) == {"test-clean", "test-other"}
    assert (experiment / "report.html").exists()


def test_the_example_trains_the_size_that_its_document_names() -> None:
    from voxstill.nn import students

    cfg = config.load(str(FOLDER / "librispeech.yaml"))
    model = students.build(cfg.student.size, cfg.student.bpe_pieces, dropout=0.0, seed=0)
    million = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert f"{million:.1f} million parameters" in (FOLDER / "README.md").read_text()
