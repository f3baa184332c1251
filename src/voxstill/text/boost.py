"""Phrase boosting (contextual biasing) as an automaton over characters: a text scores higher for each phrase in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    alphabet = sorted({character for chars in spellings for character in chars})
    ids = {character: id_ for id_, character in enumerate(alphabet, 1)}
    partial_score: dict[tuple[str, ...], float] = {(): 0.0}
    full_score: dict[tuple[str, ...], float] = {}
    for chars in spellings:
        full_score[chars] = weight * (chars.count(START) - 1)
        for length in range(1, len(chars)):
            share = full_score[chars] * (length - 1) / (len(chars) - 1)
            partial_score[chars[:length]] = max(partial_score.get(chars[:length], 0.0), share)

    def longest_suffix(chars: Sequence[str]) -> tuple[str, ...]:
        """The longest proper suffix that is a prefix of a phrase."""
        suffixes = (tuple(chars[start:]) for start in range(1, len(chars) + 1))
        return next(suffix for suffix in suffixes if suffix in partial_score or suffix in full_score)

    def prefix_score(chars: tuple[str, ...]) -> float:
        """What has been added for the longest unfinished phrase."""
        return partial_score[chars] if chars in partial_score else prefix_score(longest_suffix(chars))

    def completed_score(chars: tuple[str, ...]) -> float:
        """Sum of the scores of the phrases that end here."""
        return full_score.get(chars, 0.0) + (completed_score(longest_suffix(chars)) if chars else 0.0)

    graph = Graph()
    for id_ in (OTHER, *ids.values()):
        graph.add([id_], 0.0, 0.0)
    for chars in sorted({*partial_score, *full_score} - {()}, key=len):
        weight_of_arc = prefix_score(chars) + completed_score(chars) - partial_score[chars[:-1]]
        backoff = prefix_score(longest_suffix(chars)) - prefix_score(chars)
        graph.add([ids[character] for character in chars], weight_of_arc, backoff)
    automaton = graph.automaton()
    return PhraseBoost(ids, automaton, graph.nodes[0, ids[START]] if ids else 0)
