"""Trains on shards that lie ready, as `voxstill train` or `pretrain` does, also in a process that a test may kill.

Arguments: the work folder, the run folder, then `key=value` overrides.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from narrow_models import narrowed
from voxstill.core import config, world
from voxstill.core.config import Config
from voxstill.storage import control
from voxstill.storage.rundir import RunDir
from voxstill.tasks import classification, pretraining, recognition
from voxstill.training import parallel
from voxstill.training.check import check
from voxstill.training.launch import train_rank
from voxstill.training.setup import Build

SETTINGS = (
    "train.seed_mode=debug",
    "train.loader_workers=0",
    "train.validate_every=4",
    "train.checkpoint_every=2",
    "train.log_every=1",
)
OF_STUDENT = ("train.average_share=0.3", "plan.budget_ms=6000")
OF_PRETRAINING = ("plan.budget_ms=4000", "pretrain={size: tiny, crop_ms: 900, mask_ms: 100, negatives: 20}")
OF_CLASSES = (
    *OF_STUDENT,
    "student.task=classes",
    "augment={noise_prob: 0.0, tempo: 0.0, vtlp: 0.0, time_masks: 0, mel_masks: 0}",
)


def train_once(work: str, run: str, *overrides: str) -> None:
    train_with(recognition.build, work, run, *OF_STUDENT, *overrides)


def train_wide(work: str, run: str, *overrides: str) -> None:
    """The same of the smallest student that there is: its steps take longer than to see one and to ask for a change."""
    train_with(recognition.build, work, run, *OF_STUDENT, *overrides, narrow=False)


def train_polling(work: str, run: str, *overrides: str) -> None:
    """The same, which looks for a request all the time."""
    control.POLL_S = 0.01
    train_wide(work, run, *overrides)


def train_in_own_group(work: str, run: str, *overrides: str) -> None:
    os.setsid()
    train_once(work, run, *overrides)


def train_in_forks(work: str, run: str, *overrides: str) -> None:
    """The same, whose ranks are forked and not spawned: each has at once what takes it seconds to load."""
    train_with(recognition.build, work, run, *OF_STUDENT, *overrides, spawn=False)


def train_on_terminal(work: str, run: str, *overrides: str) -> None:
    """The same in a session of its own, whose terminal is the last argument."""
    *overrides, terminal = overrides
    os.setsid()
    opened = os.open(terminal, os.O_RDWR)  # the first that a session opens is its own
    for stream in range(3):
        os.dup2(opened, stream)
    train_once(work, run, *overrides)


def pretrain_once(work: str, run: str, *overrides: str) -> None:
    train_with(pretraining.build, work, run, *OF_PRETRAINING, *overrides)


def classify_once(work: str, run: str, *overrides: str) -> None:
    train_with(classification.build, work, run, *OF_CLASSES, *overrides)


def train_with(build: Build, work: str, run: str, *overrides: str, narrow: bool = True, spawn: bool = True) -> None:
    build = narrowed(build) if narrow else build
    cfg, fabric = with_fabric(config.load(None, [f"work={work}", *SETTINGS, *overrides]))
    if not spawn:
        fabric.strategy.launcher._start_method = "fork"
    check(cfg)
    Path(run).mkdir(parents=True, exist_ok=True)
    rank = functools.partial(train_rank, cfg=cfg, run=RunDir(Path(run)), prefix="shards/r", build=build)
    fabric.launch(rank)


def with_fabric(cfg: Config) -> tuple[Config, Any]:
    """The configuration for the ranks of a launcher where this is one of them, and the Fabric to launch."""
    ranks = world.ranks()
    cfg = parallel.with_ranks(ranks, cfg) if ranks else cfg
    return cfg, parallel.fabric(cfg.train, ranks)
