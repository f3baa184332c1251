"""Beam search of transducers, with a language model and phrases: all utterances of a batch frame by frame together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import Hypothesis
from voxstill.decoding import fusion as fused
from voxstill.decoding.fusion import Fusion
from voxstill.decoding.tokens import Token, log_softmax
from voxstill.decoding.transducer import (
    MAX_SYMBOLS,
    EncodedBatch,
    Floats,
    Ints,
    Memory,
    TransducerModel,
    hypotheses,
)

FUSION_MARGIN = 20.0
"""Log-probability that a language model and phrases may add to a text in a frame."""


def beam(model: TransducerModel, batch: EncodedBatch, *, width: int, fusion: Fusion) -> list[Hypothesis]:
    """Beam search, one hypothesis for each id: the most likely text in the beam, summed over its alignments.

    The steps are those of `transducer.greedy`; the `width` most likely texts at the same frame are extended, and within
    it those with as many tokens in it (Saon et al. 2020, "Alignment-length synchronous decoding for RNN transducer",
    calls it time-synchronous), until as many texts that have left the frame are likelier than all that are in it
    (Graves 2012, algorithm 1). `fusion` adds the scores of a language model and phrases. Times and confidences are
    those of the most likely alignment.
    """
    search = _Search(model, width, fusion, tuple(model.durations))
    return hypotheses(model, batch, search.tokens(batch.encoded_BFE, batch.frames_B))


class _Emission(NamedTuple):
    """The last token of an alignment, its frames and log-probability, and the alignment before it."""

    before: _Emission | None
    token: int
    start: int
    end: int
    logprob: float


@dataclass(slots=True)
class _Hypothesis:
    """A text in the beam: its log-probability, and its most likely alignment with that of this one.

    `fused` is the state of the fusion. The predictor's memory is that before the last token, until the state after it
    is computed, which is done when it is needed.
    """

    number: int
    weight: float
    likeliest: float
    path: _Emission | None
    fused: np.void
    bonus: float
    memory: Memory
    state_P: Floats | None = None

    @property
    def score(self) -> float:
        return self.weight + self.bonus


_Hypotheses = dict[int, _Hypothesis]
"""By the number of their text."""


@dataclass(slots=True)
class _Beam:
    """The texts of one utterance: those in the present frame, and those that have left it by the frame that is next."""

    row: int
    arrived: list[_Hypotheses]
    active: list[_Hypothesis] = field(default_factory=list)
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def number(self, text: int, token: int) -> int:
        """The number of a text with a token more; the empty text is 0."""
        return self._numbers.setdefault((text, token), len(self._numbers) + 1)

    def arrive(self, text: _Hypothesis, frame: int, added: float) -> None:
        """Add the alignments of a text that leave for a frame, at the latest just past the last one."""
        at = self.arrived[min(frame, len(self.arrived) - 1)]
        _merge(at, text, text.number, text.weight + added, text.likeliest + added, text.path)


class _Extension(NamedTuple):
    """A text with a token more: which one of those in the beams, the token, the fusion after it, log-probability."""

    source: int
    token: int
    fused: np.void
    bonus: float
    logprob: float


@dataclass(frozen=True, slots=True)
class _Search:
    """The search of a batch."""

    model: TransducerModel
    width: int
    fusion: Fusion
    durations: tuple[int, ...]

    def tokens(self, encoded_BFE: Floats, frames_B: Sequence[int]) -> list[list[Token]]:
        """The tokens of the most likely text of each utterance, as in its most likely alignment."""
        empty_1 = np.zeros(1, np.dtype(list(fused.TEXT_FIELDS), align=True))
        fused.start(self.fusion, empty_1, 0)
        state_11P, memory = self.model.predict(np.full((1, 1), self.model.blank_id), None)
        beams = []
        for row, frames in enumerate(frames_B):
            empty = _Hypothesis(0, 0.0, 0.0, None, empty_1[0], 0.0, memory, state_11P[0, 0])
            beams.append(_Beam(row, [{0: empty}, *({} for _ in range(frames))]))
        for frame in range(max(frames_B, default=0)):
            for one in (one for one in beams if frame < frames_B[one.row]):
                one.active, one.arrived[frame] = self._likeliest(one.arrived[frame]), {}
            for num_symbols in range(1, MAX_SYMBOLS + 1):
                self._extend(beams, encoded_BFE, frame, last=num_symbols == MAX_SYMBOLS)
        return [self._best(list(one.arrived[-1].values())) for one in beams]

    def _extend(self, beams: Sequence[_Beam], encoded_BFE: Floats, frame: int, *, last: bool) -> None:
        """Extend the texts in the frame by a blank or a token; those without a blank stay in it."""
        beams = [one for one in beams if one.active]
        if not beams:
            return
        texts = [text for one in beams for text in one.active]
        size_A = np.array([len(one.active) for one in beams])
        row_N = np.repeat([one.row for one in beams], size_A)
        logits_NV = self.model.joint(encoded_BFE[row_N, frame], self._states(texts))
        logprob_NV = log_softmax(logits_NV[:, : self.model.blank_id + 1])
        duration_logprob_ND: list[list[float]] = [[0.0]] * len(texts)
        if self.durations:
            duration_logprob_ND = log_softmax(logits_NV[:, self.model.blank_id + 1 :]).astype(np.float64).tolist()
        blank_N = logprob_NV[:, self.model.blank_id].astype(np.float64).tolist()
        extensions = self._extensions(texts, size_A, logprob_NV)
        first = 0
        for one, extended in zip(beams, extensions, strict=True):
            for n, text in enumerate(one.active, first):
                for duration, logprob in zip(self.durations or (1,), duration_logprob_ND[n], strict=True):
                    one.arrive(text, frame + max(duration, 1), blank_N[n] + logprob)
            first += len(one.active)
            staying = self._emit(one, frame, texts, extended, duration_logprob_ND, last=last)
            one.active = [] if self._is_decided(one, frame, staying) else staying

    def _emit(
        self,
        one: _Beam,
        frame: int,
        texts: Sequence[_Hypothesis],
        extended: Sequence[_Extension],
        duration_logprob_ND: Sequence[Sequence[float]],
        *,
        last: bool,
    ) -> list[_Hypothesis]:
        """Let texts emit a token; returns the likeliest of those that stay in the frame."""
        staying: _Hypotheses = {}
        for source, token, state, bonus, logprob in extended:
            text = texts[source]
            number, num_frames = one.number(text.number, token), len(one.arrived) - 1
            longer = _Hypothesis(number, text.weight, text.likeliest, None, state, bonus, text.memory)
            for duration, duration_logprob in zip(self.durations or (0,), duration_logprob_ND[source], strict=True):
                added = logprob + duration_logprob
                end = min(frame + max(duration, 1), num_frames)
                path = _Emission(text.path, token, frame, end, logprob)
                next_frame = frame + (max(duration, 1) if last else duration)
                at = staying if next_frame == frame else one.arrived[min(next_frame, num_frames)]
                _merge(at, longer, number, text.weight + added, text.likeliest + added, path)
        return self._likeliest(staying)

    def _is_decided(self, one: _Beam, frame: int, staying: Sequence[_Hypothesis]) -> bool:
        """Whether enough texts that have left a frame are likelier than those in it, which only get less likely.

        With a language model or phrases the latter may also gain.
        """
        if not staying:
            return True
        bound = staying[0].score + (0.0 if self.fusion.plain else FUSION_MARGIN)
        leaving = one.arrived[frame + 1 : frame + 1 + max(self.durations, default=1)]
        return sum(text.score > bound for texts in leaving for text in texts.values()) >= self.width

    def _extensions(self, texts: Sequence[_Hypothesis], size_A: Ints, logprob_NV: Floats) -> Iterator[list[_Extension]]:
        """The most likely `width` texts of each beam with a token more."""
        num_tokens = min(self.width, self.model.blank_id)
        token_NC = _likeliest_tokens(logprob_NV[:, : self.model.blank_id], num_tokens)
        logprob_NC = np.take_along_axis(logprob_NV, token_NC, 1).astype(np.float64)
        fused_N = np.array([text.fused for text in texts])
        score_NC = logprob_NC + fused.piece_scores(self.fusion, fused_N, token_NC)
        score_NC += np.array([text.score for text in texts])[:, None]
        first_A = np.cumsum(size_A) - size_A
        score_AK = np.full((len(size_A), size_A.max(), num_tokens), -np.inf)
        beam_N, place_N = np.repeat(np.arange(len(size_A)), size_A), np.arange(len(texts)) - np.repeat(first_A, size_A)
        score_AK[beam_N, place_N] = score_NC
        score_AK = score_AK.reshape(len(size_A), -1)
        at_AM = np.argsort(-score_AK, axis=1, kind="stable")[:, : self.width]
        is_text_AM = np.take_along_axis(score_AK, at_AM, 1) > -np.inf
        source_M = (first_A[:, None] + at_AM // num_tokens)[is_text_AM]
        rank_M = (at_AM % num_tokens)[is_text_AM]
        token_M = token_NC[source_M, rank_M]
        fused_M = fused.append_pieces(self.fusion, fused_N, source_M, token_M)
        columns = (source_M, token_M, fused_M["bonus"], logprob_NC[source_M, rank_M])
        sources, tokens, bonuses, logprobs = (column.tolist() for column in columns)
        every = map(_Extension, sources, tokens, fused_M, bonuses, logprobs)
        for num in is_text_AM.sum(1).tolist():
            yield [next(every) for _ in range(num)]

    def _states(self, texts: Sequence[_Hypothesis]) -> Floats:
        """The predictor's states (N, P); missing ones are computed in one batch."""
        pending = [text for text in texts if text.state_P is None]
        if pending:
            newest = np.array([cast("_Emission", text.path).token for text in pending])
            hidden_LNH, cell_LNH = (np.concatenate([text.memory[i] for text in pending], axis=1) for i in (0, 1))
            state_N1P, (hidden_LNH, cell_LNH) = self.model.predict(newest[:, None], (hidden_LNH, cell_LNH))
            for n, text in enumerate(pending):
                text.state_P = state_N1P[n, 0]
                text.memory = hidden_LNH[:, n : n + 1], cell_LNH[:, n : n + 1]
        return np.stack([cast("Floats", text.state_P) for text in texts])

    def _likeliest(self, texts: _Hypotheses) -> list[_Hypothesis]:
        return sorted(texts.values(), key=lambda text: text.score, reverse=True)[: self.width]

    def _best(self, texts: Sequence[_Hypothesis]) -> list[Token]:
        """The tokens of the most likely text after all frames."""
        ends = [fused.end_score(self.fusion, np.array([text.fused]), 0) for text in texts]
        best = max(zip(texts, ends, strict=True), key=lambda pair: pair[0].score + pair[1])[0]
        tokens, emission = [], best.path
        while emission is not None:
            logprob_1 = np.array([emission.logprob], np.float32)
            tokens.append(Token(emission.token, emission.start, emission.end, logprob_1))
            emission = emission.before
        return tokens[::-1]


def _likeliest_tokens(logprob_NV: Floats, num: int) -> NDArray[np.int64]:
    """The `num` likeliest tokens (N, num), the likeliest first; of equal ones the lower."""
    if num < logprob_NV.shape[1]:
        token_NC = np.sort(np.argpartition(-logprob_NV, num - 1, axis=1)[:, :num], axis=1)
    else:
        token_NC = np.tile(np.arange(num), (len(logprob_NV), 1))
    order_NC = np.argsort(-np.take_along_axis(logprob_NV, token_NC, 1), axis=1, kind="stable")
    return np.take_along_axis(token_NC, order_NC, 1)


def _merge(
    texts: _Hypotheses, text: _Hypothesis, number: int, weight: float, likeliest: float, path: _Emission | None
) -> None:
    """Add one more alignment of a text."""
    merged = texts.get(number)
    if merged is None:
        texts[number] = _Hypothesis(number, weight, likeliest, path, text.fused, text.bonus, text.memory, text.state_P)
        return
    merged.weight = float(np.logaddexp(merged.weight, weight))
    if likeliest > merged.likeliest:
        merged.likeliest, merged.path = likeliest, path
    if merged.state_P is None and text.state_P is not None:
        merged.memory, merged.state_P = text.memory, text.state_P
