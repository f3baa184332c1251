"""Phrases to listen for, as an automaton over characters: a text is likelier with each of them that it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from voxstill.text.lm import Automaton, Graph
from voxstill.text.tokenizer import START

OTHER = 0
"""The id of every character that is in no phrase."""


class Phrases(NamedTuple):
    """`ids` of characters, the automaton over them, and its state where a text begins."""

    ids: dict[str, int]
    automaton: Automaton
    start: int


def phrases(texts: Iterable[str], weight: float) -> Phrases:
    """Each phrase adds `weight` for each of its words, little by little with its characters; what does not end takes it
    back (Aho and Corasick 1975, with weights as k2's context graph has them). Only whole words count."""
    spelt = sorted({tuple(START + START.join(text.split()) + START) for text in texts if text.split()})
    ids = {character: id_ for id_, character in enumerate(sorted({each for chars in spelt for each in chars}), 1)}
    hope: dict[tuple[str, ...], float] = {(): 0.0}
    worth: dict[tuple[str, ...], float] = {}
    for chars in spelt:
        worth[chars] = weight * (chars.count(START) - 1)
        for length in range(1, len(chars)):
            share = worth[chars] * (length - 1) / (len(chars) - 1)
            hope[chars[:length]] = max(hope.get(chars[:length], 0.0), share)

    def known_end(chars: Sequence[str]) -> tuple[str, ...]:
        """The longest end, shorter than all, that begins a phrase."""
        return next(end for start in range(1, len(chars) + 1) if (end := tuple(chars[start:])) in hope or end in worth)

    def hoped(chars: tuple[str, ...]) -> float:
        return hope[chars] if chars in hope else hoped(known_end(chars))

    def said(chars: tuple[str, ...]) -> float:
        """What the phrases are worth that end here."""
        return worth.get(chars, 0.0) + (said(known_end(chars)) if chars else 0.0)

    graph = Graph()
    for id_ in (OTHER, *ids.values()):
        graph.add([id_], 0.0, 0.0)
    for chars in sorted({*hope, *worth} - {()}, key=len):
        gain = hoped(chars) + said(chars) - hope[chars[:-1]]
        graph.add([ids[each] for each in chars], gain, hoped(known_end(chars)) - hoped(chars))
    automaton = graph.automaton()
    return Phrases(ids, automaton, graph.nodes[0, ids[START]] if ids else 0)
