"""From the encoder of a transducer to words with times and confidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxstill.decode.tokens import Token, hypothesis
from voxstill.records import Hypothesis

if TYPE_CHECKING:
    from voxstill.decode.fusion import Fusion

Memory = tuple[Tensor, Tensor]
Predict = Callable[[Tensor, Memory | None], tuple[Tensor, Memory]]
"""Tokens (B, U) after what was said before to states (B, U, P), and what was said until then."""
Joint = Callable[[Tensor, Tensor], Tensor]
"""Encoder frames (B, F, 1, E) and predictor states (B, 1, U, P) to logits (B, F, U, V)."""
MAX_SYMBOLS = 10
"""Tokens that one frame may have before the next frame is taken."""


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
) -> list[Hypothesis]:
    """One hypothesis for each id: in each frame the likeliest token until that is the blank (Graves 2012, 2.5).

    The blank is the last of the tokens, and stands before the first token. A token lasts one frame, that in
    which it is said. Frames beyond `frames_B` are never read. With `durations` the last logits of the joint say which
    of them is to pass before the next token, and a token lasts that, at least a frame (Xu et al. 2023, "Efficient
    sequence transduction by jointly predicting tokens and durations").
    """
    num, device = len(encoded_BFE), encoded_BFE.device
    tokens: list[list[Token]] = [[] for _ in range(num)]
    at_B, said_B = torch.zeros(num, dtype=torch.long, device=device), torch.zeros(num, dtype=torch.long, device=device)
    row_B, last = torch.arange(num, device=device), max(encoded_BFE.shape[1] - 1, 0)
    predicted_B1P, memory = predict(torch.full((num, 1), blank_id, device=device), None)
    while bool((active_B := at_B < frames_B).any()):
        encoded_B1E = encoded_BFE[row_B, at_B.clamp(max=last)][:, None]
        logits_BV = joint(encoded_B1E[:, :, None], predicted_B1P[:, None])[:, 0, 0].float()
        logprob_B, best_B = logits_BV[:, : blank_id + 1].log_softmax(-1).max(-1)
        speaks_B = active_B & (best_B != blank_id)
        said_B = torch.where(speaks_B, said_B + 1, 0)
        if durations:
            onward_B = torch.tensor(durations, device=device)[logits_BV[:, blank_id + 1 :].argmax(-1)]
            onward_B = torch.where(~speaks_B | (said_B >= MAX_SYMBOLS), onward_B.clamp(min=1), onward_B)
        else:
            onward_B = (~speaks_B | (said_B >= MAX_SYMBOLS)).long()
        columns = (each.tolist() for each in (speaks_B, best_B, logprob_B, at_B, frames_B, onward_B))
        for b, (speaks, best, logprob, at, num_frames, onward) in enumerate(zip(*columns, strict=True)):
            if speaks:
                end = min(at + max(onward, 1), num_frames)
                tokens[b].append(Token(best, at, end, np.array([logprob], np.float32)))
        at_B, said_B = at_B + onward_B, torch.where(onward_B > 0, 0, said_B)
        after_B1P, after = predict(best_B[:, None], memory)
        predicted_B1P = torch.where(speaks_B[:, None, None], after_B1P, predicted_B1P)
        hidden, cell = (torch.where(speaks_B[:, None], *each) for each in zip(after, memory, strict=True))
        memory = hidden, cell
    return [hypothesis(id_, each, pieces, frame_ms) for id_, each in zip(ids, tokens, strict=True)]


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
) -> list[Hypothesis]:
    """One hypothesis for each id: the likeliest text, all of its ways together, of those that a beam keeps.

    The steps are those of `greedy`; the `width` likeliest texts that have come to the same frame go on from there, and
    within it those that have said as many tokens (Saon et al. 2020, "Alignment-length synchronous decoding for RNN
    transducer", calls it time-synchronous). `fusion` adds what a language model and phrases say. Times and confidences
    are those of the likeliest way.
    """
    found = []
    for id_, encoded_FE, frames in zip(ids, encoded_BFE, frames_B.tolist(), strict=True):
        search = _Search(width, fusion, predict, joint, blank_id, durations)
        found.append(hypothesis(id_, search.best(encoded_FE[:frames]).tokens, pieces, frame_ms))
    return found


@dataclass(slots=True)
class _Text:
    """What may have been said: its weight and that of its likeliest way, whose tokens these are, what the fusion
    remembers of it, and the predictor's state after it, which is asked for when it is needed."""

    weight: float
    likeliest: float
    tokens: tuple[Token, ...]
    remembered: NDArray[np.void]
    memory: Memory | None
    state_P: Tensor | None = None

    @property
    def score(self) -> float:
        return self.weight + float(self.remembered["bonus"])


_Texts = dict[tuple[int, ...], _Text]


class _Search:
    """The search of one utterance."""

    def __init__(
        self, width: int, fusion: Fusion, predict: Predict, joint: Joint, blank_id: int, durations: Sequence[int]
    ) -> None:
        from voxstill.decode import fusion as fused  # compiled code: greedy decoding does without

        self.width, self.fusion, self.fused = width, fusion, fused
        self.predict, self.joint, self.blank_id, self.durations = predict, joint, blank_id, durations

    def best(self, encoded_FE: Tensor) -> _Text:
        """The likeliest text when all frames have passed."""
        nothing_1 = np.zeros(1, np.dtype(list(self.fused.REMEMBERED), align=True))
        self.fused.begin(self.fusion, nothing_1, 0)
        come: list[_Texts] = [{} for _ in range(len(encoded_FE) + 1)]  # the texts that have come to each frame
        come[0][()] = _Text(0.0, 0.0, (), nothing_1[0], None)
        for frame, encoded_E in enumerate(encoded_FE):
            going = self._widest(come[frame])
            come[frame] = {}
            for num_said in range(1, MAX_SYMBOLS + 1):
                if going:
                    going = self._on(going, encoded_E, frame, come, last=num_said == MAX_SYMBOLS)
        texts = list(come[-1].values())
        ends = [self.fused.ended(self.fusion, np.array([text.remembered]), 0) for text in texts]
        return max(zip(texts, ends, strict=True), key=lambda pair: pair[0].score + pair[1])[0]

    def _widest(self, texts: _Texts) -> list[_Text]:
        return sorted(texts.values(), key=lambda text: text.score, reverse=True)[: self.width]

    def _on(self, texts: list[_Text], encoded_E: Tensor, frame: int, come: list[_Texts], *, last: bool) -> list[_Text]:
        """Each text goes on by a blank, or by a token; those that stay in the frame are given back."""
        states_NP = self._states(texts, encoded_E.device)
        encoded_N11E = encoded_E.expand(len(texts), 1, 1, -1)
        logits_NV = self.joint(encoded_N11E, states_NP[:, None, None])[:, 0, 0].float()
        logprob_NV = logits_NV[:, : self.blank_id + 1].log_softmax(-1).double().cpu().numpy()
        passing_ND = logits_NV[:, self.blank_id + 1 :].log_softmax(-1).double().cpu().numpy()
        blank_D = token_D = tuple(self.durations)
        if not self.durations:
            blank_D, token_D, passing_ND = (1,), (0,), np.zeros((len(texts), 1))
        for n, text in enumerate(texts):
            for duration, passing in zip(blank_D, passing_ND[n], strict=True):
                to = min(frame + max(duration, 1), len(come) - 1)
                gone = logprob_NV[n, self.blank_id] + passing
                _add(come[to], text, text.weight + gone, text.likeliest + gone, text.tokens)
        most = min(self.width, self.blank_id)
        likely_NC = np.argsort(-logprob_NV[:, : self.blank_id], axis=1, kind="stable")[:, :most]
        remembered_N = np.array([text.remembered for text in texts])
        gain_NC = self.fused.gains(self.fusion, remembered_N, likely_NC)
        score_NC = np.take_along_axis(logprob_NV, likely_NC, 1) + gain_NC
        score_NC += np.array([text.score for text in texts])[:, None]
        n_M, c_M = np.unravel_index(np.argsort(-score_NC, axis=None, kind="stable")[: self.width], score_NC.shape)
        token_M = likely_NC[n_M, c_M]
        remembered_M = self.fused.said(self.fusion, remembered_N, n_M, token_M)
        staying: _Texts = {}
        for n, token, remembered in zip(n_M.tolist(), token_M.tolist(), remembered_M, strict=True):
            text, logprob = texts[n], logprob_NV[n, token]
            longer = _Text(text.weight, text.likeliest, (), remembered, text.memory)
            for duration, passing in zip(token_D, passing_ND[n], strict=True):
                to = frame + (max(duration, 1) if last else duration)
                end = min(frame + max(duration, 1), len(come) - 1)
                said = Token(token, frame, end, np.array([logprob], np.float32))
                gone = logprob + passing
                into = staying if to == frame else come[min(to, len(come) - 1)]
                _add(into, longer, text.weight + gone, text.likeliest + gone, (*text.tokens, said))
        return self._widest(staying)

    def _states(self, texts: list[_Text], device: torch.device) -> Tensor:
        """The predictor's states (N, P); those that are not known yet are asked for all at once."""
        new = [text for text in texts if text.state_P is None]
        if new:
            newest = [text.tokens[-1].id if text.tokens else self.blank_id for text in new]
            known = [text.memory for text in new if text.memory is not None]
            before = tuple(torch.cat(each, 1) for each in zip(*known, strict=True)) if known else None
            state_N1P, after = self.predict(torch.tensor(newest, device=device)[:, None], before)  # type: ignore[arg-type]
            for n, text in enumerate(new):
                text.state_P = state_N1P[n, 0]
                text.memory = after[0][:, n : n + 1], after[1][:, n : n + 1]
        return torch.stack([text.state_P for text in texts if text.state_P is not None])


def _add(texts: _Texts, text: _Text, weight: float, likeliest: float, tokens: tuple[Token, ...]) -> None:
    """The text comes by one more way."""
    there = texts.get(ids := tuple(token.id for token in tokens))
    if there is None:
        texts[ids] = _Text(weight, likeliest, tokens, text.remembered, text.memory, text.state_P)
        return
    there.weight = float(np.logaddexp(there.weight, weight))
    if likeliest > there.likeliest:
        there.likeliest, there.tokens = likeliest, tokens
