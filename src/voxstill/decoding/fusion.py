"""Shallow fusion: what an n-gram language model and boosted phrases add to the score of a text, piece by piece.

Words are identified by a hash of their letters, so pieces may be whole words, parts of words or characters. A word is
scored when the next one begins; where every piece is a whole word, at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.text.boost import OTHER, build_phrase_boost
from voxstill.text.lm import END, START, UNKNOWN, Automaton, Graph, LanguageModel, compiled, inlined, lower_bound, step
from voxstill.text.tokenizer import START as WORD_START

_BASE, _ROUND = 0x9E3779B97F4A7C15, 1 << 64  # odd, so that no letter is lost


class Fusion(NamedTuple):
    """Arrays for `start`, `add_piece_scores`, `append` and `end_score`. `plain` is true where nothing is ever added.

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
    lm_start: int
    end_id: int
    unknown_id: int
    lm_weight: float
    word_bonus: float
    characters: Automaton
    first_V: NDArray[np.int64]
    character_C: NDArray[np.int64]
    boost_start: int
    boost_end: int


TEXT_FIELDS = (
    ("word", np.uint64),
    ("lm_state", np.int64),
    ("boost_state", np.int64),
    ("word_score", np.float64),
    ("next_lm_state", np.int64),
    ("bonus", np.float64),
)
"""The state of a text, as fields of an array: its unfinished word as a hash, 0 for none, the states of language model
and phrases, the score of the word if it ends here and the model's state after it, and all that was added until now."""


def fusion(
    pieces: Sequence[str],
    lm: LanguageModel | None = None,
    lm_weight: float = 0.0,
    word_bonus: float = 0.0,
    boost: Sequence[str] = (),
    boost_weight: float = 0.0,
) -> Fusion:
    """Build the fusion for a vocabulary of pieces: log-probability of the model times `lm_weight`, `word_bonus` a word,
    `boost_weight` for each word of a phrase in `boost`; all natural logarithms, added to those of the recogniser."""
    if lm is None:
        empty = Graph()
        empty.add([0], 0.0, 0.0)
        lm, lm_weight = LanguageModel(1, dict.fromkeys((UNKNOWN, START, END), 0), empty.automaton(), 0), 0.0
    texts = [piece.removeprefix(WORD_START) for piece in pieces]
    no_phrases = build_phrase_boost((), 0.0)
    hashes = sorted((_hash(word), id_) for word, id_ in lm.ids.items())
    fused = Fusion(
        plain=not (lm_weight or word_bonus),
        whole=all(piece.startswith(WORD_START) for piece in pieces if piece not in ("", UNKNOWN)),
        starts_V=np.array([piece.startswith(WORD_START) for piece in pieces]),
        hash_V=np.array([_hash(text) for text in texts], np.uint64),
        power_V=np.array([pow(_BASE, len(text.encode()), _ROUND) for text in texts], np.uint64),
        piece_word_V=np.array([lm.id(text) for text in texts]),
        words=lm.automaton,
        hash_H=np.array([value for value, _ in hashes], np.uint64),
        word_H=np.array([id_ for _, id_ in hashes]),
        lm_start=lm.start,
        end_id=lm.ids[END],
        unknown_id=lm.ids[UNKNOWN],
        lm_weight=float(lm_weight),
        word_bonus=float(word_bonus),
        characters=no_phrases.automaton,
        first_V=np.zeros(len(pieces) + 1, np.int64),
        character_C=np.zeros(0, np.int64),
        boost_start=no_phrases.start,
        boost_end=OTHER,
    )
    return with_phrases(fused, pieces, boost, boost_weight) if boost else fused


def with_phrases(fusion: Fusion, pieces: Sequence[str], phrases: Sequence[str], weight: float) -> Fusion:
    """The same language model with these phrases in place of its own, `weight` for each of their words."""
    boosted = build_phrase_boost(phrases, weight)
    numbers = [[boosted.ids.get(character, OTHER) for character in piece] for piece in pieces]
    return fusion._replace(
        plain=False,
        characters=boosted.automaton,
        first_V=np.cumsum([0, *map(len, numbers)]),
        character_C=np.array([character for piece in numbers for character in piece], np.int64),
        boost_start=boosted.start,
        boost_end=boosted.ids.get(WORD_START, OTHER),
    )


def with_weights(fusion: Fusion, lm_weight: float, word_bonus: float) -> Fusion:
    """The same model and phrases, with other weights."""
    plain = not (lm_weight or word_bonus or len(fusion.character_C))  # without phrases no character is looked up
    return fusion._replace(plain=plain, lm_weight=float(lm_weight), word_bonus=float(word_bonus))


