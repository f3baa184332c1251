"""All batches of an epoch before it starts: every utterance once, every rank as many steps, none longer than its peers.

A step has a fixed number of batches, and ranks share them evenly: the global batches, and so the training, are the
same on any number of ranks, no rank waits for one with more steps, and the token count of a step is known before it is
read. `voxstill.data.batching` cuts windows of utterances into steps. Pure numpy: no I/O, no torch.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Plan
from voxstill.core.errors import ConfigError, DataError
from voxstill.data import batching
from voxstill.data.batching import Ints, Rows
from voxstill.data.blocks import Counts, blocks, by_blocks, narrow

SamplingRate = NDArray[np.float64]
Tempos = NDArray[np.float32]
_TEMPOS, _CROPS = 1, 2  # keys that make their random streams independent of the epoch's


@dataclass(frozen=True, slots=True)
class Crops:
    """Random crops of long utterances, by row of the index: `longest` samples from `start_N` on, or all if shorter."""

    longest: int
    start_N: Ints

    @staticmethod
    def draw(num_samples: Ints, longest: int, *, seed: int, epoch: int) -> Crops:
        """Draw crops with uniform starts, new ones in each epoch."""
        random = np.random.default_rng([seed, epoch, _CROPS])
        return Crops(longest, random.integers(0, np.maximum(num_samples - longest, 0), endpoint=True))

    def lengths(self, num_samples: Ints) -> Ints:
        """Number of samples after cropping."""
        return np.minimum(num_samples, self.longest)


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """The batches of one epoch; a batch is an array of row numbers of the index the plan was made from.

    Batch `b` of the epoch is `order[bounds[b] : bounds[b + 1]]`, and step `k` has the `batches_per_step` batches from
    `k * batches_per_step` on. `step_tokens` and `step_frames` count a whole step, all batches together; they are 0
    where the plan was made without them.
    """

    batches_per_step: int
    order: Rows
    bounds: Ints
    durations_ms: Ints
    """By row of the index, as recorded."""
    tempo_N: Tempos | None
    """By row of the index: the factor of an utterance's length by tempo augmentation; None without it."""
    step_tokens: Ints
    step_frames: Ints
    dropped: Mapping[str, int]
    num_repeated: int
    """Number of repetitions of utterances: by their sampling rate, or because a step had fewer of them than batches."""
    crops: Crops | None = None
    """Crops of long utterances; None without cropping. Lengths and counts above are those after it."""

    @property
    def steps(self) -> int:
        """Steps of the epoch, the same for every rank."""
        return (len(self.bounds) - 1) // self.batches_per_step

    def batches_of(self, step: int, rank: int = 0, ranks: int = 1) -> list[Rows]:
        """Row numbers of each of a rank's batches of a step; ConfigError if the ranks do not divide them."""
        if self.batches_per_step % ranks:
            raise ConfigError(
                f"{ranks} ranks cannot share {self.batches_per_step} batches a step evenly",
                code="ranks-mismatch",
                why="ranks with fewer batches would wait for the others",
                fix=f"set `plan.batches_per_step` to a multiple of {ranks}",
            )
        per_rank = self.batches_per_step // ranks
        first = step * self.batches_per_step + rank * per_rank
        bounds = self.bounds[first : first + per_rank + 1]
        return [self.order[start:end] for start, end in pairwise(bounds)]

    def sha256(self) -> str:
        """Hash of the sequence of global batches: plans of equal hash train equally, whatever the number of ranks."""
        digest = hashlib.sha256(f"{self.batches_per_step}:{self.steps}".encode())
        for array in (self.bounds, self.order):
            digest.update(array.astype("<i8", copy=False).data)
        if self.tempo_N is not None:
            digest.update(self.tempo_N[self.order].astype("<f4", copy=False).data)
        if self.crops is not None:
            digest.update(self.crops.start_N[self.order].astype("<i8", copy=False).data)
        return digest.hexdigest()

    def augmented_ms(self) -> Ints:
        """Length in milliseconds of each utterance of `order` after tempo augmentation."""
        tempo_N = None if self.tempo_N is None else self.tempo_N[self.order]
        return _with_tempo(self.durations_ms[self.order], tempo_N)

    @property
    def longest_ms_by_batch(self) -> Ints:
        """The length that each batch of the epoch is padded to, in milliseconds."""
        return self._batch_ms[0]

    @property
    def audio_ms_by_batch(self) -> Ints:
        """Milliseconds of audio in each batch of the epoch, without padding."""
        return self._batch_ms[1]

    @functools.cached_property
    def _batch_ms(self) -> tuple[Ints, Ints]:
        lengths_ms, start_B = self.augmented_ms(), self.bounds[:-1]
        return np.maximum.reduceat(lengths_ms, start_B), np.add.reduceat(lengths_ms, start_B)

    def statistics(self, ranks: int | None = None) -> dict[str, int | float | Mapping[str, int]]:
        """Figures of the plan for people: sizes, padding, imbalance of ranks, and what was dropped or repeated.

        `efficiency` is the share of the devices' time spent on speech: (1 - padding) / imbalance, where a step lasts as
        long as the padded batches of its slowest rank; without `ranks` each batch of a step has a rank of its own. The
        mean imbalance is weighted by cost, so that the equation holds.
        """
        ranks = ranks or self.batches_per_step
        audio_ms = int(self.audio_ms_by_batch.sum())
        padded_ms_B = self.longest_ms_by_batch * np.diff(self.bounds)
        padded_ms_SR = padded_ms_B.reshape(self.steps, ranks, -1).sum(axis=2)
        slowest_S, total_S = padded_ms_SR.max(axis=1), padded_ms_SR.sum(axis=1)
        padded_ms, waited_ms = int(total_S.sum()), ranks * int(slowest_S.sum())
        return {
            "steps": self.steps,
            "utterances": len(self.order),
            "hours": audio_ms / 3_600_000,
            "padding": 1 - audio_ms / padded_ms,
            "efficiency": audio_ms / waited_ms,
            "imbalance_mean": waited_ms / padded_ms,
            "imbalance_p99": float(np.quantile(ranks * slowest_S / total_S, 0.99)),
            "repeated": self.num_repeated,
            "dropped": dict(self.dropped),
        }


