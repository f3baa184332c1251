"""Transducer decoding, greedy or by beam search: encoder output to words with times and confidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import Hypothesis
from voxstill.decoding.spikes import Pauses
from voxstill.decoding.tokens import Token, hypothesis, log_softmax

if TYPE_CHECKING:
    from voxstill.decoding.fusion import Fusion

Floats = NDArray[np.float32]
Memory = tuple[Floats, Floats]
"""Hidden state and cell of the predictor's LSTM, (L, B, H) each."""
Predict = Callable[[NDArray[np.int64], Memory | None], tuple[Floats, Memory]]
"""Predictor: tokens (B, U) and the memory of those before, to states (B, U, P) and the memory after them."""
Joint = Callable[[Floats, Floats], Floats]
"""Encoder frames (N, E) and as many predictor states (N, P) to logits (N, V)."""
MAX_SYMBOLS = 10
"""The most tokens that are emitted in one frame."""
MIN_ALIGNMENT = -4.0
"""Log-probability a token below which frames without the predictor do not say when tokens are spoken."""


class PredictorState(NamedTuple):
    """The state of the predictor after the last token of each utterance (B, P), and the memory of its LSTM then."""

    predicted_BP: Floats
    hidden_LBH: Floats
    cell_LBH: Floats


def greedy(
    encoded_BFE: Floats,
    frames_B: Sequence[int],
    *,
    predict: Predict,
    joint: Joint,
    ids: Sequence[str],
    pieces: Sequence[str],
    blank_id: int,
    frame_ms: int,
    durations: Sequence[int] = (),
    pauses: Sequence[Pauses | None] | None = None,
    frame_log_probs: Floats | None = None,
) -> list[Hypothesis]:
    """Greedy decoding, one hypothesis for each id: the most likely tokens of a frame until the blank (Graves 2012,
    2.5).

    The blank is the last of the tokens, and stands before the first token. A token lasts the frame in which
    it is emitted. Frames beyond `frames_B` are never read. With `durations` the last logits of the joint choose the
    number of frames to advance, which a token lasts, at least one (Xu et al. 2023, "Efficient
    sequence transduction by jointly predicting tokens and durations"). With `pauses` words last as `spikes` says, and
    with `frame_log_probs` (B, F, V), those of frames without the predictor, they begin where these say.
    """
    tokens, _ = greedy_tokens(
        encoded_BFE, frames_B, None, predict=predict, joint=joint, blank_id=blank_id, durations=durations
    )
    rows = zip(ids, timed(tokens, frames_B, frame_log_probs, blank_id), pauses or [None] * len(ids), strict=True)
    return [hypothesis(id_, path, pieces, frame_ms, quiet) for id_, path, quiet in rows]


def greedy_tokens(
    encoded_BFE: Floats,
    frames_B: Sequence[int],
    state: PredictorState | None,
    *,
    predict: Predict,
    joint: Joint,
    blank_id: int,
    durations: Sequence[int] = (),
) -> tuple[list[list[Token]], PredictorState]:
    """The tokens of `greedy`, and the predictor's state after them.

    `state` is that after the frames before these; None if there are none. Frames are counted from the first of
    these.
    """
    num, num_frames_B = len(encoded_BFE), np.array(frames_B, np.int64)
    tokens: list[list[Token]] = [[] for _ in range(num)]
    frame_B, num_symbols_B = np.zeros(num, np.int64), np.zeros(num, np.int64)
    index_B, last = np.arange(num), max(encoded_BFE.shape[1] - 1, 0)
    if state is None:
        predicted_BUP, memory = predict(np.full((num, 1), blank_id), None)
        state = PredictorState(predicted_BUP[:, 0], *memory)
    predicted_BP, memory = state.predicted_BP, (state.hidden_LBH, state.cell_LBH)
    while (active_B := frame_B < num_frames_B).any():
        logits_BV = joint(encoded_BFE[index_B, np.minimum(frame_B, last)], predicted_BP)
        logprob_BV = log_softmax(logits_BV[:, : blank_id + 1])
        best_B = logprob_BV.argmax(-1)
        emits_B = active_B & (best_B != blank_id)
        num_symbols_B = np.where(emits_B, num_symbols_B + 1, 0)
        must_advance_B = ~emits_B | (num_symbols_B >= MAX_SYMBOLS)
        if durations:
            advance_B = np.array(durations)[logits_BV[:, blank_id + 1 :].argmax(-1)]
            advance_B = np.where(must_advance_B, np.maximum(advance_B, 1), advance_B)
        else:
            advance_B = must_advance_B.astype(np.int64)
        for b in np.flatnonzero(emits_B).tolist():
            frame, best = int(frame_B[b]), int(best_B[b])
            end = min(frame + max(int(advance_B[b]), 1), int(num_frames_B[b]))
            tokens[b].append(Token(best, frame, end, logprob_BV[b, best : best + 1]))
        frame_B, num_symbols_B = frame_B + advance_B, np.where(advance_B > 0, 0, num_symbols_B)
        if emits_B.any():
            next_BUP, next_memory = predict(best_B[:, None], memory)
            predicted_BP = np.where(emits_B[:, None], next_BUP[:, 0], predicted_BP)
            hidden, cell = (np.where(emits_B[:, None], new, old) for new, old in zip(next_memory, memory, strict=True))
            memory = hidden, cell
    return tokens, PredictorState(predicted_BP, *memory)


