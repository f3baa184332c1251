"""Pre-trains on shards that lie ready, as `voxstill pretrain` does, in a process that a test may kill.

Arguments: the work folder, the run folder, then `key=value` overrides.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from voxstill import config
from voxstill.commands import learn, pretrain
from voxstill.rundir import RunDir
from voxstill.train import parallel

SETTINGS = (
    "train.seed_mode=debug",
    "train.loader_workers=0",
    "train.validate_every=4",
    "train.checkpoint_every=2",
    "train.log_every=1",
    "plan.budget_ms=4000",
    "pretrain={size: tiny, crop_ms: 900, mask_ms: 100, negatives: 20}",
)


def main(work: str, run: str, *overrides: str) -> None:
    cfg = config.load(None, [f"work={work}", *SETTINGS, *overrides])
    Path(run).mkdir(parents=True, exist_ok=True)
    rank = functools.partial(
        learn.train_rank, cfg=cfg, run=RunDir(Path(run)), shards={"recipe": "r"}, teach=pretrain.lesson
    )
    parallel.fabric(cfg.train).launch(rank)


if __name__ == "__main__":
    main(*sys.argv[1:])
