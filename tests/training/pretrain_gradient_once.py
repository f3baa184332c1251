"""The gradient of one pre-training step of uneven batches, left in a file by rank 0 with what each batch was.

Arguments: the work folder, a folder of its own, then `key=value` overrides.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from training.train_once import with_fabric
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.nn import checkpoints, self_supervised
from voxstill.storage.store import Store
from voxstill.tasks.data_unlabelled import Unlabelled
from voxstill.tasks.pretrain import ContrastiveTask, MaskedInput
from voxstill.training import optim
from voxstill.training.guard import MemoryGuard
from voxstill.training.step import PreparedStep, all_sums, one_step, sum_losses
from voxstill.training.task import StepContext, make_generator
from voxstill.training.waits import Stopwatch

SIZES = (1, 4, 2, 3)
SETTINGS = (
    "train={steps: 1, clip_norm: 1e9, loader_workers: 0}",
    "plan={budget_ms: 60000, batches_per_step: 4}",
    "pretrain={size: tiny, crop_ms: 1000, mask_ms: 100, negatives: 20, dropout: 0.0, layer_drop: 0.0,"
    " feature_gradient: 1.0}",
)


def gradient(fabric: Any, cfg: Config, folder: Path) -> None:
    model = self_supervised.wav2vec2(cfg.pretrain, cfg.seed)
    frontend = checkpoints.make_frontend(model.config, cfg.augment)
    task = ContrastiveTask(cfg.pretrain, frontend, self_supervised.codebook(model))
    data = Unlabelled(
        *(Store(cfg.work), "shards/r", folder, frontend, task.masks, cfg),
        rank=fabric.global_rank,
        ranks=fabric.world_size,
    )
    plan = data.plan(0, ascending=True)
    bounds = np.cumsum([0, *SIZES])
    plan = dataclasses.replace(plan, bounds=bounds)
    rows = plan.order[: bounds[-1]]
    hidden = int(task.masks.num_masked(np.minimum(data._train.num_samples[rows], 16_000)).sum())
    context = StepContext(0.0, hidden, 1000)
    batches = next(iter(data.steps(plan, 0, lambda _, batches: batches)))
    wrapped, _ = fabric.setup(model, optim.make_optimizer(model, cfg.train))
    # each batch is drawn for as if one rank had them all, so that one and two ranks hide the same
    per_rank = len(SIZES) // fabric.world_size
    inputs = [
        task.prepare(batch, 0.0, make_generator(fabric.device, cfg.seed, 0, fabric.global_rank * per_rank + i, 0))
        for i, batch in enumerate(batches)
    ]
    prepared = PreparedStep(batches, list(inputs))
    losses = one_step(
        fabric,
        wrapped,
        task,
        prepared,
        context,
        seed=cfg.seed,
        step=0,
        memory=MemoryGuard(cfg.plan.budget_ms),
        own=Stopwatch(),
    )
    loss, figures = sum_losses(losses)
    sums = all_sums(fabric, {"loss": loss, **figures})
    if fabric.global_rank == 0:
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        save_file({**gradients, "loss": torch.tensor(sums["loss"])}, folder / "gradient.safetensors")
    parts = {}
    for i, masked_input in enumerate(inputs):
        assert isinstance(masked_input, MaskedInput)
        negative_BMK, noise_BMGV = masked_input.drawn
        parts |= {
            f"{i}.samples": masked_input.inputs.contiguous(),
            f"{i}.len": masked_input.len_B,
            f"{i}.hidden": masked_input.hidden_BF,
            f"{i}.place": masked_input.place_BM.contiguous(),
            f"{i}.weight": masked_input.weight_BM,
            f"{i}.negatives": negative_BMK.contiguous(),
            f"{i}.noise": noise_BMGV.contiguous(),
        }
    save_file(parts, folder / f"inputs-{fabric.global_rank}.safetensors")


def main(work: str, folder: str, *overrides: str) -> None:
    cfg, fabric = with_fabric(config.load(None, [f"work={work}", *SETTINGS, *overrides]))
    Path(folder).mkdir(parents=True, exist_ok=True)
    fabric.launch(functools.partial(gradient, cfg=cfg, folder=Path(folder)))
