"""plan: the batches of an epoch before any audio is read, from a work folder, from shards or from any Parquet."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from voxstill.core import config, scratch
from voxstill.core.arguments import whole_number
from voxstill.core.config import Config, Plan
from voxstill.core.errors import ConfigError, DataError, first_line
from voxstill.core.result import NOT_IN_JSON, Result
from voxstill.data.batching import Ints
from voxstill.data.plan import EpochPlan, SamplingRate, plan
from voxstill.data.shard_index import open_index
from voxstill.pipeline.mixture import labelled_shards, shards_to_listen_to
from voxstill.pipeline.pretrain import check_crop
from voxstill.storage import shard_format, tables, workdir
from voxstill.storage.figures import ShardFigures
from voxstill.storage.redaction import redact_uri
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks import pretraining, registry
from voxstill.tasks.data import Corpus
from voxstill.tasks.definition import PlannedTask
from voxstill.training import parallel
from voxstill.training.budget import Budget
from voxstill.training.data_source import Data
from voxstill.training.experiment import dataset_hours

if TYPE_CHECKING:
    import pyarrow as pa

SLOTS = 8
"""Batches in a step of Parquet files where `plan.batches_per_step` is not set: 1, 2, 4 or 8 ranks then share the same
global batches."""
_LENGTHS_ALONE = (
    "lengths as recorded: training also changes the tempo, counts tokens of its own vocabulary, and drops what its "
    "student cannot learn"
)
_MOST = 2**31 - 1
"""No utterance has more milliseconds, which are 24 days, or more tokens."""
_COLUMN_OF = {
    "duration_ms": "the length of each utterance in milliseconds, from 0 to 2,147,483,647",
    "num_tokens": "the number of tokens of each utterance, from 0 to 2,147,483,647, or leave the column out",
    "shard": "the name of the shard of each utterance as text, or leave the column out",
}
"""What each column that is read of a Parquet file holds."""
_BINS = 12
_BAR = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """What is to be known of each utterance. `num_tokens`, `shard` and `times` are None if nothing says them."""

    durations_ms: Ints
    num_tokens: Ints | None = None
    shard: Ints | None = None
    sampling_rate: SamplingRate | None = None


@dataclass(frozen=True, slots=True)
class _Shards:
    """The shards below a prefix."""

    store: Store
    prefix: str
    unlabelled: bool


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
    notes: tuple[str, ...] = ()
    """Where a training may have other batches, and why."""
    hours_by_dataset: Mapping[str, float] | None = None
    """Of the epoch, with repetitions, where there are several data sets."""
    plan: EpochPlan | None = field(default=None, compare=False, metadata=NOT_IN_JSON, repr=False)
    """None if the result was read from its JSON."""

    def to_text(self) -> str:
        """The lengths and the batches: a line for each stretch of lengths; without the plan the figures alone."""
        return Result.to_text(self) if self.plan is None else picture(self, self.plan)


def plan_(where: str, ranks: int | None, epoch: int, cfg: Config, *, pretrain: bool = False) -> PlanResult:
    """The batches of an epoch on so many ranks, and their figures.

    Those of a work folder or of shards are the ones that `voxstill train` makes of them, or `voxstill pretrain`, on
    `train.devices` ranks where their number is None; of the first epoch, the hash is the `plan_hash` of the experiment.
    DataError if there is nothing to plan, ConfigError if the ranks do not divide `plan.batches_per_step`,
    or where `ranks` or `epoch` is no such number.
    """
    if isinstance(ranks, int) and ranks < 1:
        raise ConfigError(
            f"{ranks} ranks are impossible",
            code="option-value",
            why="at least one rank is needed",
            fix="give --ranks 1 or more",
        )
    ranks, epoch = None if ranks is None else whole_number("ranks", ranks, 1), whole_number("epoch", epoch, 0)
    source = _source(where, cfg, pretrain)
    if isinstance(source, _Shards):
        ranks = ranks or cfg.train.devices
        on_ranks = parallel.with_batches(ranks, cfg)
        options = _with_window(on_ranks.plan)
        epoch_plan, notes, hours = _of_shards(source, on_ranks.model_copy(update={"plan": options}), epoch, pretrain)
    else:
        ranks = ranks or 1
        is_set = "batches_per_step" in cfg.plan.model_fields_set
        batches_per_step = cfg.plan.batches_per_step if is_set else math.lcm(SLOTS, ranks)
        options = _with_window(cfg.plan.model_copy(update={"batches_per_step": batches_per_step}))
        epoch_plan, notes, hours = _of_lengths(source, options, cfg.seed, epoch), (_LENGTHS_ALONE,), {}
    epoch_plan.batches_of(0, 0, ranks)  # raises where ranks do not divide the batches of a step
    statistics: dict[str, Any] = {**epoch_plan.statistics(ranks)}
    return PlanResult(
        **statistics,
        slots=epoch_plan.batches_per_step,
        ranks=ranks,
        epoch=epoch,
        sha256=epoch_plan.sha256(),
        notes=notes,
        hours_by_dataset=hours if len(hours) > 1 else None,
        plan=epoch_plan,
    )


def _with_window(options: Plan) -> Plan:
    return options.model_copy(update={"window": config.default_window(options)})


def _source(where: str, cfg: Config, pretrain: bool) -> Lengths | _Shards:
    """The shards of a work folder, other shards, or the lengths that Parquet files say."""
    if where.endswith(".parquet"):
        folder, _, name = where.rpartition("/")
        return _of_parquet(Store(folder or "."), [name])
    store = Store(where)
    if store.exists(tables.SUCCESS):
        return _Shards(store, "", shard_format.figures(store, "").unlabelled or False)
    keys = [entry.key for entry in store.list() if entry.key.endswith(".parquet")]
    alone = sorted(key for key in keys if "/" not in key)
    if alone:
        return _of_parquet(store, alone)
    if cfg.train.corpora or any(key.startswith("shards/") for key in keys):
        at = cfg.model_copy(update={"work": where})
        needs_labels = not pretrain and registry.find(cfg.student.task).needs_labels(cfg)
        if not (needs_labels or cfg.train.corpora or workdir.finished_recipes(store, "shards")):
            workdir.finished(store, ShardFigures)  # raises: a training would write new ones, a plan writes nothing
        figures = labelled_shards(at) if needs_labels else shards_to_listen_to(at)
        return _Shards(store, workdir.prefix(figures.kind, figures.recipe), figures.unlabelled or False)
    raise DataError(
        f"`{where}` has nothing to plan",
        code="no-work-folder",
        why="it is neither a work folder with shards, nor a folder of shards or of Parquet files",
        fix="run `voxstill shard`, or give a Parquet file with a column `duration_ms`",
    )


def _of_shards(
    shards: _Shards, cfg: Config, epoch: int, pretrain: bool
) -> tuple[EpochPlan, tuple[str, ...], Mapping[str, float]]:
    """The epoch as a training of this configuration has it, what it may do otherwise, and its hours by data set."""
    store, prefix = shards.store, shards.prefix
    task = None if pretrain else registry.find(cfg.student.task)
    if task is None:
        check_crop(cfg)
        open_corpus: Callable[[Config, RunDir, Store, str], Data] = pretraining.corpus
    elif not isinstance(task, PlannedTask):
        return _of_lengths(_lengths(shards, cfg), cfg.plan, cfg.seed, epoch), (_LENGTHS_ALONE,), {}
    elif shards.unlabelled and task.needs_labels(cfg):
        note = "the shards have no labels: the plan depends on the lengths only"
        return _of_lengths(_lengths(shards, cfg), cfg.plan, cfg.seed, epoch), (note,), {}
    else:
        open_corpus = task.corpus
    with scratch.folder() as folder:  # what is mapped from there stays until it is released
        data = open_corpus(cfg, RunDir(folder), store, prefix)
        first = data.plan(0, ascending=True)
        hours = data.hours_by_dataset(first) if isinstance(data, Corpus) else {}
        if epoch == 0:
            return first, (), hours
        budget, notes = Budget.of(cfg.train, first.steps), []
        if budget.steps is None or budget.seconds is not None:
            notes.append(
                f"the order of the steps of epoch {epoch} depends on the training time, or on options that are not set"
            )
        progress = 1.0 if budget.steps is None else min(epoch * first.steps / budget.steps, 1.0)
        epoch_plan = data.plan(epoch, ascending=progress < cfg.train.ascending_share)
        hours = data.hours_by_dataset(epoch_plan) if isinstance(data, Corpus) else {}
        return epoch_plan, tuple(notes), hours


def _of_lengths(lengths: Lengths, options: Plan, seed: int, epoch: int) -> EpochPlan:
    return plan(
        lengths.durations_ms,
        lengths.num_tokens,
        options,
        seed=seed,
        epoch=epoch,
        shard_of=lengths.shard,
        sampling_rate=lengths.sampling_rate,
    )


def _lengths(shards: _Shards, cfg: Config) -> Lengths:
    """The lengths of the train split."""
    with scratch.folder() as folder:  # what is mapped from there stays until it is released
        corpus = open_index(shards.store, shards.prefix, folder, splits=("train",), encode=None, encoder="")
        shard = corpus.shard.astype(np.int64)
        return Lengths(durations_ms=corpus.durations_ms, shard=shard, sampling_rate=corpus.sampling_rate(cfg.plan))


def _of_parquet(store: Store, keys: Sequence[str]) -> Lengths:
    """Read lengths from Parquet: a row without one is empty; each file is a shard, unless a column `shard` says."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [_lengths_of(store, key, str(number)) for number, key in enumerate(keys)]
    whole = pa.concat_tables(parts, promote_options="default")
    coded = whole["shard"].combine_chunks().fill_null("").dictionary_encode()
    has_tokens = "num_tokens" in whole.column_names
    return Lengths(
        durations_ms=np.asarray(whole["duration_ms"], np.int64),
        num_tokens=np.asarray(pc.fill_null(whole["num_tokens"], 0), np.int64) if has_tokens else None,
        shard=np.asarray(coded.indices, np.int64),
    )


