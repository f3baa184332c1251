"""Simulated conversations over real speech: who speaks when is known to the sample.

Each turn is a stretch of one clip of its speaker, cut at pauses, at the level of that speaker; most turns follow a
pause, and every fifth begins before the one before it has ended. The reference is the energy of each clip before it is
mixed, no model's opinion: pauses below 300 ms do not end a turn, as in NIST's evaluations. The same seed gives the same
conversation. A speaker of whom there is one clip says stretches of it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.core.pcm import quantize, to_float
from voxstill.core.records import RATE_HZ
from voxstill.text.rttm import RttmEvent

FRAME_MS = 10
_FRAME = RATE_HZ * FRAME_MS // 1000
_BELOW_LOUD_DB = 35.0  # speech is what is above this much below the loudest frames of its clip
_PAUSE_MS = 300
_SHORTEST_MS = 100
_TURN_MS = (1500, 8000)
_GAP_MS = (100, 1000)
_OVERLAP_MS = (200, 1000)
_OVERLAP_SHARE = 0.2  # of the turns
_LEVEL_DB = (-29.0, -23.0)  # of each speaker
_ROOM_DB = -65.0

Span = tuple[int, int]
Clips = Mapping[str, Sequence[NDArray[np.float32]]]
"""Clips of each speaker."""


@dataclass(frozen=True)
class Conversation:
    """Samples of a conversation and its turns."""

    name: str
    samples_T: NDArray[np.int16]
    reference: Sequence[RttmEvent]
    num_speakers: int


def read_clips(folder: Path) -> dict[str, list[NDArray[np.float32]]]:
    """Read the clips of each speaker of a shared data set, by speaker."""
    clips: dict[str, list[NDArray[np.float32]]] = {}
    for line in (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        samples_T = to_float(codec.decode((folder / row["audio"]).read_bytes()).samples_T)
        clips.setdefault(row["speaker"], []).append(samples_T)
    return dict(sorted(clips.items()))


def speech_of(clip_T: NDArray[np.float32]) -> list[Span]:
    """Stretches of speech of a clip in milliseconds, by its energy."""
    frames_FT = clip_T[: len(clip_T) // _FRAME * _FRAME].reshape(-1, _FRAME)
    level_F = 10 * np.log10(np.square(frames_FT).mean(axis=1) + 1e-12)
    edges = np.flatnonzero(np.diff([0, *(level_F > np.percentile(level_F, 95) - _BELOW_LOUD_DB), 0]))
    spans: list[Span] = []
    for start, end in (edges.reshape(-1, 2) * FRAME_MS).tolist():
        if spans and start - spans[-1][1] < _PAUSE_MS:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return [(start, end) for start, end in spans if end - start >= _SHORTEST_MS]


def simulate(
    name: str, clips: Clips, num_speakers: int, seed: int, seconds: float = 180.0, turn_ms: Span = _TURN_MS
) -> Conversation:
    """Simulate one conversation of so many speakers, drawn from those of the clips."""
    rng = np.random.default_rng(seed)
    speakers = sorted(rng.choice(sorted(clips), num_speakers, replace=False).tolist())
    share_S = rng.dirichlet(np.full(num_speakers, 4.0))
    level_S = rng.uniform(*_LEVEL_DB, num_speakers)
    mixed_T = np.zeros(round(seconds * RATE_HZ), np.float32)
    reference: list[RttmEvent] = []
    at_ms, previous = int(rng.uniform(200, 1500)), -1
    while True:
        is_another_S = (np.arange(num_speakers) != previous) | (num_speakers == 1)
        weight_S = share_S * is_another_S
        previous = int(rng.choice(num_speakers, p=weight_S / weight_S.sum()))
        clip_T = clips[speakers[previous]][int(rng.integers(len(clips[speakers[previous]])))]
        stretch = _turn(speech_of(clip_T), rng, turn_ms)
        first_ms, last_ms = stretch[0][0], stretch[-1][1]
        if at_ms + last_ms - first_ms > len(mixed_T) * 1000 // RATE_HZ:
            break
        part_T = clip_T[first_ms * RATE_HZ // 1000 : last_ms * RATE_HZ // 1000]
        gain = 10 ** (level_S[previous] / 20) / np.sqrt(np.square(part_T).mean() + 1e-12)
        start = at_ms * RATE_HZ // 1000
        mixed_T[start : start + len(part_T)] += np.float32(gain) * part_T
        reference += [
            _event(name, speakers[previous], at_ms + begin - first_ms, at_ms + end - first_ms) for begin, end in stretch
        ]
        at_ms += last_ms - first_ms
        at_ms += -int(rng.uniform(*_OVERLAP_MS)) if rng.random() < _OVERLAP_SHARE else int(rng.uniform(*_GAP_MS))
    mixed_T += (10 ** (_ROOM_DB / 20) * rng.standard_normal(len(mixed_T))).astype(np.float32)
    return Conversation(name, quantize(mixed_T), reference, len({event.speaker for event in reference}))


def with_noise(conversation: Conversation, noise_T: NDArray[np.float32], snr_db: float) -> Conversation:
    """The conversation with noise, repeated to its end, at this ratio to all of it."""
    samples_T = to_float(conversation.samples_T)
    noise_T = np.resize(noise_T, len(samples_T))
    gain = np.sqrt(np.square(samples_T).mean() / (np.square(noise_T).mean() + 1e-12)) * 10 ** (-snr_db / 20)
    noisy_T = quantize(samples_T + np.float32(gain) * noise_T)
    return Conversation(conversation.name, noisy_T, conversation.reference, conversation.num_speakers)


def over_line(samples_T: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """What a telephone line leaves of samples: about 300 to 3400 Hz, tilted and with two resonances of its own."""
    frequency_N = np.fft.rfftfreq(len(samples_T), 1 / RATE_HZ)
    octave_N = np.log2(np.maximum(frequency_N, 1.0) / 1000)
    gain_db_N = rng.uniform(-4.0, 4.0) * octave_N
    for _ in range(2):
        centre_octave, width_octaves = rng.uniform(-1.5, 1.7), rng.uniform(0.2, 0.6)
        gain_db_N += rng.uniform(-6.0, 6.0) * np.exp(-np.square((octave_N - centre_octave) / width_octaves))
    lowest_hz, highest_hz = rng.uniform(250.0, 350.0), rng.uniform(3200.0, 3500.0)
    gain_db_N -= 48.0 * np.maximum(0.0, np.log2(lowest_hz / np.maximum(frequency_N, 1.0)))
    gain_db_N -= 200.0 * np.maximum(0.0, np.log2(np.maximum(frequency_N, 1.0) / highest_hz))
    return np.fft.irfft(np.fft.rfft(samples_T) * 10 ** (gain_db_N / 20), len(samples_T)).astype(np.float32)


def as_g711(conversation: Conversation) -> Conversation:
    """The conversation at 8 kHz in the 8 bits of G.711's mu-law, and back at 16 kHz."""
    samples_T = to_float(conversation.samples_T)
    spectrum_N = np.fft.rfft(samples_T)
    half_T = np.fft.irfft(spectrum_N[: len(spectrum_N) // 2 + 1], len(samples_T) // 2) / 2
    level_T = np.round(127 * np.log1p(255 * np.abs(np.clip(half_T, -1, 1))) / np.log(256))
    half_T = np.sign(half_T) * np.expm1(level_T / 127 * np.log(256)) / 255
    wide_T = np.fft.irfft(np.fft.rfft(half_T), len(samples_T)) * len(samples_T) / len(half_T)
    return Conversation(
        conversation.name, quantize(wide_T.astype(np.float32)), conversation.reference, conversation.num_speakers
    )


def _turn(speech: Sequence[Span], rng: np.random.Generator, turn_ms: Span) -> list[Span]:
    """Consecutive stretches of speech that last as long as a turn does, from a random one on; cut where one is longer.

    What comes after the last is its length, not its pause.
    """
    wanted_ms = int(rng.uniform(*turn_ms))
    first = int(rng.integers(len(speech)))
    stretch: list[Span] = []
    for start, end in speech[first:]:
        left_ms = wanted_ms - (start - stretch[0][0] if stretch else 0)
        if left_ms < _PAUSE_MS:
            break
        stretch.append((start, min(end, start + left_ms)))
    return stretch


def _event(session: str, speaker: str, start_ms: int, end_ms: int) -> RttmEvent:
    return RttmEvent(
        kind="SPEAKER",
        session=session,
        channel="1",
        speaker=speaker,
        subtype="<na>",
        start_us=start_ms * 1000,
        end_us=end_ms * 1000,
    )
