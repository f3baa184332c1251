"""Transducer decoding, greedy or by beam search: encoder output to words with times and confidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxstill.core.records import Hypothesis
from voxstill.decoding.spikes import Pauses
from voxstill.decoding.tokens import Token, hypothesis

if TYPE_CHECKING:
    from voxstill.decoding.fusion import Fusion

Memory = tuple[Tensor, Tensor]
Predict = Callable[[Tensor, Memory | None], tuple[Tensor, Memory]]
"""Predictor: tokens (B, U) and the memory of those before, to states (B, U, P) and the memory after them."""
Joint = Callable[[Tensor, Tensor], Tensor]
"""Encoder frames (B, F, 1, E) and predictor states (B, 1, U, P) to logits (B, F, U, V)."""
MAX_SYMBOLS = 10
"""The most tokens that are emitted in one frame."""
MIN_ALIGNMENT = -4.0
"""Log-probability a token below which frames without the predictor do not say when tokens are spoken."""


@torch.no_grad()
def greedy(
    encoded_BFE: Tensor,
    frames_B: Tensor,
    *,
    predict: Predict,
    joint: Joint,
    ids: Sequence[str],
    pieces: Sequence[str],
    blank_id: int,
    frame_ms: int,
    durations: Sequence[int] = (),
    pauses: Sequence[Pauses | None] | None = None,
    frame_log_probs: NDArray[np.float32] | None = None,
) -> list[Hypothesis]:
    """Greedy decoding, one hypothesis for each id: the likeliest tokens of a frame until the blank (Graves 2012, 2.5).

    The blank is the last of the tokens, and stands before the first token. A token lasts the frame in which
    it is emitted. Frames beyond `frames_B` are never read. With `durations` the last logits of the joint choose the
    number of frames to advance, which a token lasts, at least one (Xu et al. 2023, "Efficient
    sequence transduction by jointly predicting tokens and durations"). With `pauses` words last as `spikes` says, and
    with `frame_log_probs` (B, F, V), those of frames without the predictor, they begin where these say.
    """
    num, device = len(encoded_BFE), encoded_BFE.device
    tokens: list[list[Token]] = [[] for _ in range(num)]
    frame_B, num_symbols_B = (
        torch.zeros(num, dtype=torch.long, device=device),
        torch.zeros(num, dtype=torch.long, device=device),
    )
    index_B, last = torch.arange(num, device=device), max(encoded_BFE.shape[1] - 1, 0)
    predicted_B1P, memory = predict(torch.full((num, 1), blank_id, device=device), None)
    while bool((active_B := frame_B < frames_B).any()):
        encoded_B1E = encoded_BFE[index_B, frame_B.clamp(max=last)][:, None]
        logits_BV = joint(encoded_B1E[:, :, None], predicted_B1P[:, None])[:, 0, 0].float()
        logprob_B, best_B = logits_BV[:, : blank_id + 1].log_softmax(-1).max(-1)
        emits_B = active_B & (best_B != blank_id)
        num_symbols_B = torch.where(emits_B, num_symbols_B + 1, 0)
        if durations:
            advance_B = torch.tensor(durations, device=device)[logits_BV[:, blank_id + 1 :].argmax(-1)]
            advance_B = torch.where(~emits_B | (num_symbols_B >= MAX_SYMBOLS), advance_B.clamp(min=1), advance_B)
        else:
            advance_B = (~emits_B | (num_symbols_B >= MAX_SYMBOLS)).long()
        columns = (tensor.tolist() for tensor in (emits_B, best_B, logprob_B, frame_B, frames_B, advance_B))
        for b, (emits, best, logprob, frame, num_frames, advance) in enumerate(zip(*columns, strict=True)):
            if emits:
                end = min(frame + max(advance, 1), num_frames)
                tokens[b].append(Token(best, frame, end, np.array([logprob], np.float32)))
        frame_B, num_symbols_B = frame_B + advance_B, torch.where(advance_B > 0, 0, num_symbols_B)
        next_B1P, next_memory = predict(best_B[:, None], memory)
        predicted_B1P = torch.where(emits_B[:, None, None], next_B1P, predicted_B1P)
        hidden, cell = (torch.where(emits_B[:, None], new, old) for new, old in zip(next_memory, memory, strict=True))
        memory = hidden, cell
    rows = zip(ids, _timed(tokens, frames_B, frame_log_probs, blank_id), pauses or [None] * num, strict=True)
    return [hypothesis(id_, path, pieces, frame_ms, quiet) for id_, path, quiet in rows]


@torch.no_grad()
def beam(
    encoded_BFE: Tensor,
    frames_B: Tensor,
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
    frame_log_probs: NDArray[np.float32] | None = None,
) -> list[Hypothesis]:
    """Beam search, one hypothesis for each id: the likeliest text in the beam, summed over its alignments.

    The steps are those of `greedy`; the `width` likeliest texts at the same frame are extended, and
    within it those with as many tokens in it (Saon et al. 2020, "Alignment-length synchronous decoding for RNN
    transducer", calls it time-synchronous). `fusion` adds the scores of a language model and phrases. Times and
    confidences are those of the likeliest alignment.
    """
    tokens = [
        _Search(width, fusion, predict, joint, blank_id, durations).best(encoded_FE[:frames]).tokens
        for encoded_FE, frames in zip(encoded_BFE, frames_B.tolist(), strict=True)
    ]
    rows = zip(ids, _timed(tokens, frames_B, frame_log_probs, blank_id), pauses or [None] * len(ids), strict=True)
    return [hypothesis(id_, path, pieces, frame_ms, quiet) for id_, path, quiet in rows]


def _timed(
    tokens: Sequence[Sequence[Token]], frames_B: Tensor, frame_log_probs: NDArray[np.float32] | None, blank_id: int
) -> list[Sequence[Token]]:
    """The tokens of each utterance with the frames in which they are spoken, by forced alignment.

    A transducer that sees the whole utterance says a token at any time, mostly too early. Its frames without the
    predictor are a CTC model, which a student learns beside; where they do not know the tokens, these stay.
    """
    if frame_log_probs is None:
        return list(tokens)
    from voxstill.decoding import forced_alignment  # compiled code

    timed: list[Sequence[Token]] = []
    for path, frames, log_probs_FV in zip(tokens, frames_B.tolist(), frame_log_probs, strict=True):
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
    """A text in the beam: its log-probability and that of its likeliest alignment, which has these tokens, the state of
    the fusion, and the predictor's state after it, which is computed when it is needed."""

    weight: float
    likeliest: float
    tokens: tuple[Token, ...]
    remembered: NDArray[np.void]
    memory: Memory | None
    state_P: Tensor | None = None

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

    def best(self, encoded_FE: Tensor) -> _Hypothesis:
        """The likeliest text after all frames."""
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
        self, texts: list[_Hypothesis], encoded_E: Tensor, frame: int, arrived: list[_Hypotheses], *, last: bool
    ) -> list[_Hypothesis]:
        """Extend each text by a blank or a token; returns those that stay in the frame."""
        states_NP = self._predictor_states(texts, encoded_E.device)
        encoded_N11E = encoded_E.expand(len(texts), 1, 1, -1)
        logits_NV = self.joint(encoded_N11E, states_NP[:, None, None])[:, 0, 0].float()
        logprob_NV = logits_NV[:, : self.blank_id + 1].log_softmax(-1).double().cpu().numpy()
        duration_logprob_ND = logits_NV[:, self.blank_id + 1 :].log_softmax(-1).double().cpu().numpy()
        blank_D = token_D = tuple(self.durations)
        if not self.durations:
            blank_D, token_D, duration_logprob_ND = (1,), (0,), np.zeros((len(texts), 1))
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

    def _predictor_states(self, texts: list[_Hypothesis], device: torch.device) -> Tensor:
        """The predictor's states (N, P); missing ones are computed in one batch."""
        pending = [text for text in texts if text.state_P is None]
        if pending:
            newest = [text.tokens[-1].id if text.tokens else self.blank_id for text in pending]
            memories = [text.memory for text in pending if text.memory is not None]
            memory = tuple(torch.cat(tensors, 1) for tensors in zip(*memories, strict=True)) if memories else None
            state_N1P, next_memory = self.predict(torch.tensor(newest, device=device)[:, None], memory)  # type: ignore[arg-type]
            for n, text in enumerate(pending):
                text.state_P = state_N1P[n, 0]
                text.memory = next_memory[0][:, n : n + 1], next_memory[1][:, n : n + 1]
        return torch.stack([text.state_P for text in texts if text.state_P is not None])


def _merge(texts: _Hypotheses, text: _Hypothesis, weight: float, likeliest: float, tokens: tuple[Token, ...]) -> None:
    """Add one more alignment of a text."""
    merged = texts.get(ids := tuple(token.id for token in tokens))
    if merged is None:
        texts[ids] = _Hypothesis(weight, likeliest, tokens, text.remembered, text.memory, text.state_P)
        return
    merged.weight = float(np.logaddexp(merged.weight, weight))
    if likeliest > merged.likeliest:
        merged.likeliest, merged.tokens = likeliest, tokens
