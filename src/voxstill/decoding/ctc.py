"""CTC decoding, greedy or by beam search: log-probabilities to words with times and confidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import Hypothesis
from voxstill.decoding.spikes import Pauses
from voxstill.decoding.tokens import Token, hypothesis, log_softmax

if TYPE_CHECKING:
    import torch

    from voxstill.decoding.fusion import Fusion
    from voxstill.decoding.grammar_search import TokenGraph

MOST_TOKENS, BAND = 32, 8.0
"""With a language model or phrases, the most tokens of a frame that are searched, and how far their log-probability may
be below the best of the frame. That costs 0.07 nats of a score of -29 and no words, and is 27 times as fast:
`python benchmarks/decode.py --limits`, 500 whole words, a beam of 16, a 3-gram."""


def log_probs(logits_BFV: torch.Tensor, blank_id: int, blank_penalty: float = 0.0) -> torch.Tensor:
    """Log-probabilities in fp32 of logits (..., V), after `blank_penalty` nats were taken off the blank's logit.

    CTC learns to emit blanks in most frames, and is too sure of them where audio differs from what it learnt from.
    """
    if blank_penalty:
        logits_BFV = logits_BFV.clone()
        logits_BFV[..., blank_id] -= blank_penalty
    return logits_BFV.float().log_softmax(-1)


def penalised(log_probs_BFV: NDArray[np.float32], blank_id: int, blank_penalty: float) -> NDArray[np.float32]:
    """Log-probabilities after `blank_penalty` nats were taken off the blank, as `log_probs` does with logits."""
    if not blank_penalty:
        return log_probs_BFV
    lowered_BFV = log_probs_BFV.copy()
    lowered_BFV[..., blank_id] -= blank_penalty
    return log_softmax(lowered_BFV)


def greedy(
    log_probs_BFV: torch.Tensor | NDArray[np.floating],
    frames_B: Iterable[int],
    *,
    ids: Sequence[str],
    pieces: Sequence[str],
    blank_id: int,
    frame_ms: int,
    pauses: Sequence[Pauses | None] | None = None,
) -> list[Hypothesis]:
    """Greedy decoding, one hypothesis for each id: the best path, without repeats and blanks (Graves et al. 2006, 3.2).

    A token lasts from the first to the last frame of its run, `frame_ms` each. Words last as long, or with `pauses` of
    the audio as `spikes.word_spans` says. Frames beyond `frames_B` are never read.
    """
    best_BF, logprob_BF = _best(log_probs_BFV)
    return [
        hypothesis(id_, list(_tokens(best_F[:frames], logprob_F[:frames], blank_id)), pieces, frame_ms, quiet)
        for id_, best_F, logprob_F, frames, quiet in zip(
            ids, best_BF, logprob_BF, map(int, frames_B), pauses or [None] * len(ids), strict=True
        )
    ]


def beam(
    log_probs_BFV: torch.Tensor | NDArray[np.floating],
    frames_B: Iterable[int],
    *,
    width: int,
    fusion: Fusion,
    ids: Sequence[str],
    pieces: Sequence[str],
    blank_id: int,
    frame_ms: int,
    pauses: Sequence[Pauses | None] | None = None,
) -> list[Hypothesis]:
    """Beam search, one hypothesis for each id: the most likely text in the beam, summed over its alignments.

    `width` texts are kept, rounded up to a power of two: a wider beam never finds a worse one. `fusion` adds the scores
    of a language model and phrases. Times and confidences are those of the text's most likely alignment, by the rules
    of `greedy`. Frames beyond `frames_B` are never read.
    """
    from voxstill.decoding import prefix_search  # compiled code, which greedy decoding does not need

    hypotheses = []
    rows = zip(ids, _as_numpy(log_probs_BFV), map(int, frames_B), pauses or [None] * len(ids), strict=True)
    for id_, logprob_FV, frames, quiet in rows:
        logprobs_FV = np.ascontiguousarray(logprob_FV[:frames], np.float32)
        tokens_U = beam_tokens(logprobs_FV, width=width, fusion=fusion, blank_id=blank_id)
        start_U, end_U = prefix_search.viterbi_align(logprobs_FV, tokens_U, blank_id)
        tokens = _path_tokens(logprobs_FV, tokens_U, start_U, end_U)
        hypotheses.append(hypothesis(id_, tokens, pieces, frame_ms, quiet))
    return hypotheses


def grammar(
    log_probs_BFV: torch.Tensor | NDArray[np.floating],
    frames_B: Iterable[int],
    *,
    graph: TokenGraph,
    ids: Sequence[str],
    pieces: Sequence[str],
    blank_id: int,
    frame_ms: int,
    pauses: Sequence[Pauses | None] | None = None,
) -> list[Hypothesis]:
    """Viterbi search along a grammar, one hypothesis for each id: the most likely of its sentences.

    Audio too short for any of them is an empty hypothesis. Times and confidences are those of the best path, by the
    rules of `greedy`. Frames beyond `frames_B` are never read.
    """
    from voxstill.decoding import grammar_search  # compiled code, which greedy decoding does not need

    hypotheses = []
    rows = zip(ids, _as_numpy(log_probs_BFV), map(int, frames_B), pauses or [None] * len(ids), strict=True)
    for id_, logprob_FV, frames, quiet in rows:
        logprobs_FV = np.ascontiguousarray(logprob_FV[:frames], np.float32)
        path = grammar_search.search(logprobs_FV, blank_id, graph)
        tokens = [] if path is None else _path_tokens(logprobs_FV, path.token_U, path.start_U, path.end_U)
        hypotheses.append(hypothesis(id_, tokens, pieces, frame_ms, quiet))
    return hypotheses


def beam_tokens(logprobs_FV: NDArray[np.float32], *, width: int, fusion: Fusion, blank_id: int) -> NDArray[np.int64]:
    """The tokens (U,) of the best text of one utterance by beam search, without times and confidences."""
    from voxstill.decoding import prefix_search

    places = 1 << (width - 1).bit_length()
    tokens_U, _ = prefix_search.search(logprobs_FV, blank_id, places, MOST_TOKENS, BAND, fusion)
    return tokens_U


def _as_numpy(log_probs_BFV: torch.Tensor | NDArray[np.floating]) -> NDArray[np.floating]:
    if isinstance(log_probs_BFV, np.ndarray):
        return log_probs_BFV
    log_probs: NDArray[np.floating] = log_probs_BFV.detach().float().cpu().numpy()
    return log_probs


def _path_tokens(
    logprobs_FV: NDArray[np.float32], token_U: NDArray[np.int64], start_U: NDArray[np.int64], end_U: NDArray[np.int64]
) -> list[Token]:
    """Tokens with their frames, and their log-probabilities there."""
    return [
        Token(token, start, end, logprobs_FV[start:end, token])
        for token, start, end in zip(token_U.tolist(), start_U.tolist(), end_U.tolist(), strict=True)
    ]


def _best(log_probs_BFV: torch.Tensor | NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The most likely token of each frame and its log-probability; only these are copied from the device."""
    if isinstance(log_probs_BFV, np.ndarray):
        best_BF = log_probs_BFV.argmax(-1)
        logprob_BF = np.take_along_axis(log_probs_BFV, best_BF[..., None], -1)[..., 0]
        return best_BF, logprob_BF.astype(np.float32)
    peaks = log_probs_BFV.detach().max(-1)
    return peaks.indices.cpu().numpy(), peaks.values.float().cpu().numpy()


def _tokens(best_F: NDArray[np.int64], logprob_F: NDArray[np.float32], blank_id: int) -> Iterator[Token]:
    """Runs of equal tokens, without those of the blank."""
    starts = np.flatnonzero(np.diff(best_F, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(best_F)]):
        if best_F[start] != blank_id:
            yield Token(int(best_F[start]), start, end, logprob_F[start:end])
