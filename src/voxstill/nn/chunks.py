"""The windows of log-mels that a streaming student is fed chunk by chunk; without torch.

The first convolutions look back 14 feature frames, and an output frame looks ahead none of its own 8: the window of a
chunk of C output frames has 16 frames before it and 8 C - 7 of its own, as NeMo and sherpa-onnx have it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import lookahead
from voxstill.nn import mel
from voxstill.nn.mel import HOP, SUBSAMPLING

LEAD = 2 * SUBSAMPLING
"""Feature frames of a window before those of its chunk; before the first chunk there is nothing, and they are zero."""
_AHEAD = mel.WINDOW // 2 - HOP
"""Samples after a feature frame's own 160 that it is computed from."""
_BEFORE = 2
"""Feature frames whose samples are needed before a frame: its window and its pre-emphasis begin there."""


def num_output_frames(chunk_ms: int) -> int:
    """Output frames of a chunk."""
    return lookahead(chunk_ms) + 1


def window_frames(chunk_ms: int) -> int:
    """Feature frames of a window."""
    return LEAD + SUBSAMPLING * (num_output_frames(chunk_ms) - 1) + 1


def is_ready(num_samples: int, chunk: int, chunk_ms: int, *, is_last: bool) -> bool:
    """Whether a stream of so many samples has the whole window of its chunk number `chunk`, or any of it at its end."""
    num_frames = num_samples // HOP
    if is_last:
        return num_frames > 0 and mel.causal_output_frames(num_frames) > num_output_frames(chunk_ms) * chunk
    end = SUBSAMPLING * num_output_frames(chunk_ms) * chunk - LEAD + window_frames(chunk_ms)
    return num_samples >= HOP * end + _AHEAD


def window(samples_T: NDArray[np.int16], chunk: int, chunk_ms: int, num_mels: int) -> tuple[NDArray[np.float32], int]:
    """Log-mels (D, W) of the window of a chunk, of all samples of a stream so far, and how many frames of it are of
    audio, counting those before the first; at the end of the stream there are fewer than W."""
    first = SUBSAMPLING * num_output_frames(chunk_ms) * chunk - LEAD
    start, end = max(first, 0), min(first + window_frames(chunk_ms), len(samples_T) // HOP)
    mel_DW = np.zeros((num_mels, window_frames(chunk_ms)), np.float32)
    if end > start:
        before = min(start, _BEFORE)
        own_T = samples_T[HOP * (start - before) : HOP * end + _AHEAD]
        mel_DW[:, start - first : end - first] = mel.log_mels(own_T, num_mels)[before : before + end - start].T
    return mel_DW, end - first
