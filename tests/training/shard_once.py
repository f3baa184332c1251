"""Trains in two processes several times: with a student on each, or in parts, and from one to the other.

Arguments: the work folder, a folder for the runs.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from narrow_models import narrowed
from training.train_once import SETTINGS, with_fabric
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.storage.rundir import RunDir
from voxstill.tasks import recognition
from voxstill.training.launch import train_rank

COPIED, SHARDED = ("train.shard_above=1000",), ("train.shard_above=0",)
RECOMPUTED = (*SHARDED, "train.activation_checkpointing=true")
TRAININGS = {
    "ctc": {"copied": (COPIED, COPIED), "sharded first": (SHARDED, COPIED), "copied first": (COPIED, RECOMPUTED)},
    "ctc, muon": {"copied": (COPIED, COPIED), "sharded first": (SHARDED, COPIED)},
    "rnnt": {"copied": (COPIED, COPIED), "sharded, recomputed": (RECOMPUTED, RECOMPUTED)},
}
"""By kind of student, what the first two steps and the third are made with; the first is the reference."""
PLAIN = "augment={noise_prob: 0.0, tempo: 0.0, vtlp: 0.0, time_masks: 0, mel_masks: 0}"
MORE = (PLAIN, "plan.batches_per_step=4", "train.devices=2", "train.average_share=1.0", "train.average_decay=0.5")


def rank(fabric: Any, trainings: list[tuple[RunDir, Config]]) -> None:
    for run, cfg in trainings:
        train_rank(fabric, cfg, run, "shards/r", narrowed(recognition.build))
        fabric.barrier()


def main(work: str, folder: str) -> None:
    trainings = []
    for name, ways in TRAININGS.items():
        kind, _, optimizer = name.partition(", ")
        own = (f"work={work}", f"student.kind={kind}", f"train.optimizer={optimizer or 'adamw'}")
        for way, parts in ways.items():
            run = RunDir(Path(folder) / name / way)
            run.path.mkdir(parents=True, exist_ok=True)  # by whichever rank is first
            for steps, options in zip((2, 3), parts, strict=True):
                trainings.append((run, config.load(None, [*SETTINGS, *MORE, *own, f"train.steps={steps}", *options])))
    _, fabric = with_fabric(trainings[0][1])
    fabric.launch(functools.partial(rank, trainings=trainings))