def _lengths_of(store: Store, key: str, shard: str) -> pa.Table:
    """The columns of one file, of equal types in all files; a file without a column `shard` is one of this name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    uri = redact_uri(store.uri(key))
    try:
        file = pq.ParquetFile(io.BytesIO(store.read(key)), page_checksum_verification=True)
        names = file.schema_arrow.names
        part = file.read(columns=[name for name in _COLUMN_OF if name in names], use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"`{uri}` is not a Parquet file", code="unreadable-file", why=first_line(error), fix="check the path"
        ) from None
    if "duration_ms" not in names:
        raise DataError(
            f"`{uri}` has no column `duration_ms`",
            code="field-missing",
            why=f"its columns are {', '.join(names)}",
            fix="write the length of each utterance in milliseconds into such a column",
        )
    columns = {name: _counts(part, name, uri) for name in ("duration_ms", "num_tokens") if name in names}
    shard_names = _cast(part, "shard", pa.string(), uri) if "shard" in names else pa.array([shard] * len(part))
    return pa.table({**columns, "shard": shard_names})


def _counts(part: pa.Table, name: str, uri: str) -> Ints:
    """A column of whole numbers, 0 where a row has none; DataError where one is negative, not finite or too large."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counts_N = np.asarray(pc.fill_null(_cast(part, name, pa.float64(), uri), 0.0), np.float64)
    is_wrong_N = ~((counts_N >= 0) & (counts_N <= _MOST))
    if is_wrong_N.any():
        row = int(is_wrong_N.argmax())
        raise _wrong_column(name, uri, f"row {row + 1} has {counts_N[row]:g}")
    return counts_N.astype(np.int64)


