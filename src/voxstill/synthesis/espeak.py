"""Text-to-speech worker: reads JSON jobs from stdin; of each it writes the samples to stdout, preceded by their size,
and the beginnings of its words.

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
WORD, LIST_ENDS = 1, 0
"""Types of events."""


class Event(ctypes.Structure):
    """`espeak_EVENT` of `speak_lib.h`; positions in the text are counted in characters, from 1."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event))


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
    espeak.espeak_ListVoices(None)  # reads all voice files, or every child would do so to find its voice
    for job in json.load(sys.stdin):
        sys.stdout.buffer.write(_synthesize_in_child(espeak, job) or struct.pack("<II", 0, 0))
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
    """Number of bytes and of words, the samples, and position in the text and first sample of each word."""
    raw, words = bytearray(), bytearray()

    def collect(samples: ctypes._Pointer[ctypes.c_short], num_samples: int, events: ctypes._Pointer[Event]) -> int:
        if samples and num_samples > 0:
            raw.extend(ctypes.string_at(samples, 2 * num_samples))
        number = 0
        while events and events[number].type != LIST_ENDS:
            if events[number].type == WORD:
                words.extend(struct.pack("<II", events[number].text_position - 1, events[number].sample))
            number += 1
        return 0

    callback = CALLBACK(collect)
    if espeak.espeak_SetVoiceByName(job["voice"].encode()) != 0:
        return struct.pack("<II", 0, 0)
    espeak.espeak_ng_SetRandSeed(1)  # breath is random
    espeak.espeak_SetSynthCallback(callback)
    espeak.espeak_SetParameter(SPEED, job["words_per_minute"], 0)
    espeak.espeak_SetParameter(PITCH, job["pitch"], 0)
    espeak.espeak_SetParameter(WORD_GAP, job["word_gap_ms"] // 10, 0)
    text = job["text"].encode()
    espeak.espeak_Synth(text, ctypes.c_size_t(len(text) + 1), 0, CHARACTERS, 0, UTF_8, None, None)
    return struct.pack("<II", len(raw), len(words) // 8) + raw + words


if __name__ == "__main__":
    main(*sys.argv[1:])
