"""Greedy decoding of transducers: encoder output to words with times and confidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import Hypothesis
from voxstill.decoding.spikes import Pauses
from voxstill.decoding.tokens import Token, hypothesis, log_softmax

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Memory = tuple[Floats, Floats]
"""Hidden state and cell of the predictor's LSTM, (L, B, H) each."""
Predict = Callable[[NDArray[np.int64], Memory | None], tuple[Floats, Memory]]
"""Predictor: tokens (B, U) and the memory of those before, to states (B, U, P) and the memory after them."""
Joint = Callable[[Floats, Floats], Floats]
"""Encoder frames (N, E) and as many predictor states (N, P) to logits (N, V)."""
MAX_SYMBOLS = 10
"""The most tokens that are emitted in one frame."""
WINDOWS = 4, 16
"""Frames for which the joint is computed at once: after a token, and at most. The latter doubles from the former."""
MIN_ALIGNMENT = -4.0
"""Log-probability a token below which frames without the predictor do not say when tokens are spoken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransducerModel:
    """The predictor and the joint of a transducer, its tokens and its frames.

    With `durations` the last logits of the joint choose the number of frames to advance.
    """

    predict: Predict
    joint: Joint
    pieces: Sequence[str]
    blank_id: int
    frame_ms: int
    durations: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """The encoder's output for each utterance, of which frames beyond `frames_B` are never read.

    With `pauses` words last as `spikes` says, and with `frame_log_probs` (B, F, V), those of frames without the
    predictor, they begin where these say.
    """

    encoded_BFE: Floats
    frames_B: Sequence[int]
    ids: Sequence[str]
    pauses: Sequence[Pauses | None] | None = None
    frame_log_probs: Floats | None = None


class PredictorState(NamedTuple):
    """The state of the predictor after the last token of each utterance (B, P), and the memory of its LSTM then."""

    predicted_BP: Floats
    hidden_LBH: Floats
    cell_LBH: Floats


def greedy(model: TransducerModel, batch: EncodedBatch) -> list[Hypothesis]:
    """Greedy decoding, one hypothesis for each id: the most likely tokens of a frame until the blank (Graves 2012,
    2.5).

    The blank is the last of the tokens, and stands before the first token. A token lasts the frame in which
    it is emitted, or with durations as many frames as are advanced, at least one (Xu et al. 2023, "Efficient
    sequence transduction by jointly predicting tokens and durations").
    """
    tokens, _ = greedy_tokens(model, batch.encoded_BFE, batch.frames_B, None)
    return hypotheses(model, batch, tokens)


def hypotheses(model: TransducerModel, batch: EncodedBatch, tokens: Sequence[Sequence[Token]]) -> list[Hypothesis]:
    """The hypothesis of each utterance from its tokens, with the times of its words."""
    timed_tokens = timed(tokens, batch.frames_B, batch.frame_log_probs, model.blank_id)
    rows = zip(batch.ids, timed_tokens, batch.pauses or [None] * len(batch.ids), strict=True)
    return [hypothesis(id_, path, model.pieces, model.frame_ms, quiet) for id_, path, quiet in rows]


def greedy_tokens(
    model: TransducerModel, encoded_BFE: Floats, frames_B: Sequence[int], state: PredictorState | None
) -> tuple[list[list[Token]], PredictorState]:
    """The tokens of `greedy`, and the predictor's state after them.

    `state` is that after the frames before these; None if there are none. Frames are counted from the first of
    these. Between two tokens the predictor's state stays, so the joint is computed for a window of frames at once,
    which grows while they are blank (Bataev et al. 2024, "Label-Looping", loops over tokens instead of frames too).
    """
    num, num_frames_B = len(encoded_BFE), np.array(frames_B, np.int64)
    blank_id, durations = model.blank_id, np.array(model.durations)
    tokens: list[list[Token]] = [[] for _ in range(num)]
    frame_B, num_symbols_B = np.zeros(num, np.int64), np.zeros(num, np.int64)
    window_B = np.full(num, WINDOWS[0])
    if state is None:
        predicted_BUP, memory = model.predict(np.full((num, 1), blank_id), None)
        state = PredictorState(predicted_BUP[:, 0], *memory)
    state = PredictorState(*(array.copy() for array in state))
    while len(row_A := np.flatnonzero(frame_B < num_frames_B)):
        size_A = np.minimum(window_B[row_A], num_frames_B[row_A] - frame_B[row_A])
        row_N, first_A = np.repeat(row_A, size_A), np.cumsum(size_A) - size_A
        frame_N = frame_B[row_N] + np.arange(len(row_N)) - np.repeat(first_A, size_A)
        logits_NV = model.joint(encoded_BFE[row_N, frame_N], state.predicted_BP[row_N])
        best_N = logits_NV[:, : blank_id + 1].argmax(-1)
        duration_N = np.zeros(len(row_N), np.int64)
        if len(durations):
            duration_N = durations[logits_NV[:, blank_id + 1 :].argmax(-1)]
        passed_A = _blanks(best_N == blank_id, duration_N, first_A, size_A)
        frame_B[row_A] += passed_A
        num_symbols_B[row_A[passed_A > 0]] = 0
        emits_A = passed_A < size_A
        window_B[row_A] = np.where(emits_A, WINDOWS[0], np.minimum(2 * window_B[row_A], WINDOWS[1]))
        if not emits_A.any():
            continue
        row_E, at_E = row_A[emits_A], (first_A + passed_A)[emits_A]
        num_symbols_B[row_E] += 1
        advance_E = np.maximum(duration_N[at_E], num_symbols_B[row_E] >= MAX_SYMBOLS)
        end_E = np.minimum(frame_B[row_E] + np.maximum(advance_E, 1), num_frames_B[row_E])
        logprob_EV = log_softmax(logits_NV[at_E, : blank_id + 1])
        logprob_E1 = np.take_along_axis(logprob_EV, best_N[at_E, None], 1)
        emitted = (row_E, best_N[at_E], frame_B[row_E], end_E)
        for b, best, frame, end, logprob_1 in zip(*(array.tolist() for array in emitted), logprob_E1, strict=True):
            tokens[b].append(Token(best, frame, end, logprob_1))
        frame_B[row_E] += advance_E
        num_symbols_B[row_E[advance_E > 0]] = 0
        predicted_E1P, memory = model.predict(
            best_N[at_E, None], (state.hidden_LBH[:, row_E], state.cell_LBH[:, row_E])
        )
        state.predicted_BP[row_E], state.hidden_LBH[:, row_E], state.cell_LBH[:, row_E] = predicted_E1P[:, 0], *memory
    return tokens, state


def _blanks(is_blank_N: Bools, duration_N: Ints, first_A: Ints, size_A: Ints) -> Ints:
    """Frames (A,) from the first of a window to its first token that is no blank, or past its end without one."""
    is_blank, duration, passed = is_blank_N.tolist(), duration_N.tolist(), []
    for first, size in zip(first_A.tolist(), size_A.tolist(), strict=True):
        offset = 0
        while offset < size and is_blank[first + offset]:
            offset += max(duration[first + offset], 1)
        passed.append(offset)
    return np.array(passed, np.int64)


def timed(
    tokens: Sequence[Sequence[Token]], frames_B: Sequence[int], frame_log_probs: Floats | None, blank_id: int
) -> list[Sequence[Token]]:
    """The tokens of each utterance with the frames in which they are spoken, by forced alignment.

    A transducer that sees the whole utterance says a token at any time, mostly too early. Its frames without the
    predictor are a CTC model, which a student learns beside; where they do not know the tokens, these stay.
    """
    if frame_log_probs is None:
        return list(tokens)
    from voxstill.decoding import forced_alignment  # compiled code

    timed: list[Sequence[Token]] = []
    for path, frames, log_probs_FV in zip(tokens, frames_B, frame_log_probs, strict=True):
        line = [token.id for token in path]
        timed.append(path)
        if line and frames >= forced_alignment.min_frames([line]):
            aligned = forced_alignment.align(log_probs_FV[:frames], [line], blank_id)
            if aligned.start_U[0] >= 0 and aligned.total_F[-1] >= MIN_ALIGNMENT * len(line):
                spans = zip(path, aligned.start_U.tolist(), aligned.end_U.tolist(), strict=True)
                timed[-1] = [token._replace(start=start, end=end) for token, start, end in spans]
    return timed
