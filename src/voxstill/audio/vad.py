"""Voice-activity detection: a recording to utterances in milliseconds, in order, disjoint and at most `max_ms` long.

Silero's network gives the probability of speech for each window of 32 ms. The rest are pure functions:
`speech_segments` finds segments of speech, `split_long` divides those that are too long, in their pauses, and `pack`
puts short ones together.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.config import Segment
from voxstill.core.errors import ConfigError

WINDOW = 512
WINDOW_MS = 32
_CONTEXT = 64  # samples of the previous window that the network takes as context
_WINDOWS_AT_ONCE = 1024
HYSTERESIS = 0.15  # speech ends at this much below the threshold that started it (Silero's own figure)
_SMOOTH = np.array([1, 2, 3, 2, 1], np.float32) / 9  # the middle of a pause is better than its edge
_ENERGY_FRAME_MS = 10  # frame of the energy in `word_spans`
_ENERGY_FRAME = pcm.ms_to_samples(_ENERGY_FRAME_MS)
_MIN_PAUSE_MS = 60
_CUT_COST = 0.01  # of every cut, beside at most 1 for its place: avoids many short pieces

Span = tuple[int, int]


class Samples(Protocol):
    """The 16 kHz samples of a recording: an array, or a file of which slices are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[np.int16]: ...


def segment(samples_T: Samples, cfg: Segment) -> list[Span]:
    """Segment a recording into utterances of at most `max_ms`: whole where it is short enough, by its speech otherwise.

    With `vad: never` nothing is dropped; with `always` short recordings lose their silence too. With `target_ms` they
    are packed.
    """
    duration_ms = pcm.samples_to_ms(len(samples_T))
    if duration_ms <= cfg.max_ms and cfg.vad != "always":
        return [(0, duration_ms)]
    loudness_W = loudness_rank(samples_T)
    if cfg.vad == "never":
        stretches, busy_W = [(0, duration_ms)], loudness_W
    else:
        probs_W = speech_probs(samples_T)
        stretches = speech_segments(probs_W, cfg, duration_ms)
        busy_W = (probs_W + loudness_W) * np.float32(0.5)
    spans = split_long(stretches, busy_W, cfg.max_ms)
    return spans if cfg.target_ms is None else pack(spans, cfg.target_ms)


