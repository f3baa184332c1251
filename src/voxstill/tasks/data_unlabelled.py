"""The shards of one corpus as a pre-training sees them: audio alone, long utterances a stretch at a time."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np

from voxstill.core import pcm
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.data import shard_index
from voxstill.data.kept_plan import kept_plan
from voxstill.data.plan import Crops, EpochPlan, SamplingRate, Tempos, plan
from voxstill.nn.frontends import Frontend
from voxstill.storage.store import Store
from voxstill.tasks.data import Corpus
from voxstill.tasks.pretrain import Masks

_REASONS = {"empty": "too_short_to_mask"}
"""What the plan calls otherwise."""
_SHORTER_MASKS = "lower `pretrain.mask_ms` or `pretrain.min_masks`, or index the recordings as longer utterances"


class Unlabelled(Corpus):
    """A `Data` without texts. Its plans count hidden frames where others count tokens; what is too short to hide
    something of is `too_short_to_mask`."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        folder: Path,
        frontend: Frontend,
        masks: Masks,
        cfg: Config,
        *,
        rank: int,
        ranks: int,
    ) -> None:
        super().__init__(store, prefix, folder, None, str, frontend, cfg, rank=rank, ranks=ranks)
        self._masks = masks

    def _planned(
        self,
        part: shard_index.ShardIndex,
        epoch: int,
        ascending: bool,
        name: str,
        *,
        batches_per_step: int,
        sampling_rate: SamplingRate | None = None,
        tempo_N: Tempos | None = None,
    ) -> EpochPlan:
        cfg = self._cfg
        longest = pcm.ms_to_samples(cfg.pretrain.crop_ms)
        crops = Crops.draw(part.num_samples, longest, seed=cfg.seed, epoch=epoch)
        cropped_N = crops.lengths(part.num_samples)
        num_masked_N = self._masks.num_masked(cropped_N)
        if len(num_masked_N) and not num_masked_N.any():
            raise DataError(
                "no utterance is long enough for pre-training",
                code="nothing-to-train-on",
                why=f"all {len(num_masked_N):,} are too short to mask {cfg.pretrain.min_masks} spans and leave one",
                fix=_SHORTER_MASKS,
            )
        make = functools.partial(
            plan,
            np.minimum(part.durations_ms, cfg.pretrain.crop_ms),
            num_masked_N,
            cfg.plan.model_copy(update={"batches_per_step": batches_per_step, "budget_tokens": None}),
            seed=cfg.seed,
            epoch=epoch,
            num_frames=self._frontend.num_frames(cropped_N),
            shard_of=part.shard,
            sampling_rate=sampling_rate,
            ascending=ascending,
        )
        epoch_plan = kept_plan(self._folder / name, make)
        dropped = {_REASONS.get(name, name): num for name, num in epoch_plan.dropped.items()}
        return dataclasses.replace(epoch_plan, crops=crops, dropped=dropped)
