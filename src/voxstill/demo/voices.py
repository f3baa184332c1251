"""Text-to-speech by espeak-ng: equal jobs give equal samples, whatever their order and number of processes."""

from __future__ import annotations

import dataclasses
import json
import struct
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray

from voxstill.core.errors import DataError
from voxstill.core.records import RATE_HZ
from voxstill.demo import espeak

ESPEAK_RATE_HZ = 22_050


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


def synthesize(jobs: Sequence[SpeechJob], processes: int = 1) -> Generator[NDArray[np.int16]]:
    """Synthesise each job at 16 kHz, in order; DataError where a voice is unknown or gives no samples."""
    workers = [_start(jobs[first::processes]) for first in range(min(processes, len(jobs)))]
    try:
        for number, job in enumerate(jobs):
            yield _read_samples(workers[number % processes], job)
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


def _read_samples(worker: subprocess.Popen[bytes], job: SpeechJob) -> NDArray[np.int16]:
    assert worker.stdout is not None
    size = worker.stdout.read(4)
    raw = worker.stdout.read(*struct.unpack("<I", size)) if len(size) == 4 else b""
    if not raw:
        raise DataError(
            f"espeak-ng cannot say `{job.text}` with the voice `{job.voice}`",
            why="it has no such voice, the text has no sounds, or its process ended",
            fix="give an accent and a variant that it has, such as en-us+m1",
        )
    samples_T: NDArray[np.int16] = soxr.resample(np.frombuffer(raw, np.int16), ESPEAK_RATE_HZ, RATE_HZ)
    return samples_T
