"""Text-to-speech by espeak-ng: equal jobs give equal samples, whatever their order and number of processes."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.errors import DataError
from voxstill.core.records import RATE_HZ, Split, Word
from voxstill.synthesis import espeak

ESPEAK_RATE_HZ = 22_050
ACCENTS = ("en-us", "en-us-nyc", "en-gb-x-rp", "en-gb-scotland", "en-029")
VARIANTS: dict[Split, tuple[str, ...]] = {
    "train": (
        *("m1", "m2", "m3", "m4", "m6", "m7", "f1", "f2", "f4", "klatt", "klatt2"),
        *("adam", "belinda", "Denis", "Gene", "Jacky", "Mike", "steph"),
    ),
    "dev": ("edward", "f3", "m5"),
    "test": ("Annie", "f5", "grandma", "m8", "Michael", "quincy", "Reed"),
}
"""Voices of espeak-ng, each with every accent. The WER of PocketSphinx with our grammar is 1 to 15 % on them without
noise; variants above that (such as `zac`, 92 %) are left out. Hard voices are spread evenly over the splits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechJob:
    """A text to synthesise: `voice` is an accent and a variant of espeak-ng, such as en-us+m1; `pitch` is 0 to 99.

    `word_gap_ms` is the pause between words beside that of the text, in steps of 10 ms at the usual speed.
    """

    text: str
    voice: str
    words_per_minute: int = 170
    pitch: int = 50
    word_gap_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """Synthetic speech at 16 kHz, and its words with their times.

    A word ends where the next one begins. Where espeak-ng joins words of the text, no times are known.
    """

    samples_T: NDArray[np.int16]
    words: tuple[Word, ...]


def synthesize(jobs: Sequence[SpeechJob], processes: int = 1) -> Generator[NDArray[np.int16]]:
    """The samples of `speak` alone."""
    for speech in speak(jobs, processes):
        yield speech.samples_T


def speak(jobs: Sequence[SpeechJob], processes: int = 1) -> Generator[Speech]:
    """Synthesise each job at 16 kHz, in order; DataError if a voice is unknown or gives no samples."""
    workers = [_start(jobs[first::processes]) for first in range(min(processes, len(jobs)))]
    try:
        for number, job in enumerate(jobs):
            yield _read_speech(workers[number % processes], job)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _start(jobs: Sequence[SpeechJob]) -> subprocess.Popen[bytes]:
    import espeakng_loader

    worker = subprocess.Popen(
        # -I and -S: no site packages, so that the process is small and forks fast
        [
            sys.executable,
            "-I",
            "-S",
            espeak.__file__,
            espeakng_loader.get_library_path(),
            espeakng_loader.get_data_path(),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdin is not None
    worker.stdin.write(json.dumps([dataclasses.asdict(job) for job in jobs]).encode())
    worker.stdin.close()  # all jobs are read before the first is synthesised: two full pipes would deadlock
    worker.stdin = None
    return worker


def _read_speech(worker: subprocess.Popen[bytes], job: SpeechJob) -> Speech:
    assert worker.stdout is not None
    head = worker.stdout.read(8)
    num_bytes, num_words = struct.unpack("<II", head) if len(head) == 8 else (0, 0)
    raw, words = worker.stdout.read(num_bytes), worker.stdout.read(8 * num_words)
    if not raw:
        raise DataError(
            f"espeak-ng cannot speak `{job.text}` with the voice `{job.voice}`",
            code="espeak-voice",
            why="it has no such voice, the text has no sounds, or its process ended",
            fix="use a language that it has (`en`, `de`), an accent and variant (`en-us+m1`), or another text",
        )
    samples_T: NDArray[np.int16] = soxr.resample(np.frombuffer(raw, np.int16), ESPEAK_RATE_HZ, RATE_HZ)
    begun = {position: first / ESPEAK_RATE_HZ for position, first in struct.iter_unpack("<II", words)}
    return Speech(samples_T=samples_T, words=_timed(job.text, begun, pcm.samples_to_s(len(samples_T))))


def _timed(text: str, begun_s: Mapping[int, float], duration_s: float) -> tuple[Word, ...]:
    """The words of a text with their times, by where in the text they stand; none where any of them has no time."""
    places = [(match.start(), match.group()) for match in re.finditer(r"\S+", text)]
    if any(place not in begun_s for place, _ in places):
        return ()
    starts_ms = [round(1000 * begun_s[place]) for place, _ in places]
    ends_ms = [*starts_ms[1:], round(1000 * duration_s)]
    return tuple(
        Word(text=word, start_ms=start_ms, end_ms=end_ms)
        for (_, word), start_ms, end_ms in zip(places, starts_ms, ends_ms, strict=True)
    )
