"""plan: the batches of an epoch before any audio is read, from a work folder, from shards or from any Parquet."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voxstill.core.arguments import whole_number
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.result import NOT_IN_JSON, Result
from voxstill.data.batching import Ints
from voxstill.data.plan import EpochPlan, SamplingRate, plan
from voxstill.data.shard_index import open_index
from voxstill.pipeline.recipes import finished_shards
from voxstill.storage import tables
from voxstill.storage.store import Store

SLOTS = 8
"""Batches in a step where `plan.batches_per_step` is not set: 1, 2, 4 or 8 ranks then share the same global batches."""
_BINS = 12
_BAR = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """What is to be known of each utterance. `num_tokens`, `shard` and `times` are None where nothing says them."""

    durations_ms: Ints
    num_tokens: Ints | None = None
    shard: Ints | None = None
    sampling_rate: SamplingRate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult(Result):
    """The batches of one epoch: sizes, padding, imbalance of the ranks, what was dropped or repeated, and the plan."""

    steps: int
    utterances: int
    hours: float
    padding: float
    efficiency: float
    imbalance_mean: float
    imbalance_p99: float
    repeated: int
    dropped: Mapping[str, int]
    slots: int
    ranks: int
    epoch: int
    sha256: str
    plan: EpochPlan | None = field(default=None, compare=False, metadata=NOT_IN_JSON, repr=False)
    """None where the result was read from its JSON."""

    def to_text(self) -> str:
        """The lengths and the batches: a line for each stretch of lengths; without the plan the figures alone."""
        return Result.to_text(self) if self.plan is None else picture(self, self.plan)


def plan_(where: str, ranks: int, epoch: int, cfg: Config) -> PlanResult:
    """The batches of an epoch on so many ranks, and their figures.

    DataError where there is nothing to plan, ConfigError where the ranks do not divide `plan.batches_per_step`,
    or where `ranks` or `epoch` is no such number.
    """
    if isinstance(ranks, int) and ranks < 1:
        raise ConfigError(f"there cannot be {ranks} ranks", why="somebody must train", fix="give --ranks 1 or more")
    ranks, epoch = whole_number("ranks", ranks, 1), whole_number("epoch", epoch, 0)
    found = lengths(where, cfg)
    batches_per_step = (
        cfg.plan.batches_per_step if "batches_per_step" in cfg.plan.model_fields_set else math.lcm(SLOTS, ranks)
    )
    made = plan(
        found.durations_ms,
        found.num_tokens,
        cfg.plan.model_copy(update={"batches_per_step": batches_per_step}),
        seed=cfg.seed,
        epoch=epoch,
        shard_of=found.shard,
        sampling_rate=found.sampling_rate,
    )
    made.batches_of(0, 0, ranks)  # raises where ranks do not divide the batches of a step
    statistics: dict[str, Any] = {**made.statistics(ranks)}
    return PlanResult(**statistics, slots=batches_per_step, ranks=ranks, epoch=epoch, sha256=made.sha256(), plan=made)


def lengths(where: str, cfg: Config) -> Lengths:
    """Of the train split of a work folder's shards, of shards, or of Parquet files with a column `duration_ms`."""
    if where.endswith(".parquet"):
        folder, _, name = where.rpartition("/")
        return _of_parquet(Store(folder or "."), [name])
    store = Store(where)
    if store.exists(tables.SUCCESS):
        return _of_shards(store, "", cfg)
    keys = [entry.key for entry in store.list() if entry.key.endswith(".parquet")]
    alone = sorted(key for key in keys if "/" not in key)
    if alone:
        return _of_parquet(store, alone)
    if any(key.startswith("shards/") for key in keys):
        at = cfg.model_copy(update={"work": where})
        return _of_shards(store, f"shards/{finished_shards(at).recipe}", cfg)
    raise DataError(
        f"`{where}` has nothing to plan",
        why="it is no work folder with shards, no folder of shards and no folder of Parquet files",
        fix="run `voxstill shard`, or name a Parquet file with a column `duration_ms`",
    )


def _of_shards(store: Store, prefix: str, cfg: Config) -> Lengths:
    with tempfile.TemporaryDirectory() as folder:  # what is mapped from there stays until it is let go of
        corpus = open_index(store, prefix, Path(folder), splits=("train",), encode=None, encoder="")
        shard = corpus.shard.astype(np.int64)
        return Lengths(durations_ms=corpus.durations_ms, shard=shard, sampling_rate=corpus.sampling_rate(cfg.plan))


