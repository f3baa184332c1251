"""The shards of one corpus as the training loop sees them: plans, steps, and the dev split with its references."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from voxstill.core.config import Config, Train
from voxstill.core.errors import DataError
from voxstill.core.records import Batch, Split, Word, fingerprint
from voxstill.data import shard_index
from voxstill.data.batching import Ints
from voxstill.data.blocks import by_blocks
from voxstill.data.bottleneck import LoaderTimes
from voxstill.data.kept_plan import kept_plan
from voxstill.data.loader import Batches, Loader
from voxstill.data.plan import EpochPlan, SamplingRate, Tempos, plan, tempos
from voxstill.data.prefetch import CacheDir
from voxstill.data.shard_index import NO_WEIGHTS, LossWeights
from voxstill.nn.frontends import Frontend
from voxstill.storage import shard_format
from voxstill.storage.cache import writable_folder
from voxstill.storage.store import Store
from voxstill.text.tokenizer import Tokenizer
from voxstill.training.task import DevBatch, StepContext

_FIRST_PLAN, _PLAN, _DEV_PLAN = "first.plan", "epoch.plan", "dev.plan"
"""Files of plans that are kept. A training that continues begins with the first one: it tells the steps of an epoch."""
Normal = Callable[[str], str]
Prepared = TypeVar("Prepared")


class Corpus:
    """A `Data`: the train split planned by epochs, the dev split in one fixed order.

    Their indexes and plans are in `folder`. Without a `tokenizer` no text is learnt. With one it is what a `column` of
    the sidecars says.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        folder: Path,
        tokenizer: Tokenizer | None,
        normalize: Normal,
        frontend: Frontend,
        cfg: Config,
        *,
        rank: int,
        ranks: int,
        column: str = "text",
    ) -> None:
        self._frontend = frontend
        self._folder, self._cfg, self._rank, self._ranks = folder, cfg, rank, ranks
        self._replaced, self._spent = 0, LoaderTimes()
        name = f"tars-{fingerprint(store.root, prefix, str(folder.absolute()))}-{rank}"  # of no other experiment

        def encode(text: str, spoken: Sequence[Word]) -> tuple[list[int], list[tuple[int, int]]]:
            assert tokenizer is not None
            same = [Word(text=normalize(word.text), start_ms=word.start_ms, end_ms=word.end_ms) for word in spoken]
            return tokenizer.encode(normalize(text), same)

        encoder = fingerprint(*(tokenizer.key if tokenizer else ()), cfg.student.text)
        of_split: dict[Split, LossWeights] = {"train": self._loss_weights(cfg.train, tokenizer), "dev": NO_WEIGHTS}
        self._train, self._dev = (
            shard_index.open_index(
                store,
                prefix,
                folder,
                splits=(split,),
                encode=encode if tokenizer else None,
                encoder=encoder,
                column=column,
                weights=weights,
            )
            for split, weights in of_split.items()
        )
        cache = cfg.cache.folder if self._train.is_far or self._dev.is_far else None
        cache_root = folder if cache is None else writable_folder(cache)
        self._cache_dir = CacheDir(cache_root / name, int(cfg.cache.max_gb * 1_000_000_000 / ranks))
        if len(self._train) and not self._train.weight.any():
            raise DataError(
                "there is nothing to learn: the loss of every utterance has weight 0",
                code="nothing-to-train-on",
                why="the weights come from the shards, `train.dataset_weights` and similar options",
                fix="give some utterances a weight above 0",
            )
        self._sampling_rate = self._train.sampling_rate(cfg.plan)
        self._dev_texts = {self._dev.id_of(row): normalize(self._dev.text_of(row)) for row in range(len(self._dev))}
        self._loader: Loader | None = None
        self._workers = cfg.train.loader_workers
        self._last: tuple[tuple[int, bool], EpochPlan] | None = None

    @staticmethod
    def texts(store: Store, prefix: str, split: Split, normalize: Normal, column: str = "text") -> Iterator[str]:
        """The labels of a split, or what another column says, normalized; of those that have one."""
        for sidecar in shard_format.sidecars(store, prefix, (split,)):
            yield from map(normalize, sidecar[column].drop_null().to_pylist())

    def plan(self, epoch: int, *, ascending: bool) -> EpochPlan:
        """The batches of an epoch, each utterance at its tempo; what CTC cannot learn is dropped and counted.

        The last plan is held: who asks for it again waits for nothing.
        """
        part, cfg, key = self._train, self._cfg, (epoch, ascending)
        if self._last is None or self._last[0] != key:
            self._last = None  # room for the next one
            tempo_N = self._tempos(epoch) if cfg.augment.tempo else None
            epoch_plan = self._planned(
                part,
                epoch,
                ascending,
                _FIRST_PLAN if key == (0, True) else _PLAN,
                batches_per_step=cfg.plan.batches_per_step,
                sampling_rate=self._sampling_rate,
                tempo_N=tempo_N,
            )
            self._last = key, epoch_plan
        return self._last[1]

    def hours_by_dataset(self, plan: EpochPlan) -> dict[str, float]:
        """Hours of each data set in an epoch, with repetitions."""
        return self._train.hours_by_dataset(plan)

    def steps(
        self, plan: EpochPlan, first: int, make: Callable[[int, list[Batch]], Prepared], workers: int | None = None
    ) -> Iterator[Prepared]:
        """What `make` makes of this rank's batches of each step from `first` on, ahead of time, by so many workers."""
        self._close()
        self._workers = self._workers if workers is None else workers
        batches = Batches(self._train, plan, rank=self._rank, ranks=self._ranks, cache_dir=self._cache_dir)
        self._loader = Loader(batches, first=first, workers=self._workers, make=make)
        return iter(self._loader)

    @property
    def is_remote(self) -> bool:
        """Whether the shards lie in a bucket."""
        return self._train.is_far

    def spent(self) -> LoaderTimes:
        """What reading and preparing the batches of the steps so far took."""
        return self._spent + self._loader.spent if self._loader else self._spent

    def replaced(self) -> int:
        """Utterances replaced by a neighbour so far."""
        return self._replaced + (self._loader.replaced if self._loader else 0)

    def dev_batches(self, beat: Callable[[], None]) -> Iterator[DevBatch]:
        """Yield the batches of the dev split with their references; none where nothing fits into a batch."""
        if not len(self._dev):
            return
        try:
            whole = self._planned(self._dev, 0, True, _DEV_PLAN, batches_per_step=1)
        except DataError:  # none of it fits into a batch
            return
        context = StepContext.of_plan(whole)
        for batches in Loader(Batches(self._dev, whole), workers=0):
            beat()
            for batch in batches:
                yield DevBatch(batch, tuple(self._dev_texts[id_] for id_ in batch.ids), context)

    def finish(self) -> None:
        """Remove the tars that were fetched ahead."""
        self._close()
        shutil.rmtree(self._cache_dir.folder, ignore_errors=True)

    def _tempos(self, epoch: int) -> Tempos:
        """A tempo for each utterance. What would not fit into a batch, into the longest input of the student, or into
        CTC keeps its own, so that each epoch has the same utterances."""
        part, cfg, frontend = self._train, self._cfg, self._frontend
        tempo_N = tempos(len(part), cfg.augment.tempo, seed=cfg.seed, epoch=epoch)
        max_duration_ms = min(cfg.plan.budget_ms, frontend.max_duration_ms or cfg.plan.budget_ms)

        def fitting(
            tempo_N: Tempos, durations_ms: Ints, num_samples_N: Ints, num_tokens_N: Ints, equal_neighbours_N: Ints
        ) -> Tempos:
            fits_N = np.ceil(durations_ms * tempo_N) <= max_duration_ms
            if frontend.is_frame_synchronous:
                needed_N = num_tokens_N + equal_neighbours_N
                fits_N &= frontend.num_frames(num_samples_N, tempo_N) >= needed_N
                fits_N &= frontend.num_frames(num_samples_N) >= needed_N
            return np.where(fits_N, tempo_N, np.float32(1))

        columns = tempo_N, part.durations_ms, part.num_samples, part.num_tokens, part.equal_neighbours
        return by_blocks(fitting, np.float32, *columns)

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
        frontend, cfg = self._frontend, self._cfg.plan.model_copy(update={"batches_per_step": batches_per_step})
        if frontend.max_duration_ms is not None:  # each utterance takes as much room as the longest
            most = max(cfg.budget_ms // frontend.max_duration_ms, 1)
            cfg = cfg.model_copy(update={"max_utterances": min(cfg.max_utterances, most)})
        counted = (part.num_samples,) if tempo_N is None else (part.num_samples, tempo_N)
        make = functools.partial(
            plan,
            part.durations_ms,
            self._counted(part),
            cfg,
            seed=self._cfg.seed,
            epoch=epoch,
            num_frames=by_blocks(frontend.num_frames, np.int32, *counted),
            max_duration_ms=frontend.max_duration_ms,
            equal_neighbours=part.equal_neighbours,
            shard_of=part.shard,
            sampling_rate=sampling_rate,
            tempo_N=tempo_N,
            ascending=ascending,
            is_frame_synchronous=frontend.is_frame_synchronous,
        )
        return kept_plan(self._folder / name, make)

    def _loss_weights(self, cfg: Train, tokenizer: Tokenizer | None) -> LossWeights:
        """How much the loss of each utterance of the train split counts."""
        return LossWeights(dialects=cfg.dialect_weights, datasets=cfg.dataset_weights)

    def _counted(self, part: shard_index.ShardIndex) -> Ints:
        """Tokens of each utterance; what has none is left out."""
        return part.num_tokens

    def _close(self) -> None:
        if self._loader is not None:
            self._replaced += self._loader.replaced
            self._spent += self._loader.spent
            self._loader = None
