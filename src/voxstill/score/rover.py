"""What several recognisers agree on: aligned word by word, each word put to the vote.

ROVER (Fiscus 1997, "A post-processing system to yield reduced word error rates: recognizer output voting error
reduction"). A vote counts half for being cast and half by the confidence of who casts it; a confidence that is not
known counts as 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from voxstill.text.normalize import basic, units

UNKNOWN = 0.5
_GAP, _SUBSTITUTION = 3, 4
"""What an insertion or deletion, and a substitution cost in the alignment: those of Fiscus' program."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What one recogniser said, and its confidence in [0, 1], None where it gave none."""

    text: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Agreed:
    """What most of them said. `agreement` is the mean share of recognisers behind a word, or behind saying nothing."""

    text: str
    agreement: float


Slot = list[str | None]
"""What each recogniser said in one place, None where it said nothing there."""


def rover(said: Sequence[Heard], alike: Callable[[str], str] = basic) -> Agreed:
    """The words with most of the votes; where votes are equal, the word of who comes first.

    Words are compared after `alike` and written as the first of their voters wrote them. What the order of recognisers
    is matters for ties and for the alignment: the best comes first. ValueError for nobody.
    """
    if not said:
        raise ValueError("nobody said anything")
    written = [[word for word in units(each.text) if alike(word)] for each in said]
    weights = [0.5 + 0.5 * (UNKNOWN if each.confidence is None else each.confidence) for each in said]
    network = _network([[alike(word) for word in some] for some in written])
    at = [0] * len(said)
    found: list[str] = []
    behind = 0
    for slot in network:
        votes: dict[str | None, float] = {}
        for word, weight in zip(slot, weights, strict=True):
            votes[word] = votes.get(word, 0.0) + weight
        best = max(votes, key=lambda word: votes[word])  # the first of equals
        voters = [i for i, word in enumerate(slot) if word == best]
        behind += len(voters)
        if best is not None:
            found.append(written[voters[0]][at[voters[0]]])
        for i, word in enumerate(slot):
            at[i] += word is not None
    return Agreed(_joined(found), behind / (len(network) * len(said)) if network else 1.0)


def _network(said: Sequence[Sequence[str]]) -> list[Slot]:
    """Each sequence aligned with those before it."""
    network: list[Slot] = [[word] for word in said[0]]
    for num, words in enumerate(said[1:], start=1):
        network = _aligned(network, words, num)
    return network


def _aligned(network: Sequence[Slot], words: Sequence[str], num: int) -> list[Slot]:
    """The network with one more sequence; `num` are in it. A word costs nothing where anybody said it before."""
    costs = [[_GAP * j for j in range(len(words) + 1)]]
    for slot in network:
        skips = 0 if None in slot else _GAP
        above = costs[-1]
        row = [above[0] + skips]
        for j, word in enumerate(words):
            same = 0 if word in slot else _SUBSTITUTION
            row.append(min(above[j] + same, above[j + 1] + skips, row[j] + _GAP))
        costs.append(row)
    found: list[Slot] = []
    i, j = len(network), len(words)
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (0 if words[j - 1] in network[i - 1] else _SUBSTITUTION):
            i, j = i - 1, j - 1
            found.append([*network[i], words[j]])
        elif i and costs[i][j] == costs[i - 1][j] + (0 if None in network[i - 1] else _GAP):
            i -= 1
            found.append([*network[i], None])
        else:
            j -= 1
            found.append([*[None] * num, words[j]])
    return found[::-1]


def _joined(words: Sequence[str]) -> str:
    """One text; no space between characters of scripts that have none."""
    text = ""
    for word in words:
        text += word if not text or (_stands_alone(text[-1]) and _stands_alone(word)) else " " + word
    return text


def _stands_alone(word: str) -> bool:
    """Whether it is a character that is a word by itself."""
    return units(word + word) == [word, word]