def beam(
    encoded_BFE: Floats,
    frames_B: Sequence[int],
    *,
    width: int,
    fusion: Fusion,
    predict: Predict,
    joint: Joint,
    ids: Sequence[str],
    pieces: Sequence[str],
    blank_id: int,
    frame_ms: int,
    durations: Sequence[int] = (),
    pauses: Sequence[Pauses | None] | None = None,
    frame_log_probs: Floats | None = None,
) -> list[Hypothesis]:
    """Beam search, one hypothesis for each id: the most likely text in the beam, summed over its alignments.

    The steps are those of `greedy`; the `width` most likely texts at the same frame are extended, and
    within it those with as many tokens in it (Saon et al. 2020, "Alignment-length synchronous decoding for RNN
    transducer", calls it time-synchronous). `fusion` adds the scores of a language model and phrases. Times and
    confidences are those of the most likely alignment.
    """
    tokens = [
        _Search(width, fusion, predict, joint, blank_id, durations).best(encoded_FE[:frames]).tokens
        for encoded_FE, frames in zip(encoded_BFE, frames_B, strict=True)
    ]
    rows = zip(ids, timed(tokens, frames_B, frame_log_probs, blank_id), pauses or [None] * len(ids), strict=True)
    return [hypothesis(id_, path, pieces, frame_ms, quiet) for id_, path, quiet in rows]


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


@dataclass(slots=True)
class _Hypothesis:
    """A text in the beam: its log-probability and that of its most likely alignment, which has these tokens, the state
    of the fusion, and the predictor's state after it, which is computed when it is needed."""

    weight: float
    likeliest: float
    tokens: tuple[Token, ...]
    remembered: NDArray[np.void]
    memory: Memory | None
    state_P: Floats | None = None

    @property
    def score(self) -> float:
        return self.weight + float(self.remembered["bonus"])


_Hypotheses = dict[tuple[int, ...], _Hypothesis]


