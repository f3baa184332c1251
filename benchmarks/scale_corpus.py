"""Short clips without equal audio or text, for `scale_line.py`: half of them in tars of a bucket, half files of it."""

from __future__ import annotations

import io
import json
import multiprocessing
import tarfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.core.records import RATE_HZ

HALVES = ("tars", "files")
_CLIPS_IN_TAR = 1000
_WORDS = [
    f"{first}{second}"
    for first in ("ba", "do", "fe", "gi")
    for second in ("la", "mo", "ne", "ri", "su", "ta", "vo", "ze")
]
_FEWEST_WORDS, _WORD_MS = 4, 200


def text_of(number: int) -> str:
    """The words of a clip, which no other has: its number in base 32."""
    words: list[str] = []
    while number or len(words) < _FEWEST_WORDS:
        number, digit = divmod(number, len(_WORDS))
        words.append(_WORDS[digit])
    return " ".join(words)


def make(root: Path, num: int) -> int:
    """Write the clips into the folder of the bucket, where they are not there; returns their bytes."""
    done = root.with_name("corpus.json")
    if not done.exists():
        with multiprocessing.Pool(2) as pool:
            num_bytes = sum(pool.imap_unordered(partial(_make_block, root / "line"), blocks(num)))
        rows = [
            {"id": _id_of(number), "audio": _file(number), "text": text_of(number), "split": _split(number)}
            for start, stop in blocks(num)
            if half_of(start) == "files"
            for number in range(start, stop)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (root / "line/files/manifest.jsonl").write_text(lines)
        done.write_text(json.dumps(num_bytes + len(lines)))
    return int(json.loads(done.read_text()))


def _id_of(number: int) -> str:
    return f"clip-{number:08}"


def num_in(half: str, num: int) -> int:
    """The clips of one half."""
    return sum(stop - start for start, stop in blocks(num) if half_of(start) == half)


def blocks(num: int) -> Sequence[tuple[int, int]]:
    """The first clip of each tar or folder, and the one behind its last."""
    return [(start, min(start + _CLIPS_IN_TAR, num)) for start in range(0, num, _CLIPS_IN_TAR)]


def half_of(start: int) -> str:
    """The half that a block is in."""
    return HALVES[start // _CLIPS_IN_TAR % 2]


def _split(number: int) -> str:
    return "dev" if number % 500 == 0 else "train"


def _file(number: int) -> str:
    return f"{number // _CLIPS_IN_TAR:05}/{_id_of(number)}.flac"


def _make_block(root: Path, block: tuple[int, int]) -> int:
    start, stop = block
    clips = [(number, codec.encode(_samples(number), "flac")) for number in range(start, stop)]
    if half_of(start) == "files":
        for number, data in clips:
            path = root / "files" / _file(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return sum(len(data) for _, data in clips)
    path = root / f"tars/{start // _CLIPS_IN_TAR:05}.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, data in clips:
            about = json.dumps({"text": text_of(number), "split": _split(number)}).encode()
            for name, content in ((f"{_id_of(number)}.flac", data), (f"{_id_of(number)}.json", about)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path.stat().st_size


def _samples(number: int) -> NDArray[np.int16]:
    """A tone for each word, and noise that no other clip has."""
    rng = np.random.default_rng(number)
    time_T = np.arange(_WORD_MS * RATE_HZ // 1000) / RATE_HZ
    tones = [np.sin(2 * np.pi * (200 + 60 * _WORDS.index(word)) * time_T) for word in text_of(number).split()]
    wave_T = 6000 * np.concatenate(tones)
    return (wave_T + rng.integers(-2, 3, len(wave_T))).astype(np.int16)
