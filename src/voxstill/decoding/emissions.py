"""Log-probabilities of a CTC model: of utterances in batches, and of a recording of hours in blocks with context."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.monitor import Progress
from voxstill.decoding.loaded import Samples
from voxstill.decoding.recognizer import Recognizer, batches_by_length

BLOCK_MS, CONTEXT_MS = 20_000, 5_000
"""What is kept of a block, and what the model is given before and behind it: 30 s at a time."""


def of_utterances(
    recognizer: Recognizer, samples: Sequence[Samples], blank_penalty: float = 0.0
) -> list[NDArray[np.float32]]:
    """The log-probabilities (F, V) of each utterance, in order; one that is too short has no frames.

    `blank_penalty` as in `Decode`. ConfigError if the recogniser, which is loaded, is no CTC model.
    """
    none_FV = np.empty((0, len(recognizer.vocabulary.pieces)), np.float32)
    emissions = [none_FV] * len(samples)
    with Progress("tune", len(samples), "utterances") as bar:
        for members in batches_by_length([len(samples_T) for samples_T in samples], recognizer.batch_ms):
            answers = recognizer.log_probs([samples[i] for i in members], blank_penalty)
            for i, log_probs_FV in zip(members, answers, strict=True):
                emissions[i] = log_probs_FV
            bar.advance(len(members))
    return emissions


def log_probs(
    recognizer: Recognizer, samples_T: Samples, block_ms: int = BLOCK_MS, context_ms: int = CONTEXT_MS
) -> NDArray[np.float32]:
    """The log-probabilities (F, V) of a whole recording, a frame every `recognizer.frame_ms`.

    ConfigError if the recogniser, which is loaded, is no CTC model.
    """
    frame = pcm.ms_to_samples(recognizer.frame_ms)
    block, context = (max(ms // recognizer.frame_ms, 1) for ms in (block_ms, context_ms))  # in frames
    most = len(samples_T) // frame + 1
    at_once = max(recognizer.batch_ms // (block_ms + 2 * context_ms), 1)
    starts = range(0, max(most - 1, 1), block)
    whole_FV: NDArray[np.float32] | None = None
    end = 0
    with Progress("align", len(starts), "blocks") as bar:
        for i in range(0, len(starts), at_once):
            batch = starts[i : i + at_once]
            firsts = [max(start - context, 0) for start in batch]
            answers = recognizer.log_probs(
                [
                    samples_T[first * frame : (start + block + context) * frame]
                    for first, start in zip(firsts, batch, strict=True)
                ]
            )
            for first, start, log_probs_FV in zip(firsts, batch, answers, strict=True):
                kept_FV = log_probs_FV[start - first : start - first + block]
                if whole_FV is None:
                    whole_FV = np.empty((most, log_probs_FV.shape[1]), np.float32)
                kept_FV = kept_FV[: most - start]
                whole_FV[start : start + len(kept_FV)] = kept_FV
                end = start + len(kept_FV)
                bar.advance()
    assert whole_FV is not None
    return whole_FV[:end]
