"""Trains on shards that lie ready, as `voxstill train` does, in a process that a test may kill.

Arguments: the work folder, the run folder, then `key=value` overrides.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from voxstill import config
from voxstill.commands import learn
from voxstill.rundir import RunDir
from voxstill.train import parallel

SETTINGS = (
    "train.seed_mode=debug",
    "train.loader_workers=0",
    "train.average_share=0.3",
    "train.validate_every=4",
    "train.checkpoint_every=2",
    "train.log_every=1",
    "plan.budget_ms=6000",
)


def main(work: str, run: str, *overrides: str) -> None:
    cfg = config.load(None, [f"work={work}", *SETTINGS, *overrides])
    learn.check(cfg)
    Path(run).mkdir(parents=True, exist_ok=True)
    rank = functools.partial(learn.train_rank, cfg=cfg, run=RunDir(Path(run)), shards={"recipe": "r"})
    parallel.fabric(cfg.train).launch(rank)


if __name__ == "__main__":
    main(*sys.argv[1:])
