"""The engine `embedded`: embeddings of voices by a small network, clusters of them, and borders by the spectrum.

It runs on one thread at more than a hundred times real time, from weights that a wheel carries. It has one speaker at
a time: where two speak at once, one of them is missed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import vad
from voxstill.audio.vad import Samples
from voxstill.core import pcm
from voxstill.core.config import Section, Segment, option
from voxstill.diarization import clustering, resegmentation, weights
from voxstill.diarization.turns import Turn, numbered

if TYPE_CHECKING:
    from voxstill.diarization.ge2e import Ge2e

_FRAME_MS = 10
_STEP_MS = _FRAME_MS * resegmentation.STEP_FRAMES
_WINDOW_MS, _HOP_MS = 1600, 500
_WINDOW_FRAMES = _WINDOW_MS // _FRAME_MS
_FOLLOWS_MS = 1500  # from the centre of a window to that of one that has hardly any of its samples
_BLOCK_MS = 600_000
_MAX_STRETCH_MS = 60_000
_EDGE = 200  # samples before the first and behind the last frame's centre
_LEVEL_DB = -30.0
"""Quieter recordings are brought to this level, as those were that the network learnt from."""
_RMS_BLOCK = 1 << 22


class EmbeddedOptions(Section):
    """Options of the engine `embedded`."""

    num_speakers: int | None = option(None, unit="speakers", ge=1)
    """Speakers of each recording, where that is known; unset finds their number."""
    max_speakers: int = option(8, unit="speakers", ge=1)
    """Most speakers in a recording whose number is not known."""
    threshold: float = option(0.5, unit="probability", gt=0, lt=1)
    """Speech probability above which a 32 ms window counts as speech."""
    min_silence_ms: int = option(300, unit="ms", ge=0)
    """Shorter pauses do not end a turn."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of speech: its cepstra, and the centres of its windows in milliseconds."""

    start_ms: int
    end_ms: int
    cepstra_FC: NDArray[np.float32]
    centre_W: NDArray[np.float64]


class EmbeddedEngine:
    """Diarizes by GE2E embeddings of windows of 1.6 s and cepstra of 10 ms.

    ConfigError with the command that installs its weights where they are missing.
    """

    Options: ClassVar[type[Section]] = EmbeddedOptions
    revision: ClassVar[int] = 1

    def __init__(self, options: EmbeddedOptions) -> None:
        self.options = options
        weights.path()  # missing weights are reported before anything is read
        self._network: Ge2e | None = None

    def load(self) -> None:
        """Load the network; ConfigError if its weights are not those of it."""
        from voxstill.diarization import ge2e

        self._network = ge2e.load()

    def turns(self, samples_T: Samples) -> list[Turn]:
        """The turns of a recording; memory grows by less than 100 MB for an hour of speech."""
        from voxstill.diarization import ge2e

        assert self._network is not None
        cfg = Segment(
            threshold=self.options.threshold, min_silence_ms=self.options.min_silence_ms, min_ms=100, pad_ms=0
        )
        duration_ms = pcm.samples_to_ms(len(samples_T))
        spans = vad.speech_segments(vad.speech_probs(samples_T), cfg, duration_ms)
        gain, stretches, embeddings = _gain(samples_T), list[_Stretch](), list[NDArray[np.float32]]()
        for block in _blocks(spans):
            pairs = [_features(samples_T, span, gain) for span in block]
            stretches += [stretch for stretch, _ in pairs]
            embeddings.append(ge2e.embed(self._network, np.concatenate([windows_WFD for _, windows_WFD in pairs])))
        if not stretches:
            return []
        labels = clustering.speaker_labels(
            embeddings, _pairs(stretches), self.options.max_speakers, self.options.num_speakers
        )
        sizes = np.cumsum([len(stretch.centre_W) for stretch in stretches])
        of_windows = np.split(np.concatenate(labels), sizes[:-1])
        steps = [_steps(stretch, label_W) for stretch, label_W in zip(stretches, of_windows, strict=True)]
        steps = resegmentation.resegment([stretch.cepstra_FC for stretch in stretches], steps)
        both = zip(stretches, steps, strict=True)
        return numbered([span for stretch, step_S in both for span in _spans(stretch, step_S)])

    def close(self) -> None:
        """Release the network."""
        self._network = None


def _gain(samples_T: Samples) -> float:
    """The factor that brings a quiet recording to the level that the network knows; 1 for others."""
    total = 0.0
    for start in range(0, len(samples_T), _RMS_BLOCK):
        total += float(np.square(pcm.to_float(samples_T[start : start + _RMS_BLOCK])).sum(dtype=np.float64))
    rms = np.sqrt(total / max(1, len(samples_T)))
    return max(1.0, float(10 ** (_LEVEL_DB / 20) / max(rms, 1e-6)))


