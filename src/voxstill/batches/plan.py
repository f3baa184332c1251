"""All batches of an epoch before it starts: every utterance once, every rank as many steps, none longer than its peers.

A step has a fixed number of batches, its slots, and ranks divide them: the global batches, and so the training, are the
same on any number of ranks, nobody waits for a rank that has more steps, and each step knows its token count before it
is read. Pure numpy: no I/O, no torch.

Utterances are shuffled and dealt into windows. A window is sorted by length, longest first, and cut into steps of
`slots * n` neighbours, `n` being what the longest of them lets into a batch. So the batches of one step have as many
utterances each, of nearly one length. Before that, places in the sorted order are exchanged within about a batch:
where a corpus is no larger than a window, batches would be the same in every epoch. The limits of a window are lowered
together until its steps are equally full, as what is left over would else be one small step (carried into the next
window it would be the same short utterances for ever).

Shard by shard, it is shards that are shuffled, and a window is cut into as many lanes as there are slots: stretches of
a few neighbouring shards with as much audio each. Every lane is sorted by itself and feeds its own slot, a step takes
the same share of each. So a rank reads each shard in one window only, and no other rank reads it but for the one shard
where two lanes meet. Where neighbouring shards are not alike there is one lane, and all ranks read all of a window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from voxstill.config import Plan
from voxstill.errors import ConfigError, DataError

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
"""Row numbers of an index, which has fewer than 2 ** 31."""
Times = NDArray[np.float64]
Tempos = NDArray[np.float32]
_BISECTIONS = 5  # fills the last step of a window to about a twentieth
_BLOCK = 1 << 18  # utterances sorted at a time: what is in the processor's cache is four times faster
_UNEVEN = 1.25  # the most that one lane of a window may have of another's audio: chance alone gives less
_TEMPOS, _CROPS = 1, 2  # draws that no other draw of the epoch looks like
_MANY_STEPS = 500  # in a window of more steps than this, one small step does no harm


@dataclass(frozen=True, slots=True)
class Crops:
    """What an epoch hears of each utterance, by row of the index: all, or `longest` samples from `start_N` on."""

    longest: int
    start_N: Ints

    @staticmethod
    def drawn(num_samples: Ints, longest: int, *, seed: int, epoch: int) -> Crops:
        """Stretches that begin anywhere with even chances, each epoch elsewhere."""
        random = np.random.default_rng([seed, epoch, _CROPS])
        return Crops(longest, random.integers(0, np.maximum(num_samples - longest, 0), endpoint=True))

    def lengths(self, num_samples: Ints) -> Ints:
        """Samples that are heard of so many."""
        return np.minimum(num_samples, self.longest)


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """The batches of one epoch; a batch is an array of row numbers of the index the plan was made from.

    Batch `s` of step `k` is `order[bounds[k * slots + s] : bounds[k * slots + s + 1]]`. `step_tokens` and
    `step_frames` count a whole step, all slots together; they are 0 where the plan was made without them.
    """

    slots: int
    order: Rows
    bounds: Ints
    durations_ms: Ints
    """By row of the index, as recorded."""
    tempo_N: Tempos | None
    """By row of the index: how many times as long an utterance is made; None where all stay as recorded."""
    step_tokens: Ints
    step_frames: Ints
    dropped: Mapping[str, int]
    repeated: int
    """How often an utterance comes that was there before: wanted so, or because there were fewer than slots."""
    crops: Crops | None = None
    """What is heard of long utterances; None where all of each is. Lengths and counts above are of what is heard."""

    @property
    def steps(self) -> int:
        """Steps of the epoch, the same for every rank."""
        return (len(self.bounds) - 1) // self.slots

    def batches_of(self, step: int, rank: int = 0, ranks: int = 1) -> list[Rows]:
        """Row numbers of each of a rank's batches of a step; ConfigError where the ranks do not divide the slots."""
        if self.slots % ranks:
            raise ConfigError(
                f"{ranks} ranks cannot share {self.slots} batches a step evenly",
                why="a rank with fewer batches would wait for the others, or they for it",
                fix=f"set `plan.batches_per_step` to a multiple of {ranks}",
            )
        each = self.slots // ranks
        first = step * self.slots + rank * each
        bounds = self.bounds[first : first + each + 1]
        return [self.order[start:end] for start, end in pairwise(bounds)]

    def sha256(self) -> str:
        """Hash of the sequence of global batches: equal plans train alike, whatever the number of ranks."""
        digest = hashlib.sha256(f"{self.slots}:{self.steps}".encode())
        for array in (self.bounds, self.order):
            digest.update(array.astype("<i8", copy=False).data)
        if self.tempo_N is not None:
            digest.update(self.tempo_N[self.order].astype("<f4", copy=False).data)
        if self.crops is not None:
            digest.update(self.crops.start_N[self.order].astype("<i8", copy=False).data)
        return digest.hexdigest()

    def heard_ms(self) -> Ints:
        """How long each utterance of `order` lasts as it is trained on."""
        tempo_N = None if self.tempo_N is None else self.tempo_N[self.order]
        return _lasting(self.durations_ms[self.order], tempo_N)

    def statistics(self, ranks: int | None = None) -> dict[str, int | float | Mapping[str, int]]:
        """What a person wants to know. `efficiency` is the share of the devices' time that hears speech.

        That is (1 - padding) / imbalance, where a step lasts as long as the batches of its slowest rank with their
        padding; without `ranks` each slot has its own. The mean imbalance is weighted by cost, so that the equation
        holds.
        """
        ranks = ranks or self.slots
        lengths_ms = self.heard_ms()
        audio_ms = int(lengths_ms.sum())
        padded_ms_B = np.maximum.reduceat(lengths_ms, self.bounds[:-1]) * np.diff(self.bounds)
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
            "repeated": self.repeated,
            "dropped": dict(self.dropped),
        }