def _of_parquet(store: Store, keys: Sequence[str]) -> Lengths:
    """Read lengths from Parquet: a row without one is empty; each file is a shard, unless a column `shard` says."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    parts = []
    for number, key in enumerate(keys):
        try:
            file = pq.ParquetFile(io.BytesIO(store.read(key)))
            names = [name for name in ("duration_ms", "num_tokens", "shard") if name in file.schema_arrow.names]
            part = file.read(columns=names)
            if "duration_ms" not in names:
                raise DataError(
                    f"`{store.uri(key)}` has no column `duration_ms`",
                    why=f"its columns are {', '.join(file.schema_arrow.names)}",
                    fix="write the length of each utterance in milliseconds into such a column",
                )
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"`{store.uri(key)}` is not a Parquet file", why=str(error).splitlines()[0], fix="check the path"
            ) from None
        if "shard" not in names:
            part = part.append_column("shard", pa.array([str(number)] * len(part), pa.string()))
        parts.append(part.set_column(part.column_names.index("shard"), "shard", part["shard"].cast(pa.string())))
    whole = pa.concat_tables(parts, promote_options="default")

    def counts(name: str) -> Ints:
        filled = pc.fill_null(whole[name].cast(pa.float64()), 0.0)
        return np.asarray(filled, np.float64).astype(np.int64)

    coded = whole["shard"].combine_chunks().fill_null("").dictionary_encode()
    return Lengths(
        durations_ms=counts("duration_ms"),
        num_tokens=counts("num_tokens") if "num_tokens" in whole.column_names else None,
        shard=np.asarray(coded.indices, np.int64),
    )


def picture(result: PlanResult, made: EpochPlan) -> str:
    """The lengths and the batches as people read them: a line for each stretch of lengths."""
    lengths_ms, starts = made.augmented_ms(), made.bounds[:-1]
    sizes_B = np.diff(made.bounds)
    longest_B = np.maximum.reduceat(lengths_ms, starts)
    heard_B = np.add.reduceat(lengths_ms, starts)
    width_ms = _round(lengths_ms.max() / _BINS)
    bin_N, bin_B = (lengths_ms - 1) // width_ms, (longest_B - 1) // width_ms
    count_K = np.bincount(bin_N)
    dropped = ", ".join(f"{num:,} {name.replace('_', ' ')}" for name, num in result.dropped.items() if num)
    lines = [
        f"{result.utterances:,} utterances, {result.hours:,.1f} h, in {result.steps:,} steps of "
        f"{made.batches_per_step} batches on {result.ranks} ranks",
        f"dropped: {dropped or 'none'}; repeated: {result.repeated:,}",
        f"padding {result.padding:.2%}, imbalance {result.imbalance_mean:.3f} "
        f"(99 % of steps below {result.imbalance_p99:.3f}): {result.efficiency:.1%} of the devices' time "
        "hears speech",
        "",
        f"{'length, s':>12}  {'utterances':<{_BAR + 12}}{'batches':>8}  {'in a batch':>12}  {'padding':>7}",
    ]
    for k, count in enumerate(count_K.tolist()):
        ours_B = bin_B == k
        bar = "█" * max(round(_BAR * count / count_K.max()), count > 0)
        line = f"{_span(k, width_ms):>12}  {f'{bar} {count:,}':<{_BAR + 12}}{int(ours_B.sum()):>8,}"
        if ours_B.any():
            padded_ms = int((longest_B[ours_B] * sizes_B[ours_B]).sum())
            least, most = int(sizes_B[ours_B].min()), int(sizes_B[ours_B].max())
            among = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            line += f"  {among:>12}  {1 - int(heard_B[ours_B].sum()) / padded_ms:>7.2%}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _span(k: int, width_ms: int) -> str:
    decimals = 0 if width_ms % 1000 == 0 else 1 if width_ms % 100 == 0 else 2
    return f"{k * width_ms / 1000:.{decimals}f} to {(k + 1) * width_ms / 1000:.{decimals}f}"


def _round(width_ms: float) -> int:
    """Round up to 1, 2, 5, 10, 20, ... tens of milliseconds."""
    step = 10
    while True:
        for factor in (1, 2, 5):
            if factor * step >= width_ms:
                return factor * step
        step *= 10
