"""The gradient of one step of uneven batches for each kind of student, left in files by rank 0."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from training.train_once import with_fabric
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.nn import students
from voxstill.nn.frontends import LogMelFrontend
from voxstill.storage.store import Store
from voxstill.tasks.data import Corpus
from voxstill.tasks.recognition import KINDS
from voxstill.text import tokenizer
from voxstill.text.normalize import normalizer
from voxstill.training import optim
from voxstill.training.guard import MemoryGuard
from voxstill.training.step import one_step, prepare_step
from voxstill.training.task import StepContext
from voxstill.training.waits import Stopwatch

SIZES = (1, 4, 2, 3, 5, 1)
"""Utterances of each batch of the step: half of them are one rank's where there are two."""
SETTINGS = (
    "augment={noise_prob: 0.0, tempo: 0.0, vtlp: 0.0, time_masks: 0, mel_masks: 0}",
    "train={steps: 1, clip_norm: 1e9, loader_workers: 0}",
    "plan={budget_ms: 60000, batches_per_step: 6}",
)


def gradient(fabric: Any, cfg: Config, folder: Path) -> None:
    normalize = normalizer("basic")
    store = Store(cfg.work)
    vocabulary = tokenizer.train(Corpus.texts(store, "shards/r", "train", normalize), "word", 99)
    data = Corpus(
        *(store, "shards/r", folder, vocabulary, normalize, LogMelFrontend(cfg.augment), cfg),
        rank=fabric.global_rank,
        ranks=fabric.world_size,
    )
    plan = dataclasses.replace(data.plan(0, ascending=True), bounds=np.cumsum([0, *SIZES]))
    batches = next(iter(data.steps(plan, 0, lambda _, batches: batches)))
    own = np.split(np.array(SIZES), fabric.world_size)[fabric.global_rank]
    assert [len(batch.ids) for batch in batches] == own.tolist()
    context = StepContext(0.0, num_tokens=40, num_frames=900)  # any counts, so long as all ranks have the same
    kinds: tuple[students.Kind, ...] = ("ctc", "rnnt", "tdt")
    for kind in kinds:
        task_of = KINDS[kind]
        model = students.build("tiny", len(vocabulary.pieces), dropout=0.0, seed=0, kind=kind)
        wrapped, _ = fabric.setup(model, optim.make_optimizer(model, cfg.train))
        task = task_of(vocabulary, cfg.train, cfg.augment)
        step = prepare_step(fabric, task, batches, context.progress, cfg.seed, 0)
        one_step(
            fabric,
            wrapped,
            task,
            step,
            context,
            seed=cfg.seed,
            step=0,
            memory=MemoryGuard(cfg.plan.budget_ms),
            own=Stopwatch(),
        )
        if fabric.global_rank == 0:
            gradients = {name: weight.grad for name, weight in model.named_parameters()}
            save_file(gradients, folder / f"{kind}.safetensors")


def main(work: str, folder: str, *overrides: str) -> None:
    cfg, fabric = with_fabric(config.load(None, [f"work={work}", *SETTINGS, *overrides]))
    Path(folder).mkdir(parents=True, exist_ok=True)
    fabric.launch(functools.partial(gradient, cfg=cfg, folder=Path(folder)))
