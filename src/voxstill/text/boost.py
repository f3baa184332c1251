"""Phrase boosting (contextual biasing) as an automaton over characters: a text scores higher for each phrase in it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from voxstill.text.lm import Automaton, Graph
from voxstill.text.tokenizer import START

OTHER = 0
"""Id of every character that is in no phrase."""


class PhraseBoost(NamedTuple):
    """Ids of characters, the automaton over them, and its state at the beginning of a text."""

    ids: dict[str, int]
    automaton: Automaton
    start: int


def build_phrase_boost(texts: Iterable[str], weight: float) -> PhraseBoost:
    """Build the automaton of `texts`, which adds `weight` for each word of a phrase; only whole words count.

    The weight is added in parts with the characters of a phrase and taken back where the phrase is not completed (Aho
    and Corasick 1975, with weights as in k2's context graph).
    """
    spellings = sorted({tuple(START + START.join(text.split()) + START) for text in texts if text.split()})
    ids = {character: id_ for id_, character in enumerate(sorted({*chain.from_iterable(spellings)}), 1)}
    graph = Graph()
    for id_ in (OTHER, *ids.values()):
        graph.add([id_], 0.0, 0.0)
    partial_score: dict[int, float] = {0: 0.0}  # by state: of what can continue to a phrase
    full_score: dict[int, float] = {}
    before: dict[int, int] = {}  # the state with one character less
    # all phrases a character at a time, so that what a text backs off to is there before
    ends = [(chars, 0) for chars in spellings]
    for length in range(1, max(map(len, spellings), default=0) + 1):
        ends = [(chars, state) for chars, state in ends if len(chars) >= length]
        for number, (chars, state) in enumerate(ends):
            next_state = graph.after(state, ids[chars[length - 1]])
            before[next_state], ends[number] = state, (chars, next_state)
            full = weight * (chars.count(START) - 1)
            if length == len(chars):
                full_score[next_state] = full
            else:
                share = full * (length - 1) / (len(chars) - 1)
                partial_score[next_state] = max(partial_score.get(next_state, 0.0), share)
    # by state: what was added for the longest unfinished phrase, and the sum of the phrases that end there
    unfinished, completed = {0: 0.0}, {0: 0.0}
    for state in sorted(before):  # shorter ones first
        suffix = graph.shorter[state] if graph.shorter[state] in unfinished else 0
        unfinished[state] = partial_score.get(state, unfinished[suffix])
        completed[state] = full_score.get(state, 0.0) + completed[suffix]
        graph.weight[state] = unfinished[state] + completed[state] - partial_score[before[state]]
        graph.backoff[state] = unfinished[suffix] - unfinished[state]
    automaton = graph.automaton()
    return PhraseBoost(ids, automaton, graph.nodes[0, ids[START]] if ids else 0)
