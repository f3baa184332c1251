"""The name of labels is made once for each task: every label asks for it."""

from __future__ import annotations

from voxstill.core import config
from voxstill.labelling import label


def test_the_recipe_of_a_task_is_made_once() -> None:
    task = label.task(config.Teacher(name="echo"))
    assert task.recipe is task.recipe