def plan(
    durations_ms: Ints,
    num_tokens: Ints | None,
    cfg: Plan,
    *,
    seed: int,
    epoch: int,
    num_frames: Ints | None = None,
    longest_ms: int | None = None,
    repeats: Ints | None = None,
    shard_of: Ints | None = None,
    times: Times | None = None,
    tempo_N: Tempos | None = None,
    ascending: bool = False,
) -> EpochPlan:
    """Every usable utterance in exactly one batch, no batch above the budget, as many batches in each step.

    Dropped, with a count: `empty` ones (no audio, or no tokens where `num_tokens` is given), those
    `longer_than_a_batch`, `longer_than_is_heard` (than `longest_ms`), and those `too_short_for_ctc`: fewer output
    frames (`num_frames`) than tokens and `repeats` (equal neighbours, which CTC keeps apart by a blank). Equal for
    equal arguments; another `epoch` is another shuffle. `ascending` puts short steps first, else their order is
    random; where `cfg.layout` is `remote` (and `shard_of` is given), it is so within a window, which holds few
    shards. With `times`, at least 1 for each, an utterance comes so often, where that is no whole number in the
    mean of the epochs. With `tempo_N` it lasts so many times as long in this epoch, and budgets hold for that.
    DataError where nothing is left.
    """
    recorded_ms = np.ascontiguousarray(durations_ms, np.int64)
    durations_ms = _lasting(recorded_ms, tempo_N)
    rows, dropped = _usable(durations_ms, num_tokens, cfg, num_frames, longest_ms, repeats)
    if not len(rows):
        reason = max(dropped, key=lambda name: dropped[name]) if any(dropped.values()) else "there are none"
        raise DataError(
            "there is no utterance to make a batch of",
            why=f"of {len(durations_ms)}, most fell for this reason: {reason}",
            fix="raise `plan.budget_ms` if they are too long for a batch; look at the labels if they are empty",
        )
    random = np.random.default_rng([seed, epoch])
    rows, repeated = _drawn(rows, times, random)
    if by_shard := cfg.layout == "remote" and shard_of is not None:
        rows, lanes = _shard_by_shard(rows, shard_of, random), cfg.batches_per_step
    else:
        rows, lanes = random.permutation(rows), 1
    window, pieces_SL, rows, filled = _steps(*_windows(rows, durations_ms, lanes, cfg, random), num_tokens, cfg)
    starts_SL, sizes_SL = pieces_SL
    rank_S = durations_ms[rows[starts_SL[:, 0]]] if ascending else random.random(len(window))
    turn = np.lexsort((rank_S, window)) if by_shard else np.argsort(rank_S, kind="stable")
    starts, sizes = starts_SL[turn].ravel(), sizes_SL[turn].ravel()
    before = np.cumsum(sizes) - sizes
    order = rows[np.repeat(starts - before, sizes) + np.arange(sizes.sum())].astype(np.int32)
    # of the batches that share a piece, the first `size % share` have one utterance more
    share = cfg.batches_per_step // sizes_SL.shape[1]
    sizes_B = ((sizes[:, None] + share - 1 - np.arange(share)) // share).ravel()
    bounds = np.concatenate([[0], np.cumsum(sizes_B)])
    first_S = bounds[: -1 : cfg.batches_per_step]

    def per_step(counts: Ints | None) -> Ints:
        return np.zeros(len(window), np.int64) if counts is None else np.add.reduceat(counts[order], first_S)

    return EpochPlan(
        slots=cfg.batches_per_step,
        order=order,
        bounds=bounds,
        durations_ms=recorded_ms,
        tempo_N=tempo_N,
        step_tokens=per_step(num_tokens),
        step_frames=per_step(num_frames),
        dropped=dropped,
        repeated=repeated + filled,
    )


def tempos(num: int, most: float, *, seed: int, epoch: int) -> Tempos:
    """How many times as long each of `num` utterances is made in an epoch: even chances from 1 - `most` to 1 + `most`.

    Drawn before the epoch is planned, as what changes lengths changes batches.
    """
    drawn_N = np.random.default_rng([seed, epoch, _TEMPOS]).random(num, np.float32)
    tempo_N: Tempos = 1 + np.float32(most) * (2 * drawn_N - 1)
    return tempo_N


def _lasting(durations_ms: Ints, tempo_N: Tempos | None) -> Ints:
    return durations_ms if tempo_N is None else np.ceil(durations_ms * tempo_N).astype(np.int64)


def mixture(hours_G: NDArray[np.float64], weights_G: NDArray[np.float64] | None, temperature: float) -> Times:
    """How often an utterance of each group comes in an epoch: once in one of them, in the others no less often.

    So every utterance is heard in every epoch, and the shares of audio are as the weights, or as the hours to the power
    of 1 / `temperature` (Arivazhagan et al., "Massively Multilingual Neural Machine Translation in the Wild", 2019).
    """
    shares_G = hours_G ** (1 / temperature) if weights_G is None else weights_G
    times_G: Times = shares_G / hours_G
    times_G /= times_G.min()
    return times_G


def _drawn(rows: Ints, times: Times | None, random: np.random.Generator) -> tuple[Ints, int]:
    """The rows in no promised order, each as often as it is to come, and how many are repetitions."""
    if times is None:
        return rows, 0
    rows = random.permutation(rows)
    # systematic sampling: the sum is what it should be to less than one
    up_to = np.floor(np.cumsum(times[rows]) + random.random()).astype(np.int64)
    often = np.maximum(np.diff(up_to, prepend=0), 1)
    return np.repeat(rows, often), int(often.sum()) - len(rows)


def _shard_by_shard(rows: Ints, shard_of: Ints, random: np.random.Generator) -> Ints:
    """The rows with the shards in random order, each shard in one piece."""
    shard_N = shard_of[rows]
    if (shard_N[1:] < shard_N[:-1]).any():  # as an index has them they need no sort, which would take seconds
        rows = rows[np.argsort(shard_N, kind="stable")]
    num_K = np.bincount(shard_N)
    turn_K = random.permutation(len(num_K))
    first_K, num_K = (np.cumsum(num_K) - num_K)[turn_K], num_K[turn_K]
    return rows[np.repeat(first_K - (np.cumsum(num_K) - num_K), num_K) + np.arange(len(rows))]


def _usable(
    durations_ms: Ints,
    num_tokens: Ints | None,
    cfg: Plan,
    num_frames: Ints | None,
    longest_ms: int | None,
    repeats: Ints | None,
) -> tuple[Ints, dict[str, int]]:
    """Rows that can be learnt from, and how many cannot, by the first reason that holds."""
    empty = durations_ms <= 0
    if num_tokens is not None:
        empty |= num_tokens <= 0
    too_long = durations_ms > cfg.budget_ms
    if num_tokens is not None and cfg.budget_tokens is not None:
        too_long |= num_tokens > cfg.budget_tokens
    bad = {"empty": empty, "longer_than_a_batch": too_long}
    if longest_ms is not None:
        bad["longer_than_is_heard"] = durations_ms > longest_ms
    if num_tokens is not None and num_frames is not None:
        bad["too_short_for_ctc"] = num_frames < num_tokens + (0 if repeats is None else repeats)
    kept = np.ones(len(durations_ms), bool)
    dropped = {}
    for reason, mask in bad.items():
        dropped[reason] = int((mask & kept).sum())
        kept &= ~mask
    return np.flatnonzero(kept), dropped


def _windows(
    rows: Ints, durations_ms: Ints, lanes: int, cfg: Plan, random: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Rows, their lengths (W, L, N) by window and lane, long to short but for the jitter, and how many are in each.

    What is short of N ends in length 0.
    """
    num_windows = max(1, round(len(rows) / cfg.window))
    width = -(-len(rows) // num_windows)
    num_windows = -(-len(rows) // width)
    rows_WN = np.zeros((num_windows, width), np.int64)
    rows_WN.ravel()[: len(rows)] = rows
    lengths_WN = np.zeros((num_windows, width), np.int64)
    lengths_WN.ravel()[: len(rows)] = durations_ms[rows]
    num_WL = (lengths_WN > 0).sum(axis=1, keepdims=True)
    if lanes > 1:
        rows_WN, lengths_WN, num_WL = _dealt(rows_WN, lengths_WN, num_WL, lanes)
    width = rows_WN.shape[1]
    for start in range(0, len(rows_WN), per_block := max(1, _BLOCK // width)):
        block = slice(start, start + per_block)
        rows_WN[block], lengths_WN[block] = _sorted(rows_WN[block], lengths_WN[block], cfg, random)
    shape = (*num_WL.shape, width)
    return rows_WN.reshape(shape), lengths_WN.reshape(shape), num_WL


def _dealt(rows_WN: Ints, lengths_WN: Ints, num_W1: Ints, lanes: int) -> tuple[Ints, Ints, Ints]:
    """Windows cut into lanes of as many neighbours each, as rows of their own (W * L, N), and how many are in each.

    As they came, where some lanes would have much more audio than others, as shards of one data set after another
    give, or none.
    """
    end_WL = num_W1 * np.arange(1, lanes + 1) // lanes
    until_WN = np.cumsum(lengths_WN, axis=1)
    audio_WL = np.diff(np.take_along_axis(until_WN, np.maximum(end_WL, 1) - 1, axis=1), axis=1, prepend=0)
    if end_WL.min() == 0 or (audio_WL.max(axis=1) > _UNEVEN * audio_WL.min(axis=1)).any():
        return rows_WN, lengths_WN, num_W1
    num_WL = np.diff(end_WL, axis=1, prepend=0)
    place_N = np.arange(num_WL.max())
    inside_WLN = place_N < num_WL[..., None]
    place_WLN = np.where(inside_WLN, (end_WL - num_WL)[..., None] + place_N, 0)
    window_W11 = np.arange(len(rows_WN))[:, None, None]
    shape = -1, len(place_N)
    lengths_WLN = lengths_WN[window_W11, place_WLN] * inside_WLN
    return rows_WN[window_W11, place_WLN].reshape(shape), lengths_WLN.reshape(shape), num_WL


def _sorted(rows_WN: Ints, lengths_WN: Ints, cfg: Plan, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Each window from long to short, then each place put off by up to a batch; length 0 stays at the end."""
    rows_WN, lengths_WN = _by_key(cfg.budget_ms - lengths_WN, rows_WN, lengths_WN)
    per_batch_WN = np.minimum(cfg.budget_ms // np.maximum(lengths_WN, 1), cfg.max_utterances)
    jitter_WN = random.random(lengths_WN.shape, np.float32) * per_batch_WN
    place_WN = np.arange(lengths_WN.shape[1]) + jitter_WN.astype(np.int64)
    place_WN[lengths_WN == 0] = lengths_WN.shape[1] + cfg.max_utterances
    return _by_key(place_WN, rows_WN, lengths_WN)


def _by_key(keys_WN: Ints, rows_WN: Ints, lengths_WN: Ints) -> tuple[Ints, Ints]:
    """Rows and lengths of each window by rising key.

    Key and place are sorted as one integer: numpy does that many times faster than finding the permutation.
    """
    place_WN = np.arange(keys_WN.size, dtype=np.uint64).reshape(keys_WN.shape)
    packed_WN = (keys_WN.astype(np.uint64) << np.uint64(32)) | place_WN
    packed_WN.sort(axis=1)
    place_WN = packed_WN & np.uint64(0xFFFFFFFF)
    return rows_WN.ravel()[place_WN], lengths_WN.ravel()[place_WN]


def _steps(
    rows_WLN: Ints, lengths_WLN: Ints, num_WL: Ints, num_tokens: Ints | None, cfg: Plan
) -> tuple[Ints, tuple[Ints, Ints], Ints, int]:
    """Window of each step, start and size of its piece of each lane (S, L), the rows that starts count in, and how many
    come twice."""
    share = cfg.batches_per_step // num_WL.shape[1]  # batches that a piece of a lane is cut into
    most_W = num_WL.max(axis=1)
    # with the jitter a later one may be longer: a batch must bear the longest of all that follow
    longest_WLN, tokens_WLN, budget_tokens = _most_from_here(lengths_WLN), None, cfg.budget_tokens or 0
    if num_tokens is not None and budget_tokens:
        tokens_WLN = _most_from_here(np.where(lengths_WLN > 0, num_tokens[rows_WLN], 0))
    lane_L = np.arange(num_WL.shape[1])

    def cut(part_W: Times) -> tuple[Ints, list[tuple[Ints, Ints, Ints]]]:
        """Number of steps of each window when its limits are lowered to `part_W`; window, start and end of each.

        Starts and ends count the rows of the largest lane; the others are gone through in proportion.
        """
        utterances_W = np.maximum(part_W * cfg.max_utterances, 1)
        count_W = np.zeros(len(num_WL), np.int64)
        at_W, window_W = np.zeros(len(num_WL), np.int64), np.arange(len(num_WL))
        taken = []
        while len(window_W):
            num, part, most = num_WL[window_W], part_W[window_W, None], most_W[window_W]
            here = window_W[:, None], lane_L, at_W[window_W, None] * num // most[:, None]
            limit = np.minimum(part * cfg.budget_ms // longest_WLN[here], utterances_W[window_W, None])
            if tokens_WLN is not None:
                limit = np.minimum(limit, part * budget_tokens // tokens_WLN[here])
            pieces = np.maximum(limit.astype(np.int64), 1) * share
            start = at_W[window_W]
            end = np.minimum(start + (pieces * most[:, None] // num).min(axis=1), most)
            taken.append((window_W, start, end))
            count_W[window_W] += 1
            at_W[window_W] = end
            window_W = window_W[end < most]
        return count_W, taken

    high_W = np.ones(len(num_WL))
    fewest_W, taken = cut(high_W)
    if fewest_W.max() <= _MANY_STEPS:
        low_W = 1 - 1.5 / np.maximum(fewest_W, 3)
        for _ in range(_BISECTIONS):
            middle_W = (low_W + high_W) / 2
            enough_W = cut(middle_W)[0] <= fewest_W
            high_W, low_W = np.where(enough_W, middle_W, high_W), np.where(enough_W, low_W, middle_W)
        taken = cut(high_W)[1]
    return _laid_end_to_end(rows_WLN, num_WL, taken, share)


def _most_from_here(counts: Ints) -> Ints:
    """The largest of each and all that follow it on the last axis, at least 1."""
    most: Ints = np.maximum(np.maximum.accumulate(counts[..., ::-1], axis=-1)[..., ::-1], 1)
    return most


def _laid_end_to_end(
    rows_WLN: Ints, num_WL: Ints, taken: list[tuple[Ints, Ints, Ints]], share: int
) -> tuple[Ints, tuple[Ints, Ints], Ints, int]:
    """What `_steps` gives, with small pieces filled up: no batch is empty."""
    rows = rows_WLN[np.arange(rows_WLN.shape[2]) < num_WL[..., None]]
    window, start, end = (np.concatenate(column)[:, None] for column in zip(*taken, strict=True))
    window = window[:, 0]
    num_SL, most_S1 = num_WL[window], num_WL.max(axis=1)[window, None]
    first_SL = (np.cumsum(num_WL) - num_WL.ravel()).reshape(num_WL.shape)[window]
    starts_SL = start * num_SL // most_S1
    sizes_SL = end * num_SL // most_S1 - starts_SL
    starts_SL += first_SL
    filled = [rows]
    for at in zip(*np.nonzero(sizes_SL < share), strict=True):  # the last step of a window, or a lane with few rows
        there = rows[starts_SL[at] : starts_SL[at] + max(sizes_SL[at], 1)]
        starts_SL[at], sizes_SL[at] = sum(map(len, filled)), share
        filled.append(np.resize(there, share))
    repeated = int(sizes_SL.sum()) - len(rows)
    return window, (starts_SL, sizes_SL), np.concatenate(filled), repeated
