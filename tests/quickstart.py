"""The corpus and the configuration of the quickstart, and the blocks of a page of the documents."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from voxstill.audio import codec
from voxstill.core import config
from voxstill.synthesis.voices import SpeechJob, synthesize

ROOT = Path(__file__).parents[1]
VOICES = {"ann": "en-us+f2", "bob": "en-gb-x-rp+m3", "cleo": "en-us+f4", "dan": "en-us+m1"}
"""Speakers of the corpus of the quickstart: one for test, one for dev, two for train."""

QUICK = ("engine=inline", "train.steps=4", "train.log_every=2", "train.loader_workers=0")
"""What the test adds to the configuration of the quickstart."""


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block, in order."""
    for language, content in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
        if language in languages:
            yield language, content


def arguments(command: str) -> list[str]:
    """The words of a command, with the stars that the shell would expand."""
    words = []
    for word in shlex.split(command):
        matches = sorted(str(path) for path in Path().glob(word)) if "*" in word else []
        words += matches or [word]
    return words


def make(folder: Path) -> None:
    """Write recordings of digits with a manifest into a folder, and link the examples there."""
    (folder / "examples").symlink_to(ROOT / "examples")
    recordings = folder / "recordings"
    rows = speak(recordings)
    (recordings / "long.flac").write_bytes((recordings / "test-00.flac").read_bytes())
    (recordings / "broken.flac").write_bytes(b"this is no audio")
    write_manifest(recordings, [*rows, {"audio": "broken.flac"}])


def speak(recordings: Path, first: int = 0, prefix: str = "") -> list[dict[str, str]]:
    """Write recordings of three digits each, the first of them `first`; returns their rows of a manifest."""
    recordings.mkdir()
    splits = {"ann": "test", "bob": "dev", "cleo": "train", "dan": "train"}
    digits = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero")
    rows, jobs = [], []
    for number in range(16):
        speaker = list(VOICES)[number % 4]
        text = " ".join(digits[(first + number * 3 + i) % 10] for i in range(3))
        name = f"{prefix}{splits[speaker]}-{number:02}"
        rows.append({"id": name, "speaker": speaker, "text": text, "split": splits[speaker]})
        jobs.append(SpeechJob(text=text, voice=VOICES[speaker]))
    for row, samples_T in zip(rows, synthesize(jobs), strict=True):
        row["audio"] = f"{row['id']}.flac"
        (recordings / row["audio"]).write_bytes(codec.encode(samples_T, "flac"))
    return rows


def write_manifest(recordings: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write the manifest of a folder."""
    (recordings / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_config() -> None:
    """`my.yaml` as the quickstart writes it, with what the tests add."""
    [(_, content)] = blocks(ROOT / "docs/quickstart.md", "yaml")
    Path("my.yaml").write_text(content, encoding="utf-8")
    Path("my.yaml").write_text(config.dump(config.load("my.yaml", QUICK)), encoding="utf-8")
