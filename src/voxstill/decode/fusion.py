"""What a language model and phrases to listen for add to a text while it is said, piece by piece.

Words are known by a hash of their letters, so pieces may be whole words, parts of words or characters. A word is
weighed when the next one begins; where every piece is a whole word, at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.text.boost import OTHER, phrases
from voxstill.text.lm import END, START, UNKNOWN, Automaton, Graph, LanguageModel, compiled, find, step
from voxstill.text.tokenizer import START as WORD_START

_BASE, _ROUND = 0x9E3779B97F4A7C15, 1 << 64  # odd, so that no letter is lost


class Fusion(NamedTuple):
    """Arrays for `begin`, `gain`, `say` and `ended`. `plain` is where nothing is ever added.

    V pieces have H hashes: 200,000 words share one with odds of 1 in 10^9. `piece_word_V` is the word that a piece is,
    where all pieces are whole words. The characters of piece v are those from `first_V[v]` to `first_V[v + 1]`.
    """

    plain: bool
    whole: bool
    starts_V: NDArray[np.bool_]
    hash_V: NDArray[np.uint64]
    power_V: NDArray[np.uint64]
    piece_word_V: NDArray[np.int64]
    words: Automaton
    hash_H: NDArray[np.uint64]
    word_H: NDArray[np.int64]
    begin: int
    end_id: int
    unknown_id: int
    lm_weight: float
    word_bonus: float
    characters: Automaton
    first_V: NDArray[np.int64]
    character_C: NDArray[np.int64]
    boost_begin: int
    boost_end: int


REMEMBERED = (
    ("word", np.uint64),
    ("state", np.int64),
    ("heard", np.int64),
    ("paid", np.float64),
    ("after", np.int64),
    ("bonus", np.float64),
)
"""What is remembered of a text, as fields of an array: the word that is being said as a hash, 0 for none, the states of
model and phrases, what the word adds if it ends here and the state after it, and all that was added until now."""


def fusion(
    pieces: Sequence[str],
    lm: LanguageModel | None = None,
    lm_weight: float = 0.0,
    word_bonus: float = 0.0,
    boost: Sequence[str] = (),
    boost_weight: float = 0.0,
) -> Fusion:
    """For these pieces: log-probability of the model times `lm_weight`, `word_bonus` a word, `boost_weight` for each
    word of a phrase in `boost`. All in natural logarithms, beside those of the recogniser."""
    if lm is None:
        nothing = Graph()
        nothing.add([0], 0.0, 0.0)
        lm, lm_weight = LanguageModel(1, dict.fromkeys((UNKNOWN, START, END), 0), nothing.automaton(), 0), 0.0
    listened = phrases(boost, boost_weight)
    spelt = [piece.removeprefix(WORD_START) for piece in pieces]
    numbers = [[listened.ids.get(each, OTHER) for each in piece] if boost else [] for piece in pieces]
    hashed = sorted((_hash(word), id_) for word, id_ in lm.ids.items())
    return Fusion(
        plain=not (lm_weight or word_bonus or boost),
        whole=all(piece.startswith(WORD_START) for piece in pieces if piece not in ("", UNKNOWN)),
        starts_V=np.array([piece.startswith(WORD_START) for piece in pieces]),
        hash_V=np.array([_hash(each) for each in spelt], np.uint64),
        power_V=np.array([pow(_BASE, len(each.encode()), _ROUND) for each in spelt], np.uint64),
        piece_word_V=np.array([lm.id(each) for each in spelt]),
        words=lm.automaton,
        hash_H=np.array([each for each, _ in hashed], np.uint64),
        word_H=np.array([id_ for _, id_ in hashed]),
        begin=lm.start,
        end_id=lm.ids[END],
        unknown_id=lm.ids[UNKNOWN],
        lm_weight=float(lm_weight),
        word_bonus=float(word_bonus),
        characters=listened.automaton,
        first_V=np.cumsum([0, *map(len, numbers)]),
        character_C=np.array([each for piece in numbers for each in piece], np.int64),
        boost_begin=listened.start,
        boost_end=listened.ids.get(WORD_START, OTHER),
    )


def _hash(text: str) -> int:
    value = 0
    for byte in text.encode():
        value = (value * _BASE + byte + 1) % _ROUND
    return value


@compiled
def begin(fusion: Fusion, texts_N: NDArray[np.void], n: int) -> None:
    """Nothing is said yet."""
    texts_N[n].word, texts_N[n].bonus, texts_N[n].paid = 0, 0.0, 0.0
    texts_N[n].state = texts_N[n].after = fusion.begin
    texts_N[n].heard = fusion.boost_begin


@compiled
def gain(fusion: Fusion, texts_N: NDArray[np.void], n: int, piece: int) -> float:
    """What the piece would add."""
    return _extended(fusion, texts_N, n, piece)[0]


@compiled
def say(fusion: Fusion, texts_N: NDArray[np.void], n: int, piece: int) -> None:
    """The text goes on with the piece."""
    added, word, state, heard = _extended(fusion, texts_N, n, piece)
    texts_N[n].bonus += added
    texts_N[n].word, texts_N[n].state, texts_N[n].heard = word, state, heard
    texts_N[n].paid, texts_N[n].after = 0.0, state
    if word != 0:
        texts_N[n].paid = fusion.word_bonus
        if fusion.lm_weight != 0:
            at = find(fusion.hash_H, 0, len(fusion.hash_H), word)
            known = at < len(fusion.hash_H) and fusion.hash_H[at] == word
            weight, texts_N[n].after = step(fusion.words, state, fusion.word_H[at] if known else fusion.unknown_id)
            texts_N[n].paid += fusion.lm_weight * weight


@compiled
def ended(fusion: Fusion, texts_N: NDArray[np.void], n: int) -> float:
    """What is added where the text ends: its last word, the end of the sentence, and what phrases hoped for in vain."""
    added: float = texts_N[n].paid
    if fusion.lm_weight != 0:
        added += fusion.lm_weight * step(fusion.words, texts_N[n].after, fusion.end_id)[0]
    weight, heard = step(fusion.characters, texts_N[n].heard, fusion.boost_end)
    added += weight
    while heard:
        added += fusion.characters.backoff_S[heard]
        heard = fusion.characters.shorter_S[heard]
    return added


@compiled
def _extended(fusion: Fusion, texts_N: NDArray[np.void], n: int, piece: int) -> tuple[float, np.uint64, int, int]:
    """What the piece adds, then word and states with it."""
    added, word, state, heard = 0.0, texts_N[n].word, texts_N[n].state, texts_N[n].heard
    if fusion.starts_V[piece]:
        added, word, state = texts_N[n].paid, np.uint64(0), texts_N[n].after
    word = word * fusion.power_V[piece] + fusion.hash_V[piece]
    if fusion.whole and word != 0:
        added += fusion.word_bonus
        if fusion.lm_weight != 0:
            weight, state = step(fusion.words, state, fusion.piece_word_V[piece])
            added += fusion.lm_weight * weight
        word = np.uint64(0)
    for at in range(fusion.first_V[piece], fusion.first_V[piece + 1]):
        weight, heard = step(fusion.characters, heard, fusion.character_C[at])
        added += weight
    return added, word, state, heard


@compiled
def gains(fusion: Fusion, texts_N: NDArray[np.void], pieces_NC: NDArray[np.int64]) -> NDArray[np.float64]:
    """What each of the pieces would add to its text."""
    gain_NC = np.zeros(pieces_NC.shape)
    for n in range(len(texts_N)):
        for c in range(pieces_NC.shape[1]):
            gain_NC[n, c] = gain(fusion, texts_N, n, pieces_NC[n, c])
    return gain_NC


@compiled
def said(
    fusion: Fusion, texts_N: NDArray[np.void], from_M: NDArray[np.int64], piece_M: NDArray[np.int64]
) -> NDArray[np.void]:
    """The texts `from_M`, each with its piece behind it."""
    texts_M = texts_N[from_M]
    for m in range(len(texts_M)):
        say(fusion, texts_M, m, piece_M[m])
    return texts_M