def plan(
    durations_ms: Ints,
    num_tokens: Ints | None,
    cfg: Plan,
    *,
    seed: int,
    epoch: int,
    num_frames: Counts | None = None,
    max_duration_ms: int | None = None,
    equal_neighbours: Ints | None = None,
    shard_of: Ints | None = None,
    sampling_rate: SamplingRate | None = None,
    tempo_N: Tempos | None = None,
    ascending: bool = False,
    is_frame_synchronous: bool = True,
) -> EpochPlan:
    """Plan one epoch: every usable utterance in a batch, no batch above the budget, as many batches in each step.

    Dropped, with a count: `empty` utterances (no audio, or no tokens where `num_tokens` is known), those
    `longer_than_a_batch`, `longer_than_is_heard` (than `max_duration_ms`), and `too_short_for_ctc`: fewer output frames
    (`num_frames`) than tokens and `equal_neighbours` (pairs of equal tokens, which CTC separates by a blank), unless
    the student is not `is_frame_synchronous`. Equal arguments give equal plans; another `epoch` is another shuffle.
    `ascending` puts short steps first, else their order is random; where `cfg.layout` is `remote` (and `shard_of` is
    known), it is so within a window, which holds few shards. `sampling_rate` is at least 1 for each row; a fractional
    one is met in the mean of the epochs. `tempo_N` multiplies lengths in this epoch, and budgets hold for the result.
    DataError if nothing is left.
    """
    recorded_ms = np.ascontiguousarray(durations_ms, np.int64)
    durations_ms = _with_tempo(recorded_ms, tempo_N)
    available = num_frames if is_frame_synchronous else None
    rows, dropped = _usable(durations_ms, num_tokens, cfg, available, max_duration_ms, equal_neighbours)
    if not len(rows):
        raise _nothing_left(len(durations_ms), dropped)
    random = np.random.default_rng([seed, epoch])
    rows, num_repeated = _sampled(rows, sampling_rate, random)
    if by_shard := cfg.layout == "remote" and shard_of is not None:
        rows, lanes = _shuffled_by_shard(rows, shard_of, random), cfg.batches_per_step
    else:
        random.shuffle(rows)
        lanes = 1
    steps = batching.cut(rows, durations_ms, num_tokens, lanes, cfg, random)
    del rows  # eight bytes an utterance
    rank_S = durations_ms[steps.rows[steps.start_SL[:, 0]]] if ascending else random.random(len(steps.window_S))
    order_S = np.lexsort((rank_S, steps.window_S)) if by_shard else np.argsort(rank_S, kind="stable")
    order, bounds = steps.in_order(order_S, cfg.batches_per_step)
    first_S = bounds[: -1 : cfg.batches_per_step]
    return EpochPlan(
        batches_per_step=cfg.batches_per_step,
        order=order,
        bounds=bounds,
        durations_ms=recorded_ms,
        tempo_N=tempo_N,
        step_tokens=_per_step(num_tokens, order, first_S),
        step_frames=_per_step(num_frames, order, first_S),
        dropped=dropped,
        num_repeated=num_repeated + steps.num_repeated,
    )


def _per_step(counts: Counts | None, order: Counts, first_S: Ints) -> Ints:
    """The counts of the rows of each step, added up; zeros without counts."""
    if counts is None:
        return np.zeros(len(first_S), np.int64)
    narrow_N = narrow(counts)
    in_order_N = by_blocks(narrow_N.take, narrow_N.dtype.type, order)
    return np.add.reduceat(in_order_N, first_S, dtype=np.int64)


