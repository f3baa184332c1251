"""Tokens with frames to text, words with times and confidence; shared by all decoders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import Hypothesis, Word
from voxstill.decoding import spikes

WORD_START = "▁"
"""Prefix of pieces that start a word; in a vocabulary of whole words all pieces have it."""


class Token(NamedTuple):
    """One token, its frames, and its log-probability in each of them."""

    id: int
    start: int
    end: int
    logprobs_F: NDArray[np.float32]


def log_softmax(logits_NV: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-probabilities of logits (..., V)."""
    shifted_NV = logits_NV - logits_NV.max(-1, keepdims=True)
    log_probs_NV: NDArray[np.float32] = shifted_NV - np.log(np.exp(shifted_NV).sum(-1, keepdims=True))
    return log_probs_NV


def detokenize(token_ids: Iterable[int], pieces: Sequence[str]) -> str:
    """Join tokens to text, one space between words."""
    return " ".join("".join(pieces[id_] for id_ in token_ids).replace(WORD_START, " ").split())


def hypothesis(
    id_: str, tokens: Sequence[Token], pieces: Sequence[str], frame_ms: int, pauses: spikes.Pauses | None = None
) -> Hypothesis:
    """The hypothesis of some tokens. A word's `prob` is the mean probability over the frames of its tokens; `score` is
    the mean over tokens of a token's mean log-probability.

    Words last as `spikes.word_spans` says, by the pauses of the audio; without these as long as their tokens."""
    token_ids = tuple(token.id for token in tokens)
    return Hypothesis(
        id=id_,
        text=detokenize(token_ids, pieces),
        score=_mean([_mean(token.logprobs_F.tolist()) for token in tokens]) if tokens else None,
        token_ids=token_ids,
        words=tuple(_words(tokens, pieces, frame_ms, pauses)),
    )


def _words(
    tokens: Sequence[Token], pieces: Sequence[str], frame_ms: int, pauses: spikes.Pauses | None
) -> Iterator[Word]:
    nth_word = np.cumsum([pieces[token.id].startswith(WORD_START) for token in tokens]).tolist()
    groups = [
        [token for _, token in group if pieces[token.id] != WORD_START]  # a lone `▁` is a space
        for _, group in groupby(zip(nth_word, tokens, strict=True), key=lambda pair: pair[0])
    ]
    texts = [detokenize([token.id for token in group], pieces) for group in groups]
    groups = [group for group, text in zip(groups, texts, strict=True) if text]
    spans_ms = [(group[0].start * frame_ms, group[-1].end * frame_ms) for group in groups]
    if pauses is not None and groups:
        spans_ms = spikes.word_spans([[_spike(token, pieces, frame_ms) for token in group] for group in groups], pauses)
    for group, text, (start_ms, end_ms) in zip(groups, filter(None, texts), spans_ms, strict=True):
        yield Word(
            text=text,
            start_ms=start_ms,
            end_ms=end_ms,
            prob=_mean([math.exp(logprob) for token in group for logprob in token.logprobs_F.tolist()]),
        )


def _spike(token: Token, pieces: Sequence[str], frame_ms: int) -> spikes.Spike:
    num_chars = len(pieces[token.id].removeprefix(WORD_START).strip())
    return spikes.Spike((token.start + token.end) / 2 * frame_ms, max(num_chars, 1))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)  # of few values, ten times faster than numpy
