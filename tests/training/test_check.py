"""What is wrong with a training is told before its first step."""

from __future__ import annotations

import pytest

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.training.check import check


def test_a_checkpoints_pieces_need_a_checkpoint() -> None:
    cfg = Config.model_validate({"student": {"units": "checkpoint"}, "train": {"steps": 1}})
    with pytest.raises(ConfigError, match="no checkpoint"):
        check(cfg)


def test_weights_of_classes_need_classes() -> None:
    cfg = Config.model_validate({"train": {"steps": 1, "class_weights": "balanced"}})
    with pytest.raises(ConfigError, match="class_weights"):
        check(cfg)
    check(Config.model_validate({"student": {"task": "classes"}, "train": {"steps": 1, "class_weights": {"a": 2.0}}}))


@pytest.mark.parametrize(
    ("student", "option"),
    [
        ({"kind": "rnnt"}, "consistency"),
        ({"kind": "tdt"}, "consistency"),
        ({"kind": "seq2seq", "checkpoint": "owner/whisper"}, "consistency"),
        ({"task": "classes"}, "consistency"),
        ({"task": "speakers"}, "label_smoothing"),
    ],
)
def test_a_part_of_the_loss_that_a_student_has_not_is_refused(student: dict[str, str], option: str) -> None:
    cfg = Config.model_validate({"student": student, "train": {"steps": 1, option: 0.1}})
    with pytest.raises(ConfigError, match=f"`train.{option}` has no use"):
        check(cfg)
    check(Config.model_validate({"train": {"steps": 1, option: 0.1}}))


def test_a_decay_that_takes_all_of_a_weight_in_one_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="would set the weights to 0"):
        check(Config.model_validate({"train": {"steps": 1, "lr": 0.01, "weight_decay": 100.0}}))