def _hash(text: str) -> int:
    value = 0
    for byte in text.encode():
        value = (value * _BASE + byte + 1) % _ROUND
    return value


@compiled
def start(fusion: Fusion, texts_N: NDArray[np.void], n: int) -> None:
    """Initialise the state of an empty text."""
    texts_N[n].word, texts_N[n].bonus, texts_N[n].word_score = 0, 0.0, 0.0
    texts_N[n].lm_state = texts_N[n].next_lm_state = fusion.lm_start
    texts_N[n].boost_state = fusion.boost_start


@inlined
def _with_piece(fusion: Fusion, texts_N: NDArray[np.void], n: int, piece: int) -> tuple[float, np.uint64, int, int]:
    """Score that a piece adds, then the unfinished word and both states after it.

    Inlined: to pass a fusion costs fifteen times as much as to look a word up.
    """
    text = texts_N[n]
    added, word, lm_state, boost_state = 0.0, text.word, text.lm_state, text.boost_state
    if fusion.starts_V[piece]:
        added, word, lm_state = text.word_score, np.uint64(0), text.next_lm_state
    word = word * fusion.power_V[piece] + fusion.hash_V[piece]
    if fusion.whole and word != 0:
        added += fusion.word_bonus
        if fusion.lm_weight != 0:
            weight, lm_state = step(fusion.words, lm_state, fusion.piece_word_V[piece])
            added += fusion.lm_weight * weight
        word = np.uint64(0)
    for at in range(fusion.first_V[piece], fusion.first_V[piece + 1]):
        weight, boost_state = step(fusion.characters, boost_state, fusion.character_C[at])
        added += weight
    return added, word, lm_state, boost_state


@compiled
def add_piece_scores(
    fusion: Fusion, texts_N: NDArray[np.void], num: int, piece_C: NDArray[np.int64], score_NC: NDArray[np.float64]
) -> None:
    """Add to `score_NC` what each of the pieces would add to each of the first `num` texts."""
    for n in range(num):
        for c in range(len(piece_C)):
            score_NC[n, c] += _with_piece(fusion, texts_N, n, piece_C[c])[0]


@compiled
def append(fusion: Fusion, texts_N: NDArray[np.void], n: int, piece: int) -> None:
    """Append a piece to a text, in place."""
    added, word, lm_state, boost_state = _with_piece(fusion, texts_N, n, piece)
    texts_N[n].bonus += added
    texts_N[n].word, texts_N[n].lm_state, texts_N[n].boost_state = word, lm_state, boost_state
    texts_N[n].word_score, texts_N[n].next_lm_state = 0.0, lm_state
    if word != 0:
        texts_N[n].word_score = fusion.word_bonus
        if fusion.lm_weight != 0:
            at = lower_bound(fusion.hash_H, 0, len(fusion.hash_H), word)
            known = at < len(fusion.hash_H) and fusion.hash_H[at] == word
            weight, texts_N[n].next_lm_state = step(
                fusion.words, lm_state, fusion.word_H[at] if known else fusion.unknown_id
            )
            texts_N[n].word_score += fusion.lm_weight * weight


@compiled
def end_score(fusion: Fusion, texts_N: NDArray[np.void], n: int) -> float:
    """Score added at the end of a text: its last word and the end of sentence, less the bonus of unfinished phrases."""
    added: float = texts_N[n].word_score
    if fusion.lm_weight != 0:
        added += fusion.lm_weight * step(fusion.words, texts_N[n].next_lm_state, fusion.end_id)[0]
    weight, boost_state = step(fusion.characters, texts_N[n].boost_state, fusion.boost_end)
    added += weight
    while boost_state:
        added += fusion.characters.backoff_S[boost_state]
        boost_state = fusion.characters.shorter_S[boost_state]
    return added


@compiled
def piece_scores(fusion: Fusion, texts_N: NDArray[np.void], pieces_NC: NDArray[np.int64]) -> NDArray[np.float64]:
    """Score that each of the pieces would add to its text."""
    gain_NC = np.zeros(pieces_NC.shape)
    for n in range(len(texts_N)):
        for c in range(pieces_NC.shape[1]):
            gain_NC[n, c] = _with_piece(fusion, texts_N, n, pieces_NC[n, c])[0]
    return gain_NC


@compiled
def append_pieces(
    fusion: Fusion, texts_N: NDArray[np.void], source_M: NDArray[np.int64], piece_M: NDArray[np.int64]
) -> NDArray[np.void]:
    """The texts `source_M` of an array, each with a piece appended."""
    texts_M = texts_N[source_M]
    for m in range(len(texts_M)):
        append(fusion, texts_M, m, piece_M[m])
    return texts_M
