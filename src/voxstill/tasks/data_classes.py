"""The shards of one corpus as a classifier learns from them: one class or speaker for each utterance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from voxstill.core.config import Config, Train
from voxstill.core.monitor import log
from voxstill.core.records import Word
from voxstill.data import shard_index
from voxstill.data.batching import Ints
from voxstill.data.plan import EpochPlan, SamplingRate, Tempos
from voxstill.data.shard_index import LossWeights
from voxstill.nn.frontends import Frontend
from voxstill.storage.store import Store
from voxstill.tasks.data import Corpus, Normal
from voxstill.text.tokenizer import Tokenizer

_REASONS = {"empty": "without_a_class", "too_short_for_ctc": "too_short"}
"""What the plan calls otherwise."""


class LabelEncoder:
    """A `Tokenizer` of classes: each is one token, its place among the names; what is not a name has none."""

    unit = "class"

    def __init__(self, names: Sequence[str]) -> None:
        self.pieces = names
        self._ids = {name: i for i, name in enumerate(names)}

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for those with the same names."""
        return "classes", *self.pieces

    def encode(self, text: str, words: Sequence[Word] = ()) -> tuple[list[int], list[tuple[int, int]]]:
        """One token without times, or none."""
        return ([self._ids[text]], [(-1, -1)]) if text in self._ids else ([], [])

    def save(self, folder: Path, features: Mapping[str, object], kind: str) -> None:
        """The names are in the `config.json` of the model."""


class Classified(Corpus):
    """A `Data` whose utterances have one of the `names` each, by a `column` of the sidecars.

    What has none is left out of the training and counted; so is what the dev split has of classes that are not in
    training. Where speakers are distinguished and those of the dev split are new, they are compared with each other.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        folder: Path,
        names: Sequence[str],
        normalize: Normal,
        frontend: Frontend,
        cfg: Config,
        *,
        rank: int,
        ranks: int,
        column: str,
    ) -> None:
        encoder = LabelEncoder(names)
        super().__init__(
            store, prefix, folder, encoder, normalize, frontend, cfg, rank=rank, ranks=ranks, column=column
        )
        strange = {name for name in self._dev_texts.values() if name} - set(names)
        self.verifies = cfg.student.task == "speakers" and bool(strange)
        if rank == 0:  # one of them logs what all leave out
            self._tell(strange, column)

    def _tell(self, strange: set[str], column: str) -> None:
        if without := int((self._train.num_tokens == 0).sum()):
            log.warning("train: %d of %d utterances have no %s: left out", without, len(self._train), column)
        if strange and not self.verifies:
            num = sum(name in strange for name in self._dev_texts.values())
            shown = ", ".join(sorted(strange)[:5])
            log.warning(
                "train: %d utterances of the dev split are of classes that are not in training (%s): left out",
                num,
                shown,
            )
        if self.verifies and len(set(self._dev_texts.values()) - {""}) < 2:
            log.warning("train: the dev split has only one speaker, who is not in training: validation needs two")

    def _loss_weights(self, cfg: Train, tokenizer: Tokenizer | None) -> LossWeights:
        weights = super()._loss_weights(cfg, tokenizer)
        names = () if tokenizer is None else tokenizer.pieces
        return dataclasses.replace(weights, classes=cfg.class_weights, class_names=names)

    def _counted(self, part: shard_index.ShardIndex) -> Ints:
        # a new speaker has no token, but its audio is used nevertheless
        return np.ones_like(part.num_tokens) if part is self._dev and self.verifies else part.num_tokens

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
        epoch_plan = super()._planned(
            part,
            epoch,
            ascending,
            name,
            batches_per_step=batches_per_step,
            sampling_rate=sampling_rate,
            tempo_N=tempo_N,
        )
        dropped = {_REASONS.get(name, name): num for name, num in epoch_plan.dropped.items()}
        return dataclasses.replace(epoch_plan, dropped=dropped)
