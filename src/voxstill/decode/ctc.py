"""From the log-probabilities of a CTC student to words with times and confidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.records import Hypothesis, Word

if TYPE_CHECKING:
    import torch

WORD_START = "▁"
"""A piece that starts with this starts a word; in a vocabulary of whole words each piece does."""


class _Token(NamedTuple):
    id: int
    start: int
    end: int
    logprobs_F: NDArray[np.float32]


def greedy(
    log_probs_BFV: torch.Tensor | NDArray[np.floating],
    frames_B: Iterable[int],
    *,
    ids: Sequence[str],
    pieces: Sequence[str],
    frame_ms: int,
) -> list[Hypothesis]:
    """One hypothesis for each id: the best path, repeats collapsed and blanks removed (Graves et al. 2006, 3.2).

    The blank is the token after the last piece. A token lasts from the first to the last frame of its run, `frame_ms`
    each. A word's `prob` is the mean probability over the frames of its tokens; `score` is the mean over tokens of a
    token's mean log-probability. Frames beyond `frames_B` are never read.
    """
    best_BF, logprob_BF = _best(log_probs_BFV)
    return [
        _hypothesis(id_, list(_tokens(best_F[:frames], logprob_F[:frames], len(pieces))), pieces, frame_ms)
        for id_, best_F, logprob_F, frames in zip(ids, best_BF, logprob_BF, map(int, frames_B), strict=True)
    ]


def spell(token_ids: Iterable[int], pieces: Sequence[str]) -> str:
    """The text that tokens spell, one space between words."""
    return " ".join("".join(pieces[id_] for id_ in token_ids).replace(WORD_START, " ").split())


def _best(log_probs_BFV: torch.Tensor | NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Which token is likeliest in each frame, and its log-probability; only these leave the device."""
    if isinstance(log_probs_BFV, np.ndarray):
        best_BF = log_probs_BFV.argmax(-1)
        logprob_BF = np.take_along_axis(log_probs_BFV, best_BF[..., None], -1)[..., 0]
        return best_BF, logprob_BF.astype(np.float32)
    peaks = log_probs_BFV.detach().max(-1)
    return peaks.indices.cpu().numpy(), peaks.values.float().cpu().numpy()


def _tokens(best_F: NDArray[np.int64], logprob_F: NDArray[np.float32], blank_id: int) -> Iterator[_Token]:
    """The runs of one token, without the blank."""
    starts = np.flatnonzero(np.diff(best_F, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(best_F)]):
        if best_F[start] != blank_id:
            yield _Token(int(best_F[start]), start, end, logprob_F[start:end])


def _hypothesis(id_: str, tokens: Sequence[_Token], pieces: Sequence[str], frame_ms: int) -> Hypothesis:
    token_ids = tuple(token.id for token in tokens)
    return Hypothesis(
        id=id_,
        text=spell(token_ids, pieces),
        score=float(np.mean([token.logprobs_F.mean() for token in tokens])) if tokens else None,
        token_ids=token_ids,
        words=tuple(_words(tokens, pieces, frame_ms)),
    )


def _words(tokens: Sequence[_Token], pieces: Sequence[str], frame_ms: int) -> Iterator[Word]:
    nth_word = np.cumsum([pieces[token.id].startswith(WORD_START) for token in tokens]).tolist()
    for _, numbered in groupby(zip(nth_word, tokens, strict=True), key=lambda pair: pair[0]):
        spoken = [token for _, token in numbered if pieces[token.id] != WORD_START]  # a lone `▁` is a space
        if text := spell([token.id for token in spoken], pieces):
            yield Word(
                text=text,
                start_ms=spoken[0].start * frame_ms,
                end_ms=spoken[-1].end * frame_ms,
                prob=float(np.exp(np.concatenate([token.logprobs_F for token in spoken])).mean()),
            )
