"""pretrain: self-supervised training on audio alone; the same command resumes from the last checkpoint."""

from __future__ import annotations

from pathlib import Path

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.pipeline.marks import marks_children
from voxstill.pipeline.mixture import shards_to_listen_to
from voxstill.tasks import pretraining
from voxstill.training.check import check
from voxstill.training.launch import launch
from voxstill.training.summary import TrainingSummary


@marks_children("pretrain")
def pretrain(cfg: Config, experiment: str | Path | None = None) -> TrainingSummary:
    """Train a model on audio alone; return its folder, steps, seconds and loss.

    An `experiment` continues with this configuration instead of a new one; of a checkpoint, its experiment from there.
    """
    check(cfg)
    check_crop(cfg)
    return launch(cfg, shards_to_listen_to, pretraining.build, pretraining.settings, "pretrain", experiment)


def check_crop(cfg: Config) -> None:
    """Raise ConfigError if the longest stretch does not fit into a batch."""
    if cfg.pretrain.crop_ms > cfg.plan.budget_ms:
        raise ConfigError(
            f"`pretrain.crop_ms` is {cfg.pretrain.crop_ms} and `plan.budget_ms` is {cfg.plan.budget_ms}",
            code="option-conflict",
            why="no utterance of that length would fit into a batch",
            fix="raise `plan.budget_ms`, or lower `pretrain.crop_ms`",
        )
