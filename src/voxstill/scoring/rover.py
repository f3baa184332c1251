"""ROVER: combine the hypotheses of several recognisers by aligning them and voting on each word.

ROVER (Fiscus 1997, "A post-processing system to yield reduced word error rates: recognizer output voting error
reduction"). The weight of a vote is half constant and half the confidence of the recogniser; an unknown confidence
counts as 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from voxstill.text.normalize import basic, units

UNKNOWN = 0.5
_GAP, _SUBSTITUTION = 3, 4
"""Cost of an insertion or deletion, and of a substitution, in the alignment: those of NIST's program."""


@dataclass(frozen=True, slots=True)
class RecognizerOutput:
    """Hypothesis of one recogniser, and its confidence in [0, 1], None if unknown."""

    text: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class CombinedHypothesis:
    """The combined text. `agreement` is the mean share of recognisers that voted for the chosen word or for no word."""

    text: str
    agreement: float


Slot = list[str | None]
"""The word of each recogniser at one position, None for a deletion."""


def rover(hypotheses: Sequence[RecognizerOutput], normalize: Callable[[str], str] = basic) -> CombinedHypothesis:
    """Combine hypotheses by voting; ties go to the recogniser that comes first.

    Words are compared after the normalizer `normalize` and written as their first voter wrote them. The order of
    recognisers matters for ties and for the alignment: give the best first. ValueError for no hypotheses.
    """
    if not hypotheses:
        raise ValueError("there are no hypotheses")
    written = [[word for word in units(output.text) if normalize(word)] for output in hypotheses]
    weights = [0.5 + 0.5 * (UNKNOWN if output.confidence is None else output.confidence) for output in hypotheses]
    network = _network([[normalize(word) for word in words] for words in written])
    positions = [0] * len(hypotheses)
    winners: list[str] = []
    num_supporters = 0
    for slot in network:
        votes: dict[str | None, float] = {}
        for word, weight in zip(slot, weights, strict=True):
            votes[word] = votes.get(word, 0.0) + weight
        best = max(votes, key=lambda word: votes[word])  # the first of equals
        voters = [i for i, word in enumerate(slot) if word == best]
        num_supporters += len(voters)
        if best is not None:
            winners.append(written[voters[0]][positions[voters[0]]])
        for i, word in enumerate(slot):
            positions[i] += word is not None
    return CombinedHypothesis(_joined(winners), num_supporters / (len(network) * len(hypotheses)) if network else 1.0)


def _network(hypotheses: Sequence[Sequence[str]]) -> list[Slot]:
    """Build the word transition network: align each sequence with those before it."""
    network: list[Slot] = [[word] for word in hypotheses[0]]
    for num, words in enumerate(hypotheses[1:], start=1):
        network = _aligned(network, words, num)
    return network


def _aligned(network: Sequence[Slot], words: Sequence[str], num: int) -> list[Slot]:
    """Align one more sequence with a network of `num`; a word that is in the slot already costs nothing."""
    costs = [[_GAP * j for j in range(len(words) + 1)]]
    for slot in network:
        skip_cost = 0 if None in slot else _GAP
        above = costs[-1]
        row = [above[0] + skip_cost]
        for j, word in enumerate(words):
            match_cost = 0 if word in slot else _SUBSTITUTION
            row.append(min(above[j] + match_cost, above[j + 1] + skip_cost, row[j] + _GAP))
        costs.append(row)
    slots: list[Slot] = []
    i, j = len(network), len(words)
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (0 if words[j - 1] in network[i - 1] else _SUBSTITUTION):
            i, j = i - 1, j - 1
            slots.append([*network[i], words[j]])
        elif i and costs[i][j] == costs[i - 1][j] + (0 if None in network[i - 1] else _GAP):
            i -= 1
            slots.append([*network[i], None])
        else:
            j -= 1
            slots.append([*[None] * num, words[j]])
    return slots[::-1]


def _joined(words: Sequence[str]) -> str:
    """Join words to a text; no space between characters of scripts that are written without."""
    text = ""
    for word in words:
        text += word if not text or (_stands_alone(text[-1]) and _stands_alone(word)) else " " + word
    return text


def _stands_alone(word: str) -> bool:
    """Whether it is a character of a script written without spaces."""
    return units(word + word) == [word, word]
