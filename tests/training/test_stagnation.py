"""A loss that falls while the error on the dev split does not is told once, with what to look at."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from voxstill.training.stagnation import NUM_VALIDATIONS, advice_on, watch
from voxstill.training.state import State

FALLING = (2.0, 1.6, 1.3, 1.1, 1.0)


def validated(errors: Sequence[float], losses: Sequence[float] = FALLING, metric: str = "wer") -> State:
    state = State()
    for loss, error in zip(losses, errors, strict=True):
        state.loss, state.error = loss, error
        watch(state, metric)
    return state


@pytest.mark.parametrize(
    ("losses", "errors"),
    [
        (FALLING, (0.9, 0.8, 0.7, 0.6, 0.5)),
        (FALLING, (0.5, 0.52, 0.48, 0.5, 0.5)),  # better once
        (FALLING, (0.03, 0.03, 0.03, 0.03, 0.03)),  # as good as it gets
        ((1.0, 1.0, 1.0, 0.95, 0.95), (0.5, 0.5, 0.5, 0.5, 0.5)),  # the loss stays, too
        ((1.0, 1.2, 1.1, 1.0, 2.0), (0.5, 0.5, 0.5, 0.5, 0.5)),
    ],
)
def test_an_error_that_follows_the_loss_is_not_told(
    losses: Sequence[float], errors: Sequence[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert not validated(errors, losses).is_stagnation_told
    assert caplog.text == ""


def test_an_error_that_rises_is_told_as_overfitting_first(caplog: pytest.LogCaptureFixture) -> None:
    state = validated((0.3, 0.31, 0.34, 0.36, 0.4))
    assert state.is_stagnation_told
    text = caplog.text
    assert "fell from 2 to 1" in text
    assert "went from 0.300 to 0.400" in text
    assert -1 < text.index("overfitting") < text.index("labels") < text.index("tokenizer") < text.index("decoding")


def test_where_hardly_a_word_is_right_decoding_comes_first_and_overfitting_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    validated((1.0,) * NUM_VALIDATIONS)
    text = caplog.text
    assert -1 < text.index("decoding") < text.index("tokenizer") < text.index("labels") < text.index("overfitting")


def test_an_error_that_is_no_word_error_rate_is_told_without_words(caplog: pytest.LogCaptureFixture) -> None:
    validated((0.3, 0.3, 0.3, 0.3, 0.3), metric="eer")
    assert "overfitting" in caplog.text
    assert "tokenizer" not in caplog.text


def test_it_is_told_once_and_only_the_last_validations_count(caplog: pytest.LogCaptureFixture) -> None:
    losses = [2.0 * 0.9**i for i in range(20)]
    state = validated([0.9 - 0.1 * i for i in range(5)] + [0.5] * 15, losses)
    assert len(state.validations) == NUM_VALIDATIONS
    assert caplog.text.count("validations the loss fell") == 1


def test_a_validation_without_a_loss_or_an_error_does_not_count() -> None:
    state = State(loss=None, error=0.5)
    watch(state, "wer")
    state.loss, state.error = 1.0, None
    watch(state, "wer")
    assert state.validations == ()
    assert advice_on((), "wer") is None
