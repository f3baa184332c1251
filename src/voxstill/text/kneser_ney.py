"""Estimate an n-gram language model from sentences: modified Kneser-Ney smoothing, written as ARPA lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill.core.errors import DataError
from voxstill.text.lm import END, START, UNKNOWN

_FALLBACK = (0.5, 1.0, 1.5)
"""Discounts where the corpus is too small to estimate them, as in lmplz."""
_START_ID = 1
_NEVER_LOG10 = -99.0  # `<s>` is never predicted; SRILM writes it so


@dataclass(slots=True, kw_only=True)
class _Grams:
    """The N different n-grams of one length, addressed by index.

    `prefix_N` and `suffix_N` are indices of the n-grams one word shorter that each begins and ends with.
    """

    words_NO: NDArray[np.int64]
    count_N: NDArray[np.int64]
    prefix_N: NDArray[np.int64]
    suffix_N: NDArray[np.int64]


def arpa(sentences: Iterable[str], order: int) -> Iterator[str]:
    """Yield the lines of an ARPA file: modified Kneser-Ney, interpolated; the order of sentences does not matter.

    Chen and Goodman 1999, section 3, estimated as Heafield et al. 2013 do: each length of n-gram has discounts of its
    own, and unigrams are interpolated with the uniform distribution, `<unk>` included. DataError for no words.
    """
    marks = (UNKNOWN, START, END)
    texts = [[word for word in sentence.split() if word not in marks] for sentence in sentences]
    names = [*marks, *sorted({word for words in texts for word in words})]
    if len(names) == len(marks):
        raise DataError(
            "there are no words to count",
            code="no-words",
            why="every text is empty",
            fix="give texts with words in them",
        )
    ids = {name: id_ for id_, name in enumerate(names)}
    ids_T = np.array([ids[word] for words in texts if words for word in (START, *words, END)])
    orders = _count_ngrams(ids_T, len(names), order)
    probs, backoffs = _estimate(orders, len(names))
    yield "\\data\\"
    yield from (f"ngram {length}={len(grams.count_N)}" for length, grams in enumerate(orders, 1))
    for length, (grams, prob_N, backoff_N) in enumerate(zip(orders, probs, backoffs, strict=True), 1):
        yield f"\n\\{length}-grams:"
        for words, prob, backoff in zip(grams.words_NO.tolist(), prob_N.tolist(), backoff_N.tolist(), strict=True):
            weight = math.log10(prob) if prob else _NEVER_LOG10
            backoff_column = f"\t{math.log10(backoff):.7g}" if length < len(orders) else ""
            yield f"{weight:.7g}\t{' '.join(names[word] for word in words)}{backoff_column}"
    yield "\n\\end\\"


def _count_ngrams(ids_T: NDArray[np.int64], num_words: int, order: int) -> list[_Grams]:
    """The n-grams of every length that occurs, with adjusted counts.

    The longest n-grams and those that start a sentence count as often as they occur, others as often as different words
    come before them.
    """
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


def _estimate(orders: list[_Grams], num_words: int) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    """Probability and back-off weight of each n-gram; the back-off is 1 where nothing was seen after it."""
    lower_N = np.full(num_words, 1 / (num_words - 1))  # `<s>` is never predicted
    probs: list[NDArray[np.float64]] = []
    backoffs = [np.ones(len(grams.count_N)) for grams in orders]
    for grams, backoff_P in zip(orders, [np.ones(1), *backoffs], strict=False):
        discount_N = np.array([0.0, *_discounts(grams.count_N)])[np.minimum(grams.count_N, 3)]
        total_P = np.bincount(grams.prefix_N, grams.count_N, len(backoff_P))
        discounted_P = np.bincount(grams.prefix_N, discount_N, len(backoff_P))
        np.divide(discounted_P, total_P, out=backoff_P, where=total_P > 0)
        seen_N = (grams.count_N - discount_N) / total_P[grams.prefix_N]
        lower_N = seen_N + backoff_P[grams.prefix_N] * lower_N[grams.suffix_N]
        if not probs:
            lower_N[_START_ID] = 0
        probs.append(lower_N)
    return probs, backoffs


def _discounts(count_N: NDArray[np.int64]) -> tuple[float, float, float]:
    """Discounts of n-grams that were counted once, twice, and more often (Chen and Goodman 1999, equation 26)."""
    ones, twos, threes, fours = (float((count_N == times).sum()) for times in (1, 2, 3, 4))
    if not (ones and twos and threes):
        return _FALLBACK
    share = ones / (ones + 2 * twos)
    discounts = (1 - 2 * share * twos / ones, 2 - 3 * share * threes / twos, 3 - 4 * share * fours / threes)
    return discounts if all(0 < discount <= times for times, discount in enumerate(discounts, 1)) else _FALLBACK
