"""What a task may say: the unit of its loss, and figures of the dev split."""

from __future__ import annotations

from typing import Any

import pytest

from voxstill.core.errors import TrainingError
from voxstill.training.task import StepContext, Unit, minimised

CONTEXT = StepContext(progress=0.5, num_tokens=12, num_frames=100, num_utterances=3)


@pytest.mark.parametrize(("unit", "num"), [("tokens", 12), ("masked frames", 12), ("frames", 100), ("utterances", 3)])
def test_a_loss_is_counted_by_its_unit(unit: Unit, num: int) -> None:
    assert CONTEXT.count(unit) == num


def test_a_unit_that_no_plan_counts_is_refused_with_those_that_there_are() -> None:
    unit: Any = "token"
    with pytest.raises(TrainingError, match="normalised by `token`") as caught:
        CONTEXT.count(unit)
    assert "tokens, masked frames, utterances, frames" in caught.value.why


def test_a_dev_split_that_is_judged_without_a_figure_is_an_error_that_names_the_task() -> None:
    class Forgetful:
        """A task whose `validate` returns {}."""

    task: Any = Forgetful()
    assert minimised(task, {"error": 0.25, "utterances": 4.0}) == 0.25
    with pytest.raises(TrainingError, match="returned no figures") as caught:
        minimised(task, {})
    assert "`Forgetful.validate`" in caught.value.why
