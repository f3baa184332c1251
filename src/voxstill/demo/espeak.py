"""Text-to-speech worker: reads JSON jobs from stdin, writes the samples of each to stdout, preceded by their size.

Run by `voices` as a script of its own, with the standard library alone, because it forks for every utterance: the
output of espeak-ng depends on what the process synthesised before, and a freshly forked child has no such state.
Arguments: path of the library, path of its data.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from typing import TypedDict

SYNCHRONOUS, CHARACTERS, UTF_8, SPEED, PITCH, WORD_GAP = 2, 1, 1, 1, 3, 7
"""Constants of espeak-ng's `speak_lib.h`."""
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Job(TypedDict):
    """One utterance: a voice of espeak-ng, its speed, pitch and pause between words, and what it says."""

    voice: str
    words_per_minute: int
    pitch: int
    word_gap_ms: int
    text: str


def main(library: str, data: str) -> None:
    """Synthesise every job, in order; no bytes mean that the voice is unknown."""
    espeak = ctypes.CDLL(library)
    espeak.espeak_Initialize(SYNCHRONOUS, 0, data.encode(), 0)
    for job in json.load(sys.stdin):
        raw = _synthesize_in_child(espeak, job)
        sys.stdout.buffer.write(struct.pack("<I", len(raw)) + raw)
    sys.stdout.flush()


def _synthesize_in_child(espeak: ctypes.CDLL, job: Job) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(_synthesize(espeak, job))
        finally:
            os._exit(0)  # no clean-up: the parent's buffers are not the child's to flush
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(child, 0)
    return raw


def _synthesize(espeak: ctypes.CDLL, job: Job) -> bytes:
    raw = bytearray()

    def collect(samples: ctypes._Pointer[ctypes.c_short], num_samples: int, _events: int | None) -> int:
        if samples and num_samples > 0:
            raw.extend(ctypes.string_at(samples, 2 * num_samples))
        return 0

    callback = CALLBACK(collect)
    if espeak.espeak_SetVoiceByName(job["voice"].encode()) != 0:
        return b""
    espeak.espeak_ng_SetRandSeed(1)  # breath is random
    espeak.espeak_SetSynthCallback(callback)
    espeak.espeak_SetParameter(SPEED, job["words_per_minute"], 0)
    espeak.espeak_SetParameter(PITCH, job["pitch"], 0)
    espeak.espeak_SetParameter(WORD_GAP, job["word_gap_ms"] // 10, 0)
    text = job["text"].encode()
    espeak.espeak_Synth(text, ctypes.c_size_t(len(text) + 1), 0, CHARACTERS, 0, UTF_8, None, None)
    return bytes(raw)


if __name__ == "__main__":
    main(*sys.argv[1:])
