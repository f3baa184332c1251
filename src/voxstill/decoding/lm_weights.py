"""The weights of a language model with the fewest word errors on utterances whose words are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.core.monitor import Progress
from voxstill.core.records import ErrorCounts
from voxstill.decoding import ctc
from voxstill.decoding.fusion import Fusion, with_weights
from voxstill.decoding.tokens import detokenize
from voxstill.scoring import words

LM_WEIGHTS = (0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
WORD_BONUSES = (-1.0, 0.0, 0.75, 1.5, 2.5, 4.0)
"""All pairs are tried: a heavier model needs a larger bonus, so changing one after the other stops too early."""


class Weights(NamedTuple):
    """`decode.lm_weight` and `decode.word_bonus`."""

    lm_weight: float
    word_bonus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The best weights, and the word errors with the earlier weights and with these."""

    weights: Weights
    before: ErrorCounts
    after: ErrorCounts


def tune(
    emissions: Sequence[NDArray[np.float32]],
    references: Sequence[str],
    normalize: Callable[[str], str],
    *,
    width: int,
    fusion: Fusion,
    pieces: Sequence[str],
    blank_id: int,
) -> Tuned:
    """Search for the weights with the fewest word errors in the beam search of `fusion`, whose own are tried, too.

    `emissions` are the log-probabilities (F, V) of each utterance, and `references` their words. Of weights with
    equally many errors those nearest to the ones of `fusion` are taken.
    """
    before = Weights(fusion.lm_weight, fusion.word_bonus)
    grid = itertools.starmap(Weights, itertools.product(LM_WEIGHTS, WORD_BONUSES))
    texts = [normalize(reference) for reference in references]
    counts: dict[Weights, ErrorCounts] = {}
    with Progress("tune", len(LM_WEIGHTS) * len(WORD_BONUSES) + 1, "weights") as bar:
        for weights in (before, *grid):
            if weights not in counts:
                fused = with_weights(fusion, *weights)
                tokens = (
                    ctc.beam_tokens(logprobs_FV, width=width, fusion=fused, blank_id=blank_id)
                    for logprobs_FV in emissions
                )
                hypotheses = (normalize(detokenize(tokens_U.tolist(), pieces)) for tokens_U in tokens)
                counts[weights] = words.wer(zip(texts, hypotheses, strict=True))
            bar.advance()

    def rank(weights: Weights) -> tuple[int, float, Weights]:
        far = abs(weights.lm_weight - before.lm_weight) + abs(weights.word_bonus - before.word_bonus)
        return counts[weights].errors, far, weights

    best = min(counts, key=rank)
    return Tuned(weights=best, before=counts[before], after=counts[best])
