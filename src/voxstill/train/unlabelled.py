"""The shards of one corpus as a pre-training sees them: audio alone, long utterances a stretch at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from voxstill.batches import corpus
from voxstill.batches.load import Batches, Loader
from voxstill.batches.plan import Crops, EpochPlan, plan
from voxstill.config import Config
from voxstill.errors import DataError
from voxstill.nn.hearing import Hearing
from voxstill.records import RATE_HZ
from voxstill.store import Store
from voxstill.tasks.pretrain import Masks
from voxstill.tasks.task import Share
from voxstill.train.data import Corpus
from voxstill.train.loop import chance, to_device


class Unlabelled(Corpus):
    """A `Data` without texts. Its plans count hidden frames where others count tokens; what is too short to hide
    something of is `empty`."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        folder: Path,
        hearing: Hearing,
        masks: Masks,
        cfg: Config,
        *,
        rank: int,
        ranks: int,
    ) -> None:
        super().__init__(store, prefix, folder, None, str, hearing, cfg, rank=rank, ranks=ranks)
        self._masks = masks

    def dev_error(self, task: Any, model: nn.Module, beat: Callable[[], None]) -> dict[str, float] | None:
        """The task's measures on the dev split, hidden in the same places each time; None where there is none."""
        if not len(self._dev):
            return None
        try:
            whole = self._planned(self._dev, 0, True, slots=1)
        except DataError:  # all of it is too short, or too long for a batch
            return None
        device = next(model.parameters()).device
        share = Share(1.0, int(whole.step_tokens.sum()), int(whole.step_frames.sum()))
        sums = dict.fromkeys(task.measures, 0.0)
        for k, batches in enumerate(Loader(Batches(self._dev, whole), workers=0)):
            beat()
            for batch in batches:
                with torch.no_grad():
                    heard = task.heard(to_device(batch, device), 1.0, chance(device, self._cfg.seed, k, 0, 0))
                    loss = task.loss(model, heard, share)
                for name, value in {"loss": loss.value, **loss.figures}.items():
                    if name in sums:
                        sums[name] += float(value)
        return sums

    def _planned(self, part: corpus.Corpus, epoch: int, ascending: bool, *, slots: int, **_: Any) -> EpochPlan:
        cfg = self._cfg
        longest = cfg.pretrain.crop_ms * RATE_HZ // 1000
        crops = Crops.drawn(part.num_samples, longest, seed=cfg.seed, epoch=epoch)
        heard_N = crops.lengths(part.num_samples)
        made = plan(
            np.minimum(part.durations_ms, cfg.pretrain.crop_ms),
            self._masks.frames(heard_N),
            cfg.plan.model_copy(update={"batches_per_step": slots, "budget_tokens": None}),
            seed=cfg.seed,
            epoch=epoch,
            num_frames=self._hearing.frames(heard_N),
            shard_of=part.shard,
            times=self._times if part is self._train else None,
            ascending=ascending,
        )
        return dataclasses.replace(made, crops=crops)
