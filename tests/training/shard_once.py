"""Trains in two processes several times: with a student on each, or in parts, and from one to the other.

Arguments: the work folder, a folder for the runs, the kind of student, then which of the ways.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from training.train_once import SETTINGS, with_fabric
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.storage.rundir import RunDir
from voxstill.tasks import recognition
from voxstill.training.launch import train_rank

COPIED, SHARDED = ("train.shard_above=1000",), ("train.shard_above=0",)
RECOMPUTED = (*SHARDED, "train.activation_checkpointing=true")
MUON = "train.optimizer=muon"
WAYS = {
    "copied": (COPIED, COPIED),
    "sharded, recomputed": (RECOMPUTED, RECOMPUTED),
    "sharded first": (SHARDED, COPIED),
    "copied first": (COPIED, RECOMPUTED),
    "muon": ((*COPIED, MUON), (*COPIED, MUON)),
    "muon, sharded first": ((*SHARDED, MUON), (*COPIED, MUON)),
}
"""What the first two and the last two steps are made with."""
PLAIN = "augment={noise_prob: 0.0, tempo: 0.0, vtlp: 0.0, time_masks: 0, mel_masks: 0}"
MORE = (PLAIN, "plan.batches_per_step=4", "train.devices=2", "train.average_share=1.0", "train.average_decay=0.5")


def rank(fabric: Any, trainings: list[tuple[RunDir, Config]]) -> None:
    for run, cfg in trainings:
        train_rank(fabric, cfg, run, "shards/r", recognition.build)
        fabric.barrier()


def main(work: str, folder: str, kind: str, *ways: str) -> None:
    trainings = []
    for name in ways:
        run = RunDir(Path(folder) / name)
        run.path.mkdir(parents=True, exist_ok=True)
        for steps, way in zip((2, 4), WAYS[name], strict=True):
            settings = [*SETTINGS, *MORE, f"work={work}", f"student.kind={kind}", f"train.steps={steps}", *way]
            trainings.append((run, config.load(None, settings)))
    _, fabric = with_fabric(trainings[0][1])
    fabric.launch(functools.partial(rank, trainings=trainings))
