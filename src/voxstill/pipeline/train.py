"""train: train a student on shards, in an experiment folder; the same command resumes from the last checkpoint."""

from __future__ import annotations

from pathlib import Path

from voxstill.core.config import Config
from voxstill.pipeline.marks import marks_children
from voxstill.pipeline.mixture import labelled_shards, shards_to_listen_to
from voxstill.tasks import registry
from voxstill.training.check import check
from voxstill.training.experiment import train_settings
from voxstill.training.launch import launch
from voxstill.training.summary import TrainingSummary


@marks_children("train")
def train(cfg: Config, experiment: str | Path | None = None) -> TrainingSummary:
    """Train a student on the kept labels, or on what the manifest says; return its folder, steps, seconds and loss.

    An `experiment` continues with this configuration instead of a new one; of a checkpoint, its experiment from there.
    """
    task = registry.find(cfg.student.task)
    check(cfg)
    shards_of = labelled_shards if task.needs_labels(cfg) else shards_to_listen_to
    return launch(cfg, shards_of, task.build, train_settings, "train", experiment)