def tempos(num: int, most: float, *, seed: int, epoch: int) -> Tempos:
    """Draw the factor of each of `num` utterances' length in an epoch, uniform from 1 - `most` to 1 + `most`.

    Drawn before the epoch is planned, as batches depend on lengths.
    """
    uniform_N = np.random.default_rng([seed, epoch, _TEMPOS]).random(num, np.float32)
    return by_blocks(lambda block_N: 1 + np.float32(most) * (2 * block_N - 1), np.float32, uniform_N)


def _with_tempo(durations_ms: Ints, tempo_N: Tempos | None) -> Ints:
    if tempo_N is None:
        return durations_ms
    return by_blocks(lambda block_ms, block_N: np.ceil(block_ms * block_N), np.int64, durations_ms, tempo_N)


def mixture_rates(
    hours_G: NDArray[np.float64], weights_G: NDArray[np.float64] | None, temperature: float
) -> SamplingRate:
    """Sampling rate of each group (G,), at least 1, so that every utterance comes in every epoch.

    Shares of audio are proportional to the weights, or to the hours to the power of 1 / `temperature` (Arivazhagan et
    al., "Massively Multilingual Neural Machine Translation in the Wild", 2019).
    """
    shares_G = hours_G ** (1 / temperature) if weights_G is None else weights_G
    rate_G: SamplingRate = shares_G / hours_G
    rate_G /= rate_G.min()
    return rate_G


def _sampled(rows: Ints, sampling_rate: SamplingRate | None, random: np.random.Generator) -> tuple[Ints, int]:
    """Rows, each repeated by its sampling rate, in no promised order; and the number of repetitions."""
    if sampling_rate is None:
        return rows, 0
    random.shuffle(rows)
    # systematic sampling: the total is as expected to less than one
    end_N = np.floor(np.cumsum(sampling_rate[rows]) + random.random()).astype(np.int64)
    count_N = np.maximum(np.diff(end_N, prepend=0), 1)
    return np.repeat(rows, count_N), int(count_N.sum()) - len(rows)


def _shuffled_by_shard(rows: Ints, shard_of: Ints, random: np.random.Generator) -> Ints:
    """Rows with the shards in random order, those of a shard together."""
    shard_N = shard_of[rows]
    if (shard_N[1:] < shard_N[:-1]).any():  # rows of an index are sorted already: a sort would take seconds
        rows = rows[np.argsort(shard_N, kind="stable")]
    num_K = np.bincount(shard_N)
    order_K = random.permutation(len(num_K))
    first_K, num_K = (np.cumsum(num_K) - num_K)[order_K], num_K[order_K]
    return rows[np.repeat(first_K - (np.cumsum(num_K) - num_K), num_K) + np.arange(len(rows))]


def _nothing_left(num: int, dropped: Mapping[str, int]) -> DataError:
    return DataError(
        "there are no utterances to make batches of",
        code="nothing-to-train-on",
        why=f"of {num:,} utterances {dropped_in_words(dropped)}" if any(dropped.values()) else "there are none",
        fix="raise `plan.budget_ms` if they are too long for a batch; check the labels if they are empty",
    )


def dropped_in_words(dropped: Mapping[str, int]) -> str:
    """Name the reasons for which utterances are in no batch, the commonest first, with their counts."""
    reasons = sorted((name for name in dropped if dropped[name]), key=lambda name: -dropped[name])
    return ", ".join(f"{dropped[name]:,} are {name.replace('_', ' ')}" for name in reasons)


def _usable(
    durations_ms: Ints,
    num_tokens: Ints | None,
    cfg: Plan,
    num_frames: Counts | None,
    max_duration_ms: int | None,
    equal_neighbours: Ints | None,
) -> tuple[Ints, dict[str, int]]:
    """Rows that can be trained on, and the number of the others by the first reason that holds."""

    def bad(block: slice) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        lengths_N, tokens_N = durations_ms[block], None if num_tokens is None else num_tokens[block]
        yield "empty", lengths_N <= 0 if tokens_N is None else (lengths_N <= 0) | (tokens_N <= 0)
        too_long_N = lengths_N > cfg.budget_ms
        if tokens_N is not None and cfg.budget_tokens is not None:
            too_long_N |= tokens_N > cfg.budget_tokens
        yield "longer_than_a_batch", too_long_N
        if max_duration_ms is not None:
            yield "longer_than_is_heard", lengths_N > max_duration_ms
        if tokens_N is not None and num_frames is not None:
            needed_N = tokens_N if equal_neighbours is None else tokens_N + equal_neighbours[block]
            yield "too_short_for_ctc", num_frames[block] < needed_N

    kept_N, dropped = np.ones(len(durations_ms), bool), Counter[str]()
    for block in blocks(len(kept_N)):
        for reason, bad_N in bad(block):
            dropped[reason] += int(np.count_nonzero(bad_N & kept_N[block]))
            kept_N[block] &= ~bad_N
    return np.flatnonzero(kept_N), dict(dropped)
