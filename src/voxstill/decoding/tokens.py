"""Tokens with frames to text, words with times and confidence; shared by all decoders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import Hypothesis, Word

WORD_START = "▁"
"""Prefix of pieces that start a word; in a vocabulary of whole words all pieces have it."""


class Token(NamedTuple):
    """One token, its frames, and its log-probability in each of them."""

    id: int
    start: int
    end: int
    logprobs_F: NDArray[np.float32]


def detokenize(token_ids: Iterable[int], pieces: Sequence[str]) -> str:
    """Join tokens to text, one space between words."""
    return " ".join("".join(pieces[id_] for id_ in token_ids).replace(WORD_START, " ").split())


def hypothesis(id_: str, tokens: Sequence[Token], pieces: Sequence[str], frame_ms: int) -> Hypothesis:
    """The hypothesis of some tokens. A word's `prob` is the mean probability over the frames of its tokens; `score` is
    the mean over tokens of a token's mean log-probability."""
    token_ids = tuple(token.id for token in tokens)
    return Hypothesis(
        id=id_,
        text=detokenize(token_ids, pieces),
        score=_mean([_mean(token.logprobs_F.tolist()) for token in tokens]) if tokens else None,
        token_ids=token_ids,
        words=tuple(_words(tokens, pieces, frame_ms)),
    )


def _words(tokens: Sequence[Token], pieces: Sequence[str], frame_ms: int) -> Iterator[Word]:
    nth_word = np.cumsum([pieces[token.id].startswith(WORD_START) for token in tokens]).tolist()
    for _, group in groupby(zip(nth_word, tokens, strict=True), key=lambda pair: pair[0]):
        word_tokens = [token for _, token in group if pieces[token.id] != WORD_START]  # a lone `▁` is a space
        if text := detokenize([token.id for token in word_tokens], pieces):
            yield Word(
                text=text,
                start_ms=word_tokens[0].start * frame_ms,
                end_ms=word_tokens[-1].end * frame_ms,
                prob=_mean([math.exp(logprob) for token in word_tokens for logprob in token.logprobs_F.tolist()]),
            )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)  # of few values, ten times faster than numpy
