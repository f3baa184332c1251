"""Viterbi search of CTC outputs along a grammar: the most likely of its sentences, token by token.

The words of the grammar's graph become token sequences, which share their first tokens in a trie at each node. A blank
is possible at every node, and a token is heard for one frame or more, as CTC has it (Graves et al. 2006, 3.1): between
two equal tokens stands a blank. The search is exact, without a beam.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.text.grammar import Graph
from voxstill.text.lm import compiled

NEVER = -np.inf
_STAY, _BLANK, _FIRST, _SECOND = 0, 1, 2, 3
"""Where the best path to a token comes from: from itself, from the blank of its source node, from the best token that
ends there, or from the best other one."""


class TokenGraph(NamedTuple):
    """N nodes and A arcs with a token each, sorted by target: those to node n are `first_N[n]` to `first_N[n + 1]`.

    Paths begin in node 0 and end where `is_end_N` is true.
    """

    source_A: NDArray[np.int64]
    token_A: NDArray[np.int64]
    first_N: NDArray[np.int64]
    is_end_N: NDArray[np.bool_]


def token_graph(graph: Graph, spell: Callable[[str], Sequence[int]], delimiter_id: int | None = None) -> TokenGraph:
    """Compile a graph of words to one of tokens. `spell` returns the tokens of a word, none where it cannot be written.

    A model with a word delimiter writes it between two words, and may after the last.
    """
    arcs: list[tuple[int, int, int]] = []  # source, target, token
    end = num_nodes = graph.num_states
    num_nodes += 1  # `end` is where a sentence ends without a delimiter
    outgoing: defaultdict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    for source, target, word in graph.arcs:
        if tokens := tuple(spell(word)):
            if delimiter_id is None:
                outgoing[source].append((tokens, target))
                continue
            outgoing[source].append(((*tokens, delimiter_id), target))
            if target in graph.ends:
                outgoing[source].append((tokens, end))
    for source, words in outgoing.items():
        trie: dict[tuple[int, ...], int] = {(): source}
        for tokens, target in sorted(set(words)):
            for length, token in enumerate(tokens[:-1]):
                if tokens[: length + 1] not in trie:
                    trie[tokens[: length + 1]] = num_nodes
                    arcs.append((trie[tokens[:length]], num_nodes, token))
                    num_nodes += 1
            arcs.append((trie[tokens[:-1]], target, tokens[-1]))
    arcs.sort(key=lambda arc: arc[1])
    is_end_N = np.zeros(num_nodes, np.bool_)
    is_end_N[[end, *graph.ends]] = True
    columns = list(zip(*arcs, strict=True)) or [(), (), ()]
    return TokenGraph(
        source_A=np.array(columns[0], np.int64),
        token_A=np.array(columns[2], np.int64),
        first_N=np.searchsorted(np.array(columns[1], np.int64), np.arange(num_nodes + 1)),
        is_end_N=is_end_N,
    )


def has_sentence(graph: TokenGraph) -> bool:
    """Whether a path leads from node 0 to an end."""
    reached_N = np.zeros(len(graph.is_end_N), np.bool_)
    reached_N[0] = True
    target_A = np.repeat(np.arange(len(reached_N)), np.diff(graph.first_N))
    while (is_new_A := reached_N[graph.source_A] & ~reached_N[target_A]).any():
        reached_N[target_A[is_new_A]] = True
    return bool((reached_N & graph.is_end_N).any())


class TokenPath(NamedTuple):
    """The tokens (U,) of the most likely sentence, the first frame of each and the one after its last, and its
    score."""

    token_U: NDArray[np.int64]
    start_U: NDArray[np.int64]
    end_U: NDArray[np.int64]
    score: float


def search(logprob_FV: NDArray[np.float32], blank_id: int, graph: TokenGraph) -> TokenPath | None:
    """The most likely path through F frames; None if every sentence has more tokens than there are frames."""
    score, state_F = _viterbi(logprob_FV, blank_id, graph)
    if score == NEVER:
        return None
    # states: 0 is a blank; a + 1 a token that continues, -(a + 1) one that begins
    start_U = np.flatnonzero(state_F < 0)
    arc_U = -state_F[start_U] - 1
    bounds = [*start_U.tolist(), len(state_F)]
    end_U = [start + np.count_nonzero(state_F[start:stop]) for start, stop in pairwise(bounds)]
    return TokenPath(graph.token_A[arc_U], start_U, np.array(end_U, np.int64), float(score))


@compiled
def _viterbi(logprob_FV: NDArray[np.float32], blank_id: int, graph: TokenGraph) -> tuple[float, NDArray[np.int64]]:
    """The score of the best path and its state in each frame: 0, an arc + 1, or minus that where the arc begins."""
    num_frames, num_nodes, num_arcs = len(logprob_FV), len(graph.is_end_N), len(graph.source_A)
    source_A, token_A, first_N = graph.source_A, graph.token_A, graph.first_N
    token_score_A, blank_N = np.full(num_arcs, NEVER), np.full(num_nodes, NEVER)
    blank_N[0] = 0.0
    first_score_N, second_score_N, first_token_N = blank_N.copy(), blank_N.copy(), np.full(num_nodes, -1)
    back_FA = np.zeros((num_frames, num_arcs), np.int8)
    from_token_FN = np.zeros((num_frames, num_nodes), np.bool_)
    first_FN, second_FN = np.zeros((num_frames, num_nodes), np.int32), np.zeros((num_frames, num_nodes), np.int32)
    for f in range(num_frames):
        row_V = logprob_FV[f]
        for n in range(num_nodes):  # the best token that ends in each node, and the best that is another one
            best, other, best_arc, other_arc = NEVER, NEVER, -1, -1
            for a in range(first_N[n], first_N[n + 1]):
                score = token_score_A[a]
                if score > best:
                    if best_arc >= 0 and token_A[best_arc] != token_A[a]:
                        other, other_arc = best, best_arc
                    best, best_arc = score, a
                elif score > other and token_A[a] != token_A[best_arc]:
                    other, other_arc = score, a
            first_score_N[n], second_score_N[n] = best, other
            first_token_N[n] = token_A[best_arc] if best_arc >= 0 else -1
            first_FN[f, n], second_FN[f, n] = best_arc, other_arc
        for n in range(num_nodes):
            for a in range(first_N[n], first_N[n + 1]):
                source, token = source_A[a], token_A[a]
                is_other = first_token_N[source] == token
                left = second_score_N[source] if is_other else first_score_N[source]
                entry = max(left, blank_N[source])
                back = _BLANK if blank_N[source] >= left else (_SECOND if is_other else _FIRST)
                stay = token_score_A[a]
                back_FA[f, a] = _STAY if stay >= entry else back
                token_score_A[a] = max(stay, entry) + row_V[token]
        for n in range(num_nodes):
            from_token_FN[f, n] = first_score_N[n] > blank_N[n]
            blank_N[n] = max(blank_N[n], first_score_N[n]) + row_V[blank_id]
    top, node, arc = NEVER, 0, -1
    for n in range(num_nodes):
        if graph.is_end_N[n]:
            if blank_N[n] > top:
                top, node, arc = blank_N[n], n, -1
            for a in range(first_N[n], first_N[n + 1]):
                if token_score_A[a] > top:
                    top, arc = token_score_A[a], a
    state_F = np.zeros(num_frames, np.int64)
    if top == NEVER:
        return top, state_F
    for f in range(num_frames - 1, -1, -1):
        if arc < 0:
            if from_token_FN[f, node]:
                arc = first_FN[f, node]
            continue
        back = back_FA[f, arc]
        state_F[f] = arc + 1 if back == _STAY else -(arc + 1)
        if back != _STAY:
            node = source_A[arc]
            arc = -1 if back == _BLANK else (first_FN[f, node] if back == _FIRST else second_FN[f, node])
    return top, state_F