def _cast(part: pa.Table, name: str, kind: pa.DataType, uri: str) -> pa.ChunkedArray:
    """A column as one of another type; DataError where its values are none, or where it is there twice."""
    import pyarrow as pa

    try:
        return part[name].cast(kind, safe=False)
    except (pa.ArrowException, KeyError, UnicodeDecodeError) as error:
        raise _wrong_column(name, uri, first_line(error)) from None


def _wrong_column(name: str, uri: str, why: str) -> DataError:
    return DataError(
        f"the column `{name}` of `{uri}` cannot be read", code="bad-line", why=why, fix=f"write {_COLUMN_OF[name]}"
    )


def picture(result: PlanResult, epoch_plan: EpochPlan) -> str:
    """The lengths and the batches as people read them: a line for each stretch of lengths."""
    lengths_ms, sizes_B = epoch_plan.augmented_ms(), np.diff(epoch_plan.bounds)
    longest_B, heard_B = epoch_plan.longest_ms_by_batch, epoch_plan.audio_ms_by_batch
    width_ms = _round(lengths_ms.max() / _BINS)
    bin_N, bin_B = (lengths_ms - 1) // width_ms, (longest_B - 1) // width_ms
    count_K = np.bincount(bin_N)
    dropped = ", ".join(f"{num:,} {name.replace('_', ' ')}" for name, num in result.dropped.items() if num)
    lines = [
        f"{result.utterances:,} utterances, {result.hours:,.1f} h, in {result.steps:,} steps of "
        f"{epoch_plan.batches_per_step} batches on {result.ranks} ranks",
        f"dropped: {dropped or 'none'}; repeated: {result.repeated:,}",
        *([f"data sets: {dataset_hours(result.hours_by_dataset)}"] if result.hours_by_dataset else ()),
        f"padding {result.padding:.2%}, imbalance {result.imbalance_mean:.3f} "
        f"(99 % of steps below {result.imbalance_p99:.3f}): {result.efficiency:.1%} of the devices' time is "
        "spent on speech",
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
    lines += [f"note: {note}" for note in result.notes]
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