def speech_probs(samples_T: Samples) -> NDArray[np.float32]:
    """Probability of speech for each window of 32 ms, the last one padded with zeros.

    Silero VAD 6, in the form that takes a sequence of windows at a time: bit-exact to the form that takes one.
    """
    probs_W = np.empty(-(-len(samples_T) // WINDOW), np.float32)
    detector = SpeechDetector()
    for first, block_WT in _blocks(samples_T):
        probs_W[first : first + len(block_WT)] = detector.probs(block_WT)
    return probs_W


class SpeechDetector:
    """The probability of speech in a recording that arrives in pieces: that of the whole, bit for bit."""

    def __init__(self) -> None:
        self._context_T = np.zeros(_CONTEXT, np.float32)
        self._h = self._c = np.zeros((1, 1, 128), np.float32)

    def probs(self, windows_WT: NDArray[np.float32]) -> NDArray[np.float32]:
        """Probability of speech in each of the next windows (W, 512), on the scale of int16."""
        padded_T = np.concatenate([self._context_T, windows_WT.reshape(-1) / np.float32(pcm.FULL_SCALE)])
        self._context_T = padded_T[-_CONTEXT:]
        input_WT = np.lib.stride_tricks.sliding_window_view(padded_T, _CONTEXT + WINDOW)[::WINDOW]
        inputs = {"input": np.ascontiguousarray(input_WT), "h": self._h, "c": self._c}
        probs_W: NDArray[np.float32]
        probs_W, self._h, self._c = _session().run(None, inputs)
        return probs_W


def loudness_rank(samples_T: Samples) -> NDArray[np.float32]:
    """The rank of each window's power in its recording: 0 for the quietest, towards 1 for the loudest."""
    power_W = np.empty(-(-len(samples_T) // WINDOW), np.float32)
    for first, block_WT in _blocks(samples_T):
        power_W[first : first + len(block_WT)] = np.square(block_WT).mean(axis=1)
    rank_W: NDArray[np.float32] = np.searchsorted(np.sort(power_W), power_W).astype(np.float32)
    return rank_W / np.float32(max(1, len(power_W)))


def _blocks(samples_T: Samples) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The number of the first window and the samples of so many windows as are computed at once, zeros at the end."""
    for start in range(0, len(samples_T), _WINDOWS_AT_ONCE * WINDOW):
        block_T = samples_T[start : start + _WINDOWS_AT_ONCE * WINDOW]
        block_WT = np.zeros((-(-len(block_T) // WINDOW), WINDOW), np.float32)
        block_WT.reshape(-1)[: len(block_T)] = block_T
        yield start // WINDOW, block_WT


def speech_segments(probs_W: NDArray[np.float32], cfg: Segment, duration_ms: int) -> list[Span]:
    """Segments of speech with their padding, in order and disjoint.

    A segment starts at `threshold` and ends where a pause of `min_silence_ms` begins; below `min_ms` it is dropped.
    """
    segments: list[list[int]] = []
    speaking = False
    for window, prob in enumerate(probs_W.tolist()):
        speaking = prob >= (cfg.threshold - HYSTERESIS if speaking else cfg.threshold)
        if not speaking:
            continue
        start, end = window * WINDOW_MS, min((window + 1) * WINDOW_MS, duration_ms)
        if segments and start - segments[-1][1] < max(1, cfg.min_silence_ms):
            segments[-1][1] = end
        elif start < end:
            segments.append([start, end])
    kept = [(start, end) for start, end in segments if end - start >= cfg.min_ms]
    if not kept:
        return []
    middles = [(left[1] + right[0]) // 2 for left, right in itertools.pairwise(kept)]
    return [
        (max(start - cfg.pad_ms, before), min(end + cfg.pad_ms, after))
        for (start, end), before, after in zip(kept, [0, *middles], [*middles, duration_ms], strict=True)
    ]


def split_long(stretches: Sequence[Span], busy_W: NDArray[np.float32], max_ms: int) -> list[Span]:
    """Divide stretches into pieces of at most `max_ms`, cut where `busy_W` (0 to 1 for each window) is lowest.

    Dynamic programming finds the cuts with the lowest sum of squared costs, so that one cut in a word costs more than
    many in pauses. No piece is shorter than a quarter of `max_ms` unless its stretch is.
    """
    if not any(end - start > max_ms for start, end in stretches):
        return list(stretches)
    edge_W = np.concatenate(([1.0], busy_W[1:] + busy_W[:-1], [1.0])) / 2  # a cut falls between two windows
    cost_W = np.convolve(np.pad(edge_W, 2, mode="edge"), _SMOOTH, mode="valid") ** 2 + _CUT_COST
    pieces: list[Span] = []
    for start, end in stretches:
        pieces += _divide(start, end, cost_W, max_ms) if end - start > max_ms else [(start, end)]
    return pieces


def _divide(start: int, end: int, cost_W: NDArray[np.float64], max_ms: int) -> list[Span]:
    """Cheapest path from `start` to `end` over the borders of windows, in steps of `max_ms // 4` to `max_ms`."""
    inner = range(start // WINDOW_MS + 1, min(-(-end // WINDOW_MS), len(cost_W)))
    times_ms = [start, *(window * WINDOW_MS for window in inner), end]
    cost = [0.0, *cost_W[inner.start : inner.stop].tolist(), 0.0]
    total, previous = [0.0] * len(times_ms), [0] * len(times_ms)
    best: deque[int] = deque()  # points within reach, the cheapest first: a sliding-window minimum
    entered = 0
    for point in range(1, len(times_ms)):
        while entered < point and times_ms[point] - times_ms[entered] >= max_ms // 4:
            while best and total[best[-1]] > total[entered]:
                best.pop()
            best.append(entered)
            entered += 1
        while best and times_ms[point] - times_ms[best[0]] > max_ms:
            best.popleft()
        total[point] = total[best[0]] + cost[point] if best else float("inf")
        previous[point] = best[0] if best else 0
    points = [len(times_ms) - 1]
    while points[-1]:
        points.append(previous[points[-1]])
    points.reverse()
    return [(times_ms[left], times_ms[right]) for left, right in itertools.pairwise(points)]


def pack(spans: Sequence[Span], target_ms: int) -> list[Span]:
    """Join spans that follow one another, with the pauses between them, while the whole is at most `target_ms` long.

    In order and greedily, as the cut and merge of WhisperX (Bain et al. 2023): no other way takes fewer.
    """
    packed: list[Span] = []
    for start, end in spans:
        if packed and end - packed[-1][0] <= target_ms:
            packed[-1] = (packed[-1][0], end)
        else:
            packed.append((start, end))
    return packed


@functools.cache
def _session() -> Any:
    """Load the network, on one thread; its file is located without importing its package, which would load torch."""
    import onnxruntime

    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        raise ConfigError(
            "the voice-activity detector is missing",
            code="missing-package",
            why="the package `silero-vad` is not installed",
            fix="install `silero-vad`, or set `segment.vad` to `never`",
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    path = Path(package.origin).parent / "data" / "silero_vad_16k_sequence.onnx"
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a dozen classes of its own
        raise ConfigError(
            f"the voice-activity detector `{path}` cannot be loaded",
            code="missing-package",
            why=str(error).partition("\n")[0],
            fix="reinstall `silero-vad`, or set `segment.vad` to `never`",
        ) from None


def word_spans(samples_T: NDArray[np.int16], num_words: int) -> list[Span] | None:
    """Start and end in milliseconds of each of `num_words` words, from energy alone; None if pauses are ambiguous.

    For isolated words: the pauses between words must be clearly longer than those within.
    """
    num_frames = len(samples_T) // _ENERGY_FRAME
    if not num_words or num_frames < num_words:
        return None
    frames_FT = samples_T[: num_frames * _ENERGY_FRAME].astype(np.float32).reshape(num_frames, -1)
    level_F = 10 * np.log10(np.square(frames_FT).mean(axis=1) + 1.0)
    quiet, loud = np.percentile(level_F, (10, 95))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], level_F > quiet + 0.4 * (loud - quiet), [0]])))
    bursts = [(int(start) * _ENERGY_FRAME_MS, int(end) * _ENERGY_FRAME_MS) for start, end in edges.reshape(-1, 2)]
    gaps = sorted(right[0] - left[1] for left, right in itertools.pairwise(bursts))
    if len(bursts) < num_words:
        return None
    longest = gaps[len(bursts) - num_words - 1] if len(bursts) > num_words else 0  # within a word
    shortest = gaps[len(bursts) - num_words] if num_words > 1 else None  # between words
    if shortest is not None and shortest < max(2 * longest, _MIN_PAUSE_MS):
        return None
    words = [bursts[0]]
    for span in bursts[1:]:
        if span[0] - words[-1][1] <= longest:
            words[-1] = (words[-1][0], span[1])
        else:
            words.append(span)
    return words