class _Search:
    """The search of one utterance."""

    def __init__(
        self, width: int, fusion: Fusion, predict: Predict, joint: Joint, blank_id: int, durations: Sequence[int]
    ) -> None:
        from voxstill.decoding import fusion as fused  # compiled code, which greedy decoding does not need

        self.width, self.fusion, self._fused = width, fusion, fused
        self.predict, self.joint, self.blank_id, self.durations = predict, joint, blank_id, durations

    def best(self, encoded_FE: Floats) -> _Hypothesis:
        """The most likely text after all frames."""
        empty_1 = np.zeros(1, np.dtype(list(self._fused.TEXT_FIELDS), align=True))
        self._fused.start(self.fusion, empty_1, 0)
        arrived: list[_Hypotheses] = [{} for _ in range(len(encoded_FE) + 1)]  # texts by the frame that comes next
        arrived[0][()] = _Hypothesis(0.0, 0.0, (), empty_1[0], None)
        for frame, encoded_E in enumerate(encoded_FE):
            active = self._pruned(arrived[frame])
            arrived[frame] = {}
            for num_symbols in range(1, MAX_SYMBOLS + 1):
                if active:
                    active = self._extend(active, encoded_E, frame, arrived, last=num_symbols == MAX_SYMBOLS)
        texts = list(arrived[-1].values())
        ends = [self._fused.end_score(self.fusion, np.array([text.remembered]), 0) for text in texts]
        return max(zip(texts, ends, strict=True), key=lambda pair: pair[0].score + pair[1])[0]

    def _pruned(self, texts: _Hypotheses) -> list[_Hypothesis]:
        return sorted(texts.values(), key=lambda text: text.score, reverse=True)[: self.width]

    def _extend(
        self, texts: list[_Hypothesis], encoded_E: Floats, frame: int, arrived: list[_Hypotheses], *, last: bool
    ) -> list[_Hypothesis]:
        """Extend each text by a blank or a token; returns those that stay in the frame."""
        states_NP = self._predictor_states(texts)
        encoded_NE = np.repeat(encoded_E[None], len(texts), axis=0)
        logits_NV = self.joint(encoded_NE, states_NP)
        logprob_NV = log_softmax(logits_NV[:, : self.blank_id + 1]).astype(np.float64)
        duration_logprob_ND = np.zeros((len(texts), 1))
        if self.durations:
            duration_logprob_ND = log_softmax(logits_NV[:, self.blank_id + 1 :]).astype(np.float64)
        blank_D = token_D = tuple(self.durations)
        if not self.durations:
            blank_D, token_D = (1,), (0,)
        for n, text in enumerate(texts):
            for duration, duration_logprob in zip(blank_D, duration_logprob_ND[n], strict=True):
                next_frame = min(frame + max(duration, 1), len(arrived) - 1)
                added = logprob_NV[n, self.blank_id] + duration_logprob
                _merge(arrived[next_frame], text, text.weight + added, text.likeliest + added, text.tokens)
        num_tokens = min(self.width, self.blank_id)
        token_NC = np.argsort(-logprob_NV[:, : self.blank_id], axis=1, kind="stable")[:, :num_tokens]
        remembered_N = np.array([text.remembered for text in texts])
        gain_NC = self._fused.piece_scores(self.fusion, remembered_N, token_NC)
        score_NC = np.take_along_axis(logprob_NV, token_NC, 1) + gain_NC
        score_NC += np.array([text.score for text in texts])[:, None]
        n_M, c_M = np.unravel_index(np.argsort(-score_NC, axis=None, kind="stable")[: self.width], score_NC.shape)
        token_M = token_NC[n_M, c_M]
        remembered_M = self._fused.append_pieces(self.fusion, remembered_N, n_M, token_M)
        staying: _Hypotheses = {}
        for n, token, remembered in zip(n_M.tolist(), token_M.tolist(), remembered_M, strict=True):
            text, logprob = texts[n], logprob_NV[n, token]
            extended = _Hypothesis(text.weight, text.likeliest, (), remembered, text.memory)
            for duration, duration_logprob in zip(token_D, duration_logprob_ND[n], strict=True):
                next_frame = frame + (max(duration, 1) if last else duration)
                end = min(frame + max(duration, 1), len(arrived) - 1)
                emitted = Token(token, frame, end, np.array([logprob], np.float32))
                added = logprob + duration_logprob
                target = staying if next_frame == frame else arrived[min(next_frame, len(arrived) - 1)]
                _merge(target, extended, text.weight + added, text.likeliest + added, (*text.tokens, emitted))
        return self._pruned(staying)

    def _predictor_states(self, texts: list[_Hypothesis]) -> Floats:
        """The predictor's states (N, P); missing ones are computed in one batch."""
        pending = [text for text in texts if text.state_P is None]
        if pending:
            newest = [text.tokens[-1].id if text.tokens else self.blank_id for text in pending]
            memories = [text.memory for text in pending if text.memory is not None]
            memory = None
            if memories:
                memory = (
                    np.concatenate([hidden for hidden, _ in memories], 1),
                    np.concatenate([c for _, c in memories], 1),
                )
            state_N1P, next_memory = self.predict(np.array(newest)[:, None], memory)
            for n, text in enumerate(pending):
                text.state_P = state_N1P[n, 0]
                text.memory = next_memory[0][:, n : n + 1], next_memory[1][:, n : n + 1]
        return np.stack([text.state_P for text in texts if text.state_P is not None])


def _merge(texts: _Hypotheses, text: _Hypothesis, weight: float, likeliest: float, tokens: tuple[Token, ...]) -> None:
    """Add one more alignment of a text."""
    merged = texts.get(ids := tuple(token.id for token in tokens))
    if merged is None:
        texts[ids] = _Hypothesis(weight, likeliest, tokens, text.remembered, text.memory, text.state_P)
        return
    merged.weight = float(np.logaddexp(merged.weight, weight))
    if likeliest > merged.likeliest:
        merged.likeliest, merged.tokens = likeliest, tokens
