"""A step that would break the weights is skipped and named; a training that only has such steps ends."""

from __future__ import annotations

import pytest

from voxstill.errors import TrainingError
from voxstill.train.guard import LIMIT, Guard

INFINITE, NOTHING = float("inf"), float("nan")
BROKEN = [(INFINITE, 1.0), (-INFINITE, 1.0), (NOTHING, 1.0), (1.0, INFINITE), (1.0, NOTHING)]


@pytest.mark.parametrize(("loss", "norm"), BROKEN)
def test_a_step_that_is_not_finite_does_not_pass(loss: float, norm: float) -> None:
    assert not Guard().passes(loss, norm, 1, ["a"])
    assert Guard().passes(-3.0, 0.0, 1, ["a"])


def test_ten_broken_steps_in_a_row_end_the_training_with_the_utterances_at_fault() -> None:
    assert LIMIT == 10
    guard = Guard()
    for _ in range(9):
        assert not guard.passes(NOTHING, 1.0, 1, ["a"])
    assert guard.passes(1.0, 1.0, 1, ["a"])  # and one good step starts the count anew
    for _ in range(9):
        assert not guard.passes(NOTHING, 1.0, 1, ["a"])
    with pytest.raises(TrainingError, match="10 steps in a row") as caught:
        guard.passes(NOTHING, 1.0, 1, [f"u{i}" for i in range(6)])
    assert "u0, u1, u2, u3 and 2 more" in caught.value.why
    assert caught.value.exit_code == 6
    assert caught.value.fix
