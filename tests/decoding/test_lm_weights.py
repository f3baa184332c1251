"""Tuning the weights of a language model on log-probabilities that were kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from voxstill.decoding import ctc, fusion, lm_weights
from voxstill.decoding.fusion import Fusion
from voxstill.text import kneser_ney, lm

PIECES = ["▁one", "▁two", "▁three", ""]
BLANK = 3
SPOKEN = ["one two", "two one one", "three two", "one three", "two three one"]


def emission(text: str, seed: int, noise: float) -> NDArray[np.float32]:
    """Log-probabilities (F, V) of a text, with a blank around each word; noise is in the logits."""
    path = [BLANK]
    for word in text.split():
        path += [PIECES.index(f"▁{word}"), BLANK]
    logits_FV = 6.0 * np.eye(len(PIECES))[path] + np.random.default_rng(seed).normal(0, noise, (len(path), 4))
    log_probs_FV: NDArray[np.float64] = logits_FV - np.log(np.exp(logits_FV).sum(1, keepdims=True))
    return log_probs_FV.astype(np.float32)


def model_of(sentences: list[str], folder: Path, order: int = 2) -> lm.LanguageModel:
    path = folder / "words.arpa"
    path.write_text("\n".join(kneser_ney.arpa(sentences, order)) + "\n")
    return lm.read(str(path))


def tune(emissions: list[NDArray[np.float32]], references: list[str], fused: Fusion) -> lm_weights.Tuned:
    named = {"width": 4, "pieces": PIECES, "blank_id": BLANK}
    return lm_weights.tune(emissions, references, str.lower, fusion=fused, **named)  # type: ignore[arg-type]


def test_a_model_that_is_wrong_about_the_words_gets_less_weight(tmp_path: Path) -> None:
    """It has only ever seen `one` alone, and so takes most words away."""
    emissions = [emission(text, seed, 1.0) for seed, text in enumerate(SPOKEN)]
    wrong = model_of(["one"] * 20 + ["two three"], tmp_path)
    tuned = tune(emissions, [text.upper() for text in SPOKEN], fusion.fusion(PIECES, wrong, 4.0, -3.0))
    assert tuned.before.errors > 0
    assert tuned.after.errors == 0
    assert tuned.weights.lm_weight < 4.0


def test_a_model_that_knows_the_words_gets_a_weight(tmp_path: Path) -> None:
    """Of two words that sound alike, it tells which was said."""
    probs_V = np.array([0.49, 0.5, 1e-5, 0.01])
    unclear_FV = np.log(np.stack([probs_V, [1e-5, 1e-5, 1e-5, 1.0]])).astype(np.float32)
    helpful = model_of(["one"] * 20 + ["two"], tmp_path)
    tuned = tune([unclear_FV], ["one"], fusion.fusion(PIECES, helpful, 0.0, 0.0))
    assert (tuned.before.errors, tuned.after.errors) == (1, 0)
    assert tuned.weights == (0.15, 0.0)  # the nearest that helps


def test_weights_that_others_do_not_beat_stay(tmp_path: Path) -> None:
    emissions = [emission(text, seed, 0.0) for seed, text in enumerate(SPOKEN)]
    tuned = tune(emissions, SPOKEN, fusion.fusion(PIECES, model_of(SPOKEN, tmp_path), 0.4, 1.1))
    assert tuned.weights == (0.4, 1.1)
    assert tuned.before == tuned.after
    assert tuned.after.errors == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_words_that_were_searched_are_never_worse_than_before(seed: int, tmp_path: Path) -> None:
    emissions = [emission(text, 10 * seed + i, 3.0) for i, text in enumerate(SPOKEN)]
    emissions.append(np.empty((0, len(PIECES)), np.float32))  # an utterance in which nothing can be heard
    references = [*SPOKEN, "one"]
    fused = fusion.fusion(PIECES, model_of(SPOKEN, tmp_path), 0.5, 1.5)
    tuned = tune(emissions, references, fused)
    assert tuned.after.errors <= tuned.before.errors
    assert tuned.before.reference == tuned.after.reference == sum(len(text.split()) for text in references)
    assert tuned.weights == tune(emissions, references, fused).weights


def test_other_weights_of_a_fusion_are_as_if_it_was_made_with_them(tmp_path: Path) -> None:
    model = model_of(SPOKEN, tmp_path)
    for boost in ((), ("one two",)):
        fused_model = fusion.fusion(PIECES, model, 0.5, 1.5, boost, 2.0)
        for weights in ((0.0, 0.0), (0.0, 1.0), (2.0, 0.0)):
            expected, got = (
                fusion.fusion(PIECES, model, *weights, boost, 2.0),
                fusion.with_weights(fused_model, *weights),
            )
            assert got.plain == expected.plain
            for seed, text in enumerate(SPOKEN):
                logprobs_FV = emission(text, seed, 3.0)
                tokens = [
                    ctc.beam_tokens(logprobs_FV, width=4, fusion=fused, blank_id=BLANK).tolist()
                    for fused in (expected, got)
                ]
                assert tokens[0] == tokens[1]
