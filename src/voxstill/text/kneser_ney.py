"""N-grams counted from sentences become a language model whose probabilities after any words add up to one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill.errors import DataError
from voxstill.text.lm import END, START, UNKNOWN

_FALLBACK = (0.5, 1.0, 1.5)
"""Discounts where the corpus is too small to say them; lmplz has the same."""
_START_ID = 1
_NEVER_LOG10 = -99.0  # nobody says the beginning of a sentence; SRILM writes it so


@dataclass(slots=True, kw_only=True)
class _Grams:
    """The different n-grams of one length, each known by its number; `prefix_N` and `suffix_N` are numbers of the
    n-grams one word shorter that it begins and ends with."""

    words_NO: NDArray[np.int64]
    count_N: NDArray[np.int64]
    prefix_N: NDArray[np.int64]
    suffix_N: NDArray[np.int64]


def arpa(sentences: Iterable[str], order: int) -> Iterator[str]:
    """The lines of an ARPA file: modified Kneser-Ney, interpolated; the same for the same sentences in any order.

    Chen and Goodman 1999, section 3, estimated as Heafield et al. 2013 do: each length of n-gram has discounts of its
    own, and single words are interpolated with all words alike, `<unk>` among them. DataError where there are no words.
    """
    marks = (UNKNOWN, START, END)
    texts = [[word for word in sentence.split() if word not in marks] for sentence in sentences]
    names = [*marks, *sorted({word for words in texts for word in words})]
    if len(names) == len(marks):
        raise DataError("there are no words to count", why="every text is empty", fix="give texts with words in them")
    ids = {name: id_ for id_, name in enumerate(names)}
    ids_T = np.array([ids[word] for words in texts if words for word in (START, *words, END)])
    orders = _counted(ids_T, len(names), order)
    probs, backoffs = _estimated(orders, len(names))
    yield "\\data\\"
    yield from (f"ngram {length}={len(grams.count_N)}" for length, grams in enumerate(orders, 1))
    for length, (grams, prob_N, backoff_N) in enumerate(zip(orders, probs, backoffs, strict=True), 1):
        yield f"\n\\{length}-grams:"
        for words, prob, backoff in zip(grams.words_NO.tolist(), prob_N.tolist(), backoff_N.tolist(), strict=True):
            weight = math.log10(prob) if prob else _NEVER_LOG10
            paid = f"\t{math.log10(backoff):.7g}" if length < len(orders) else ""
            yield f"{weight:.7g}\t{' '.join(names[word] for word in words)}{paid}"
    yield "\n\\end\\"


def _counted(ids_T: NDArray[np.int64], num_words: int, order: int) -> list[_Grams]:
    """The n-grams of every length that occurs, with adjusted counts: what lies within a longer one counts as often as
    different words come before it, the longest ones and those at the beginning of a sentence as often as they occur."""
    starts = np.flatnonzero(ids_T == _START_ID)
    ends_T = np.repeat(np.append(starts[1:], len(ids_T)), np.diff(starts, append=len(ids_T)))
    place_T = np.arange(len(ids_T))
    number_T = ids_T
    orders = [
        _Grams(
            words_NO=np.arange(num_words)[:, None],
            count_N=np.bincount(ids_T, minlength=num_words),
            prefix_N=np.zeros(num_words, np.int64),
            suffix_N=np.zeros(num_words, np.int64),
        )
    ]
    for length in range(2, order + 1):
        place_T = place_T[place_T + length <= ends_T[place_T]]
        if not len(place_T):
            break
        key_T = number_T[place_T] * num_words + ids_T[place_T + length - 1]
        _, first_N, gram_T, count_N = np.unique(key_T, return_index=True, return_inverse=True, return_counts=True)
        at_N = place_T[first_N]
        grams = _Grams(
            words_NO=ids_T[at_N[:, None] + np.arange(length)],
            count_N=count_N,
            prefix_N=number_T[at_N],
            suffix_N=number_T[at_N + 1],
        )
        shorter = orders[-1]
        before_N = np.bincount(grams.suffix_N, minlength=len(shorter.count_N))
        shorter.count_N = np.where(shorter.words_NO[:, 0] == _START_ID, shorter.count_N, before_N)
        number_T = np.full(len(ids_T), -1)
        number_T[place_T] = gram_T
        orders.append(grams)
    orders[0].count_N[_START_ID] = 0
    return orders


def _estimated(orders: list[_Grams], num_words: int) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    """The probability of each n-gram, and what is left to shorter ones after it: 1 where nothing was seen after it."""
    lower_N = np.full(num_words, 1 / (num_words - 1))  # the beginning of a sentence is never said
    probs: list[NDArray[np.float64]] = []
    backoffs = [np.ones(len(grams.count_N)) for grams in orders]
    for grams, after_P in zip(orders, [np.ones(1), *backoffs], strict=False):
        discount_N = np.array([0.0, *_discounts(grams.count_N)])[np.minimum(grams.count_N, 3)]
        total_P, left_P = (np.bincount(grams.prefix_N, each, len(after_P)) for each in (grams.count_N, discount_N))
        np.divide(left_P, total_P, out=after_P, where=total_P > 0)
        seen_N = (grams.count_N - discount_N) / total_P[grams.prefix_N]
        lower_N = seen_N + after_P[grams.prefix_N] * lower_N[grams.suffix_N]
        if not probs:
            lower_N[_START_ID] = 0
        probs.append(lower_N)
    return probs, backoffs


def _discounts(count_N: NDArray[np.int64]) -> tuple[float, float, float]:
    """What is taken from n-grams that were counted once, twice, and more often (Chen and Goodman 1999, equation 26)."""
    ones, twos, threes, fours = (float((count_N == times).sum()) for times in (1, 2, 3, 4))
    if not (ones and twos and threes):
        return _FALLBACK
    share = ones / (ones + 2 * twos)
    found = (1 - 2 * share * twos / ones, 2 - 3 * share * threes / twos, 3 - 4 * share * fours / threes)
    return found if all(0 < each <= times for times, each in enumerate(found, 1)) else _FALLBACK
