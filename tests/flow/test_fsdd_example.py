"""`examples/fsdd/run.sh` goes from recordings to the comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from voxstill.audio import codec
from voxstill.synthesis.voices import SpeechJob, synthesize

ROOT = Path(__file__).parents[2]
VOICES = {"george": "en-us+m1", "jackson": "en-us+m2", "theo": "en-us+m3", "yweweler": "en-us+f2"}
DIGITS = ("zero", "one", "two", "three")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the example, where `git` gives recordings made here; strings and synthetic voices are few."""
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    keys = [(speaker, number) for speaker in VOICES for number in range(len(DIGITS))]
    jobs = [SpeechJob(text=DIGITS[number], voice=VOICES[speaker]) for speaker, number in keys]
    recordings = tmp_path / "fsdd/recordings"
    recordings.mkdir(parents=True)
    for (speaker, number), samples_T in zip(keys, synthesize(jobs), strict=True):
        (recordings / f"{number}_{speaker}_0.wav").write_bytes(codec.encode(samples_T, "wav"))
    folder = tmp_path / "bin"
    folder.mkdir()
    few = (
        'case "$1" in *strings.py) set -- "$@" --strings 1 --shortest 3 --longest 3 ;;\n'
        '*voices.py) set -- "$@" --voices 2 --times 1 ;; esac\n'
    )
    programs = {
        "git": f'for folder; do true; done\nmkdir -p "${{folder%/*}}"\ncp -r "{tmp_path}/fsdd" "$folder"\n',
        "python": f'{few}exec "{sys.executable}" "$@"\n',
    }
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


def test_one_command_goes_from_raw_audio_to_the_comparison(checkout: Path) -> None:
    options = [
        "--speakers",
        "theo",
        "--set",
        "engine=inline",
        "--set",
        "train.steps=2",
        "--set",
        "filter.keep_share=1.0",
    ]
    done = subprocess.run(["examples/fsdd/run.sh", *options], stdout=subprocess.PIPE, text=True, check=True)
    manifest = (checkout / "data/free-spoken-digit-dataset/manifest.jsonl").read_text()
    rows = [json.loads(line) for line in manifest.splitlines()]
    assert rows[0] == {"id": "0_george_0", "audio": "recordings/0_george_0.wav", "text": "zero", "speaker": "george"}
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert len(rows) == len(VOICES) * len(DIGITS)
    figures = json.loads((checkout / "work/fsdd/figures.json").read_text())
    assert set(figures["theo"]["teacher"]["by_dataset"]) == {"isolated", "strings"}
    assert Path(figures["theo"]["report"]).exists()
    assert figures["theo"]["grammar"]["rows"]
    assert "| theo |" in done.stdout
