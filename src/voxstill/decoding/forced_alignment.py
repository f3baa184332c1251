"""Forced alignment of a long recording with its transcript: the most likely CTC path (Viterbi) through all lines.

Between the lines, and before and after them, stands a star: a state that takes audio without text at hardly any cost,
as CTC segmentation does before and after the text (Kürzinger et al. 2020). A line may be skipped at `SKIP_COST` a
token, so that one that was never spoken takes no audio from its neighbours.

The search is exact, without a band: frames go forward once, and of each block of them only is kept which state its
paths started from. Going back, each block is searched again between the two states that the best path has at its
borders. Memory is 4 bytes for each state and block of frames, and time grows with frames times tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.text.lm import compiled

NEVER = -np.inf
STAR_COST = 1e-4
"""Log-probability that a star loses in a frame that is not silent: so little that an hour costs less than a skipped
word, and enough for a word to keep all of its frames."""
SKIP_COST = 5.0
"""Log-probability a token that a line loses by being skipped; `filter.min_alignment` drops lines well before that."""
STRETCH = 25
"""Tokens of a stretch: the score of an utterance is that of its least likely stretch."""
BLOCK = 2048  # frames
SKIPPED = 3


@dataclass(frozen=True, slots=True)
class AlignedTokens:
    """The frames of U tokens, the lines one after another; tokens of a line that was skipped have -1."""

    start_U: NDArray[np.int64]
    end_U: NDArray[np.int64]
    """The frame after the last."""
    total_F: NDArray[np.float64]
    """Log-probability of the path before each frame and, last, of all; audio without text counts as blanks."""

    def score(self, first: int, last: int) -> float:
        """Log-probability per token from token `first` to before `last`, of the least likely stretch between them.

        Frames between two tokens belong to the first of them. No token in between may be of a skipped line.
        """
        total = self.total_F[np.append(self.start_U[first:last], self.end_U[last - 1])]
        length = min(STRETCH, last - first)
        return float(np.min(total[length:] - total[:-length]) / length)


def align(log_probs_FV: NDArray[np.float32], lines: Sequence[Sequence[int]], blank_id: int) -> AlignedTokens:
    """Align the tokens of all lines, each of which has at least one, with log-probabilities of F frames.

    ValueError if there are fewer frames than `min_frames`.
    """
    if len(log_probs_FV) < min_frames(lines):
        raise ValueError("fewer frames than tokens")
    num_V = log_probs_FV.shape[1]
    states = _states(lines, blank_id, num_V)
    origin_CS, last = _forward(log_probs_FV, states, BLOCK)
    path_F = _backward(log_probs_FV, states, origin_CS, last, BLOCK)
    emission_F = states.emission_S[path_F]
    emission_F[emission_F == num_V] = blank_id
    total_F = np.cumsum(log_probs_FV[np.arange(len(path_F)), emission_F], dtype=np.float64)
    frame_F = np.flatnonzero(path_F % 2)
    token_F = path_F[frame_F] // 2
    start_U, end_U = np.full((2, len(states.emission_S) // 2), -1, np.int64)
    start_U[token_F[::-1]] = frame_F[::-1]
    end_U[token_F] = frame_F + 1
    return AlignedTokens(start_U, end_U, np.concatenate([[0.0], total_F]))


def min_frames(lines: Sequence[Sequence[int]]) -> int:
    """Fewest frames that all lines fit into: one for each token, and one between two that are equal."""
    tokens = [token for ids in lines for token in ids]
    return len(tokens) + sum(one == other for one, other in pairwise(tokens))


class _States(NamedTuple):
    """S states, those of tokens between those of silence: star, token, blank, token, star, token, star."""

    emission_S: NDArray[np.int64]
    """The token; in a star, one more than the last token."""
    over_S: NDArray[np.float64]
    """What it costs to come from the state two before: nothing between tokens that differ, else too much."""
    star_L: NDArray[np.int64]
    """The stars before each of L lines, and that after the last."""
    cost_L: NDArray[np.float64]
    """What it costs to skip each line."""
    blank_id: int


def _states(lines: Sequence[Sequence[int]], blank_id: int, num_tokens: int) -> _States:
    tokens_U = np.array([token for ids in lines for token in ids], np.int64)
    length_L = np.array([len(ids) for ids in lines], np.int64)
    star_L = 2 * np.concatenate([[0], np.cumsum(length_L)])
    emission_S = np.full(2 * len(tokens_U) + 1, blank_id, np.int64)
    emission_S[1::2] = tokens_U
    emission_S[star_L] = num_tokens
    over_S = np.full(len(emission_S), NEVER)
    over_S[3::2][tokens_U[1:] != tokens_U[:-1]] = 0.0
    return _States(emission_S, over_S, star_L, (SKIP_COST * length_L).astype(np.float64), blank_id)


@compiled
def _emissions(row_V: NDArray[np.float32], blank_id: int, emission_V: NDArray[np.float64]) -> None:
    """Write what each token loses against the most likely of the frame, and behind the tokens what a star loses."""
    best = row_V[0]
    for v in range(1, len(row_V)):
        best = max(best, row_V[v])
    for v in range(len(row_V)):
        emission_V[v] = row_V[v] - best
    emission_V[len(row_V)] = max(emission_V[blank_id], -STAR_COST)


@compiled
def _step(
    best_S: NDArray[np.float64],
    next_S: NDArray[np.float64],
    back_S: NDArray[np.int8],
    states: _States,
    first: int,
    emission_V: NDArray[np.float64],
) -> None:
    """One frame of the search in the states from `first` on: the best score of each, and from where it came.

    `back_S` is how many states before, or `SKIPPED` in a star to which the star before it skipped its line.
    """
    num = len(best_S)
    emission_S, over_S = states.emission_S[first : first + num], states.over_S[first : first + num]
    next_S[0], back_S[0] = best_S[0] + emission_V[emission_S[0]], 0
    if num > 1:
        back_S[1] = best_S[1] < best_S[0]
        next_S[1] = max(best_S[0], best_S[1]) + emission_V[emission_S[1]]
    stay_S, from_one_S, from_two_S = best_S[2:], best_S[1:-1], best_S[:-2]
    cost_S, to_S, way_S, token_S = over_S[2:], next_S[2:], back_S[2:], emission_S[2:]
    for s in range(num - 2):  # without branches, for vector instructions
        over = from_two_S[s] + cost_S[s]
        top = max(stay_S[s], from_one_S[s])
        way = np.int8(from_one_S[s] > stay_S[s])
        way_S[s] = np.int8(2) if over > top else way
        to_S[s] = max(top, over) + emission_V[token_S[s]]
    for i in range(np.searchsorted(states.star_L, first), len(states.cost_L)):
        star, behind = states.star_L[i] - first, states.star_L[i + 1] - first
        if behind >= num:
            break
        skipped = next_S[star] - states.cost_L[i]
        if skipped > next_S[behind]:
            next_S[behind], back_S[behind] = skipped, SKIPPED


@compiled
def _forward(log_probs_FV: NDArray[np.float32], states: _States, block: int) -> tuple[NDArray[np.int32], int]:
    """In which state the best path to each one was before its block of frames, and the one in which the best ends."""
    num_frames, num_states = len(log_probs_FV), len(states.emission_S)
    origin_CS = np.zeros(((num_frames + block - 1) // block, num_states), np.int32)
    emission_V = np.zeros(log_probs_FV.shape[1] + 1)
    best_S, next_S, back_S = np.full(num_states, NEVER), np.zeros(num_states), np.zeros(num_states, np.int8)
    best_S[0] = 0.0
    origin_S, next_origin_S = np.zeros(num_states, np.int32), np.zeros(num_states, np.int32)
    for f in range(num_frames):
        if f % block == 0:
            for s in range(num_states):
                origin_S[s] = s
        _emissions(log_probs_FV[f], states.blank_id, emission_V)
        _step(best_S, next_S, back_S, states, 0, emission_V)
        next_origin_S[0], next_origin_S[1] = origin_S[0], origin_S[1 - back_S[1]]
        stay_S, from_one_S, from_two_S = origin_S[2:], origin_S[1:-1], origin_S[:-2]
        to_S, way_S = next_origin_S[2:], back_S[2:]
        for s in range(num_states - 2):
            way = way_S[s]
            to_S[s] = from_two_S[s] if way == 2 else from_one_S[s] if way == 1 else stay_S[s]
        for star, behind in zip(states.star_L[:-1], states.star_L[1:]):  # noqa: B905  # numba knows no `strict`
            if back_S[behind] == SKIPPED:
                next_origin_S[behind] = next_origin_S[star]
        best_S, next_S = next_S, best_S
        origin_S, next_origin_S = next_origin_S, origin_S
        if f % block == block - 1 or f == num_frames - 1:
            origin_CS[f // block] = origin_S
    last = num_states - 1
    return origin_CS, last if best_S[last] >= best_S[last - 1] else last - 1


@compiled
def _backward(
    log_probs_FV: NDArray[np.float32],
    states: _States,
    origin_CS: NDArray[np.int32],
    last: int,
    block: int,
) -> NDArray[np.int64]:
    """The state of the best path in each frame: the blocks are searched again, the last first."""
    path_F = np.zeros(len(log_probs_FV), np.int64)
    emission_V = np.zeros(log_probs_FV.shape[1] + 1)
    for c in range(len(origin_CS) - 1, -1, -1):
        begin, end = c * block, min((c + 1) * block, len(log_probs_FV))
        first = int(origin_CS[c, last])
        num = last - first + 1
        back_FS = np.zeros((end - begin, num), np.int8)
        best_S, next_S = np.full(num, NEVER), np.zeros(num)
        best_S[0] = 0.0
        for f in range(begin, end):
            _emissions(log_probs_FV[f], states.blank_id, emission_V)
            _step(best_S, next_S, back_FS[f - begin], states, first, emission_V)
            best_S, next_S = next_S, best_S
        s = last
        for f in range(end - 1, begin - 1, -1):
            while back_FS[f - begin, s - first] == SKIPPED:
                s = states.star_L[np.searchsorted(states.star_L, s) - 1]
            path_F[f] = s
            s -= back_FS[f - begin, s - first]
        last = first
    return path_F
