"""Trains on shards that lie ready, as `voxstill train` or `pretrain` does, in a process that a test may kill.

Arguments: `pretrain` or `classify` where that is meant, the work folder, the run folder, then `key=value` overrides.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from voxstill import config
from voxstill.commands import classify, learn, pretrain
from voxstill.commands.learn import Teach
from voxstill.rundir import RunDir
from voxstill.train import parallel

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
    _learn(learn.recognition, work, run, *OF_STUDENT, *overrides)


def pretrain_once(work: str, run: str, *overrides: str) -> None:
    _learn(pretrain.lesson, work, run, *OF_PRETRAINING, *overrides)


def classify_once(work: str, run: str, *overrides: str) -> None:
    _learn(classify.lesson, work, run, *OF_CLASSES, *overrides)


def _learn(teach: Teach, work: str, run: str, *overrides: str) -> None:
    cfg = config.load(None, [f"work={work}", *SETTINGS, *overrides])
    learn.check(cfg)
    Path(run).mkdir(parents=True, exist_ok=True)
    rank = functools.partial(learn.train_rank, cfg=cfg, run=RunDir(Path(run)), shards={"recipe": "r"}, teach=teach)
    parallel.fabric(cfg.train).launch(rank)


if __name__ == "__main__":
    ways = {"pretrain": pretrain_once, "classify": classify_once}
    if (way := ways.get(sys.argv[1])) is not None:
        way(*sys.argv[2:])
    else:
        train_once(*sys.argv[1:])
