"""Trains a student that tells classes or speakers apart, on shards that lie ready, in a process that a test may kill.

Arguments: the work folder, the run folder, then `key=value` overrides.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from voxstill import config
from voxstill.commands import classify, learn
from voxstill.rundir import RunDir
from voxstill.train import parallel

SETTINGS = (
    "student.task=classes",
    "train.seed_mode=debug",
    "train.loader_workers=0",
    "train.checkpoint_every=2",
    "train.validate_every=4",
    "train.log_every=1",
    "train.average_share=0.3",
    "plan.budget_ms=6000",
    "augment={noise_prob: 0.0, tempo: 0.0, warp: 0.0, time_masks: 0, mel_masks: 0}",
)


def main(work: str, run: str, *overrides: str) -> None:
    cfg = config.load(None, [f"work={work}", *SETTINGS, *overrides])
    learn.check(cfg)
    Path(run).mkdir(parents=True, exist_ok=True)
    teach = learn.recognition if cfg.student.task == "recognition" else classify.lesson
    rank = functools.partial(learn.train_rank, cfg=cfg, run=RunDir(Path(run)), shards={"recipe": "r"}, teach=teach)
    parallel.fabric(cfg.train).launch(rank)


if __name__ == "__main__":
    main(*sys.argv[1:])
