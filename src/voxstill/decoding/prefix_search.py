"""CTC prefix beam search, compiled: the most likely texts, summed over alignments (Graves and Jaitly 2014).

A wider beam never finds a worse text. A beam of 16 places fills its first 8 just as a beam of 8 does and chooses the
rest itself; that one fills its first 4 as a beam of 4 does, and so on. So whatever a narrow beam keeps, a wide one
keeps, with no fewer of its alignments (after Lemons et al. 2022, "Beam search: faster and monotonic"). A text has
a weight for each of the beams that it is in; half of the places are in one only, so this doubles the work.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from voxstill.decoding.fusion import TEXT_FIELDS, Fusion, add_piece_scores, append, end_score, start
from voxstill.text.lm import compiled

NEVER = -math.inf
_TEXT = np.dtype(
    [("node", np.int64), ("last", np.int64), ("key", np.uint64), ("key_above", np.uint64), *TEXT_FIELDS], align=True
)
"""A text in the beam: its node in the tree of tokens, its last token, and hashes of it and of it without that token."""
_MIX = np.uint64(0xD1342543DE82EF95)
_NEGLIGIBLE = -40.0  # exp of it is less than a double can add to 1


@compiled
def log_add(one: float, other: float) -> float:
    """log(exp(one) + exp(other))."""
    high, low = (one, other) if one > other else (other, one)
    if low - high > _NEGLIGIBLE:
        return high + math.log1p(math.exp(low - high))
    return high


@compiled
def _likeliest(row_V: NDArray[np.float32], blank_id: int, chosen_C: NDArray[np.int64]) -> int:
    """Write the most likely tokens of a frame in order, as many as `chosen_C` has room for; returns their number."""
    num, most = 0, len(chosen_C)
    for v in range(len(row_V)):
        if v == blank_id or (num == most and row_V[v] <= row_V[chosen_C[num - 1]]):
            continue
        at = num if num < most else num - 1
        num = max(num, at + 1)
        while at > 0 and row_V[chosen_C[at - 1]] < row_V[v]:
            chosen_C[at] = chosen_C[at - 1]
            at -= 1
        chosen_C[at] = v
    return num


@compiled
def search(
    logprob_FV: NDArray[np.float32], blank_id: int, num_places: int, most_tokens: int, band: float, fusion: Fusion
) -> tuple[NDArray[np.int64], float]:
    """Search for the best text: its tokens, and its log-probability with what `fusion` adds.

    `num_places` is the width of the beam, a power of two. Without fusion, tokens that cannot reach a place are left
    out, and nothing is lost. Else the `most_tokens` most likely of a frame are searched, but for those less likely than
    the best by more than `band`. With twice as many places as texts and nothing left out, the search is exhaustive.
    """
    num_frames, num_tokens = logprob_FV.shape
    num_beams = 1
    while 1 << num_beams <= num_places:
        num_beams += 1
    # what is read of the frame before, and what is written: L beams, P places
    now_P, next_P = np.zeros(num_places, _TEXT), np.zeros(num_places, _TEXT)
    blank_LP, next_blank_LP = np.full((num_beams, num_places), NEVER), np.full((num_beams, num_places), NEVER)
    token_LP, next_token_LP = np.full((num_beams, num_places), NEVER), np.full((num_beams, num_places), NEVER)
    now_P[0].key, now_P[0].last = 1, -1
    blank_LP[:, 0] = 0.0
    start(fusion, now_P, 0)
    num = 1
    parent_N, token_N = np.zeros(num_frames * num_places + 1, np.int64), np.zeros(num_frames * num_places + 1, np.int64)
    num_nodes = 1
    # candidates: each text as it is, and each text with one of C tokens behind it
    most = min(num_places + 1 if fusion.plain else most_tokens, num_tokens)
    token_C = np.zeros(most, np.int64)
    gain_PC, score_PC = np.zeros((num_places, most)), np.zeros((num_places, most))
    best_P, best_score_P = np.zeros(num_places, np.int64), np.zeros(num_places)
    total_P, above_P, taken_P = np.zeros(num_places), np.zeros(num_places, np.int64), np.zeros(num_places, np.bool_)
    stay_blank_P, stay_token_P, stay_score_P = np.zeros(num_places), np.zeros(num_places), np.zeros(num_places)
    source_P, appended_P = np.zeros(num_places, np.int64), np.zeros(num_places, np.int64)
    is_in_beam_V = np.zeros(num_tokens, np.bool_)
    for f in range(num_frames):
        row_V = logprob_FV[f]
        num_chosen = _likeliest(row_V, blank_id, token_C)
        if not fusion.plain:
            lowest = max(row_V[blank_id], row_V[token_C[0]]) - band
            while row_V[token_C[num_chosen - 1]] < lowest and num_chosen > 1:
                num_chosen -= 1
        for p in range(num):
            above_P[p], taken_P[p] = -1, False
            for q in range(num):
                if now_P[p].key_above == now_P[q].key:
                    above_P[p] = q
        for p in range(num):
            for q in range(num):
                if above_P[q] == p:
                    is_in_beam_V[now_P[q].last] = True
            for c in range(num_chosen):
                # that text may be in the beam already
                gain_PC[p, c] = NEVER if is_in_beam_V[token_C[c]] else now_P[p].bonus
            for q in range(num):
                if above_P[q] == p:
                    is_in_beam_V[now_P[q].last] = False
        if not fusion.plain:
            add_piece_scores(fusion, now_P, num, token_C[:num_chosen], gain_PC)
        filled = 0
        for beam in range(num_beams):
            reach, seen = 1 << beam, min(num, 1 << beam)
            blank_P, token_P = blank_LP[beam], token_LP[beam]
            for p in range(seen):
                total_P[p] = log_add(blank_P[p], token_P[p])
                best_score_P[p] = NEVER
                for c in range(num_chosen):
                    token = token_C[c]
                    score = (blank_P[p] if token == now_P[p].last else total_P[p]) + row_V[token] + gain_PC[p, c]
                    score_PC[p, c] = score
                    if score > best_score_P[p]:
                        best_score_P[p], best_P[p] = score, c
            for p in range(num):
                last, above = now_P[p].last, above_P[p]
                stay_blank_P[p], stay_token_P[p] = NEVER, NEVER
                if p < seen:
                    stay_blank_P[p] = total_P[p] + row_V[blank_id]
                    if last >= 0:
                        stay_token_P[p] = token_P[p] + row_V[last]
                if 0 <= above < seen:
                    onward = blank_P[above] if now_P[above].last == last else total_P[above]
                    stay_token_P[p] = log_add(stay_token_P[p], onward + row_V[last])
                stay_score_P[p] = NEVER
                if not taken_P[p]:
                    stay_score_P[p] = log_add(stay_blank_P[p], stay_token_P[p]) + now_P[p].bonus
            for n in range(reach):
                if n >= filled:
                    top, stay, go = NEVER, -1, -1
                    for p in range(num):
                        if stay_score_P[p] > top:
                            top, stay = stay_score_P[p], p
                    for p in range(seen):
                        if best_score_P[p] > top:
                            top, go = best_score_P[p], p
                    if go >= 0:
                        c = best_P[go]
                        source_P[n], appended_P[n] = go, token_C[c]
                        gain_PC[go, c] = score_PC[go, c] = best_score_P[go] = NEVER
                        for c in range(num_chosen):
                            if score_PC[go, c] > best_score_P[go]:
                                best_score_P[go], best_P[go] = score_PC[go, c], c
                    elif stay >= 0:
                        source_P[n], appended_P[n] = stay, -1
                        taken_P[stay], stay_score_P[stay] = True, NEVER
                    elif seen == num:
                        break
                    else:
                        source_P[n] = -1  # empty, as it is in a beam that ends here
                    filled = n + 1
                p, token = source_P[n], appended_P[n]
                next_blank_LP[beam, n], next_token_LP[beam, n] = NEVER, NEVER
                if p >= 0 and token < 0:
                    next_blank_LP[beam, n], next_token_LP[beam, n] = stay_blank_P[p], stay_token_P[p]
                elif p >= 0:
                    onward = blank_P[p] if token == now_P[p].last else total_P[p]
                    next_token_LP[beam, n] = onward + row_V[token]
        for n in range(filled):
            text, p, token = next_P[n], source_P[n], appended_P[n]
            if p < 0:
                text.last, text.key, text.key_above = -1, 2, 3  # an empty place
                continue
            next_P[n] = now_P[p]
            if token >= 0:
                parent_N[num_nodes], token_N[num_nodes] = text.node, token
                text.node, text.last = num_nodes, token
                text.key_above = text.key
                text.key = (text.key + np.uint64(token) + np.uint64(1)) * _MIX
                num_nodes += 1
                if not fusion.plain:
                    append(fusion, next_P, n, token)
        num = filled
        now_P, next_P = next_P, now_P
        blank_LP, next_blank_LP = next_blank_LP, blank_LP
        token_LP, next_token_LP = next_token_LP, token_LP
    best, top = 0, NEVER
    for p in range(num):
        score = log_add(blank_LP[-1, p], token_LP[-1, p]) + now_P[p].bonus
        if not fusion.plain:
            score += end_score(fusion, now_P, p)
        if score > top:
            best, top = p, score
    node, length = now_P[best].node, 0
    while node:
        node, length = parent_N[node], length + 1
    tokens_U, node = np.zeros(length, np.int64), now_P[best].node
    for u in range(length - 1, -1, -1):
        tokens_U[u], node = token_N[node], parent_N[node]
    return tokens_U, top


@compiled
def viterbi_align(
    logprob_FV: NDArray[np.float32], tokens_U: NDArray[np.int64], blank_id: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Viterbi alignment of tokens by CTC: the first frame of each token and the one after its last."""
    num_frames, num_states = len(logprob_FV), 2 * len(tokens_U) + 1  # S states: blank, token, blank, token, ..., blank
    back_FS = np.zeros((num_frames, num_states), np.int8)
    best_S = np.full(num_states, NEVER)
    for f in range(num_frames):
        for s in range(num_states - 1, -1, -1):
            token = blank_id if s % 2 == 0 else tokens_U[s // 2]
            top, back = best_S[s] if f else (0.0 if s < 2 else NEVER), 0
            if f and s >= 1 and best_S[s - 1] > top:
                top, back = best_S[s - 1], 1
            if f and s >= 3 and s % 2 and token != tokens_U[s // 2 - 1] and best_S[s - 2] > top:
                top, back = best_S[s - 2], 2
            best_S[s], back_FS[f, s] = top + logprob_FV[f, token], back
    start_U, end_U = np.zeros(len(tokens_U), np.int64), np.zeros(len(tokens_U), np.int64)
    s = num_states - 1
    if s and best_S[s - 1] > best_S[s]:
        s -= 1
    for f in range(num_frames - 1, -1, -1):
        if s % 2:
            start_U[s // 2] = f
            if end_U[s // 2] == 0:
                end_U[s // 2] = f + 1
        s -= back_FS[f, s]
    return start_U, end_U