def _blocks(spans: Sequence[vad.Span]) -> Iterator[list[vad.Span]]:
    """The spans that begin in each ten minutes, long ones in parts."""
    parts = [
        (first_ms, min(first_ms + _MAX_STRETCH_MS, end_ms))
        for start_ms, end_ms in spans
        for first_ms in range(start_ms, end_ms, _MAX_STRETCH_MS)
    ]
    for _, block in itertools.groupby(parts, lambda span: span[0] // _BLOCK_MS):
        yield list(block)


def _features(samples_T: Samples, span: vad.Span, gain: float) -> tuple[_Stretch, NDArray[np.float32]]:
    """A stretch of speech, and the mel power (W, F, 40) of its windows.

    A short one is taken with what is around it, as a window is longer.
    """
    from voxstill.diarization import ge2e

    start_ms, end_ms = span
    missing_ms = max(0, _WINDOW_MS - (end_ms - start_ms))
    first_ms = max(0, start_ms - missing_ms // 2) // _FRAME_MS * _FRAME_MS
    last_ms = max(end_ms, first_ms + _WINDOW_MS)
    power_FD = ge2e.mel_power(_slice(samples_T, first_ms, last_ms)) * np.float32(gain**2)
    num_windows = 1 + max(0, -(-(last_ms - first_ms - _WINDOW_MS) // _HOP_MS))
    frame_W = np.linspace(0, len(power_FD) - _WINDOW_FRAMES, num_windows).round().astype(np.int64)
    windows_WFD = np.stack([power_FD[frame : frame + _WINDOW_FRAMES] for frame in frame_W])
    own_FD = power_FD[(start_ms - first_ms) // _FRAME_MS :][: -(-(end_ms - start_ms) // _FRAME_MS)]
    centre_W = np.asarray(first_ms + _FRAME_MS * frame_W + _WINDOW_MS / 2, np.float64)
    return _Stretch(start_ms, end_ms, resegmentation.cepstra(own_FD), centre_W), windows_WFD


def _pairs(stretches: Sequence[_Stretch]) -> NDArray[np.int64]:
    """The windows (P, 2) of a stretch of which the second is the first that begins where the first ends."""
    parts, num_before = [np.zeros((0, 2), np.int64)], 0
    for stretch in stretches:
        follower_W = np.searchsorted(stretch.centre_W, stretch.centre_W + _FOLLOWS_MS)
        window_P = np.flatnonzero(follower_W < len(stretch.centre_W))
        parts.append(num_before + np.stack([window_P, follower_W[window_P]], axis=1))
        num_before += len(stretch.centre_W)
    return np.concatenate(parts)


def _slice(samples_T: Samples, first_ms: int, last_ms: int) -> NDArray[np.int16]:
    """Samples from a time to another, with what the first and last frame need around, zeros beyond the recording."""
    start, end = pcm.ms_to_samples(first_ms) - _EDGE, pcm.ms_to_samples(last_ms) + _EDGE
    part_T = samples_T[max(0, start) : end]
    return np.pad(part_T, (max(0, -start), end - max(0, start) - len(part_T)))


def _steps(stretch: _Stretch, label_W: NDArray[np.int64]) -> NDArray[np.int64]:
    """The speaker of each step of a stretch: that of most windows over it, the nearest counting most."""
    num_steps = -(-len(stretch.cepstra_FC) // resegmentation.STEP_FRAMES)
    time_S = stretch.start_ms + _STEP_MS * (np.arange(num_steps) + 0.5)
    weight_SW = np.maximum(1e-6, 1 - np.abs(time_S[:, None] - stretch.centre_W) / (_WINDOW_MS / 2))
    speakers = np.unique(label_W)
    vote_SK = weight_SW @ (label_W[:, None] == speakers)
    return np.asarray(speakers[vote_SK.argmax(axis=1)], np.int64)


def _spans(stretch: _Stretch, step_S: NDArray[np.int64]) -> Iterator[tuple[int, int, str]]:
    """Start, end and speaker of each run of steps."""
    change = [0, *(np.flatnonzero(np.diff(step_S)) + 1).tolist(), len(step_S)]
    for first, end in itertools.pairwise(change):
        start_ms, end_ms = (stretch.start_ms + _STEP_MS * step for step in (first, end))
        yield start_ms, min(end_ms, stretch.end_ms), str(step_S[first])
