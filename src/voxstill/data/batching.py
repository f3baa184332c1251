"""Windows of utterances, sorted by length and cut into steps of batches that are equally full and of nearly one length.

Shuffled utterances are divided into windows. A window is sorted by length, longest first, and cut into steps of
`batches_per_step * n` neighbours, `n` being what the longest of them lets into a batch. So the batches of one step have
as many utterances each, of nearly one length. Before that, places in the sorted order are exchanged within about a
batch: where a corpus is no larger than a window, batches would be the same in every epoch. The limits of a window are
lowered together until its steps are equally full, as what is left over would else be one small step (carried into the
next window it would be the same short utterances for ever).

Shard by shard, it is shards that are shuffled, and a window is cut into as many lanes as a step has batches:
stretches of a few neighbouring shards with as much audio each. Every lane is sorted by itself and feeds its own batch
of each step. So a rank reads each shard in one window only, and no other rank reads it but for the one shard
where two lanes meet. Where shards differ too much in audio there is one lane, and all ranks read all of a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Plan
from voxstill.data.blocks import BLOCK, Counts, blocks, in_threads, narrow

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
"""Row numbers of an index, which has fewer than 2 ** 31."""
_Value = TypeVar("_Value", bound=np.integer)
_Cuts = tuple[Ints, Ints, Ints]
"""Windows with one more step each, and where that step starts and ends in the largest lane of its window."""
_BISECTIONS = 5  # fills the last step of a window to about a twentieth
_DIGIT_BITS = 16  # of integers that NumPy sorts by counting, four times faster than others
_MAX_IMBALANCE = 1.25  # of audio between the lanes of a window: chance alone gives less
_MANY_STEPS = 500  # in a window of more steps than this, one small step does no harm


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of an epoch (S), each with a piece of every lane (L) of its window."""

    window_S: Ints
    start_SL: Ints
    """Position in `rows` of the first utterance of each piece."""
    size_SL: Ints
    """Number of utterances of each piece."""
    rows: Rows
    num_repeated: int
    """Utterances that come twice, to fill small pieces."""

    def in_order(self, order_S: Ints, batches_per_step: int) -> tuple[Rows, Ints]:
        """Rows of all batches with the steps in this order, and the bounds of the batches in them."""
        starts, sizes = self.start_SL[order_S].ravel(), self.size_SL[order_S].ravel()
        end_P = np.cumsum(sizes)
        order = np.empty(end_P[-1], np.int32)
        first_K = np.unique(np.searchsorted(end_P, np.arange(0, len(order), BLOCK), side="right"))
        shift_P = starts + sizes - end_P

        def gather(first: int, last: int) -> None:
            start, end = end_P[first] - sizes[first], end_P[last - 1]
            place_N = np.repeat(shift_P[first:last], sizes[first:last])
            place_N += np.arange(start, end)
            order[start:end] = self.rows[place_N]

        in_threads(gather, first_K.tolist(), [*first_K[1:].tolist(), len(sizes)])
        # of the batches that share a piece, the first `size % share` have one utterance more
        share = batches_per_step // self.size_SL.shape[1]
        sizes_B = ((sizes[:, None] + share - 1 - np.arange(share)) // share).ravel()
        return order, np.concatenate([[0], np.cumsum(sizes_B)])


def cut(
    rows: Ints, durations_ms: Ints, num_tokens: Ints | None, lanes: int, cfg: Plan, random: np.random.Generator
) -> Steps:
    """Cut shuffled rows into the steps of an epoch, in windows of `cfg.window` utterances and `lanes` lanes each."""
    rows_WLN, longest_WLN, num_WL = _windows(rows, durations_ms, lanes, cfg, random)
    return _steps(rows_WLN, longest_WLN, num_WL, num_tokens, cfg)


def _windows(
    rows: Ints, durations_ms: Ints, lanes: int, cfg: Plan, random: np.random.Generator
) -> tuple[Rows, Counts, Ints]:
    """Rows (W, L, N) by window and lane, from long to short but for the jitter, and the number in each.

    And the longest of the lengths from each on, as with the jitter a later one may be longer: a batch must bear the
    longest of all that follow. Where there are fewer than N, it is 0 at the end.
    """
    num_windows = max(1, round(len(rows) / cfg.window))
    width = -(-len(rows) // num_windows)
    num_windows = -(-len(rows) // width)
    narrow_ms = narrow(durations_ms)
    rows_WN = np.zeros((num_windows, width), np.int32)
    lengths_WN = np.zeros((num_windows, width), narrow_ms.dtype)

    def fill(block: slice) -> None:
        rows_WN.ravel()[block], lengths_WN.ravel()[block] = rows[block], narrow_ms.take(rows[block])

    in_threads(fill, blocks(len(rows)))
    num_WL = np.minimum(width, len(rows) - width * np.arange(num_windows))[:, None]
    if lanes > 1:
        rows_WN, lengths_WN, num_WL = _cut_into_lanes(rows_WN, lengths_WN, num_WL, lanes)
    width = rows_WN.shape[1]
    per_block = max(1, BLOCK // width)
    windows = [slice(start, start + per_block) for start in range(0, len(rows_WN), per_block)]

    def sort(block: slice, jitter_WN: NDArray[np.float32]) -> None:
        rows_WN[block], sorted_WN = _sorted(rows_WN[block], lengths_WN[block], jitter_WN, cfg)
        lengths_WN[block] = _max_from_here(sorted_WN)

    in_threads(sort, windows, (random.random(lengths_WN[block].shape, np.float32) for block in windows))
    shape = (*num_WL.shape, width)
    return rows_WN.reshape(shape), lengths_WN.reshape(shape), num_WL


def _cut_into_lanes(rows_WN: Rows, lengths_WN: Counts, num_W1: Ints, lanes: int) -> tuple[Rows, Counts, Ints]:
    """Cut each window into lanes of as many neighbours each: rows and lengths (W * L, N), and the number in each.

    Windows stay whole where some lanes would have no audio, or much more than others, as where shards of one data set
    follow those of another.
    """
    end_WL = num_W1 * np.arange(1, lanes + 1) // lanes
    until_WN = np.cumsum(lengths_WN, axis=1)
    audio_WL = np.diff(np.take_along_axis(until_WN, np.maximum(end_WL, 1) - 1, axis=1), axis=1, prepend=0)
    if end_WL.min() == 0 or (audio_WL.max(axis=1) > _MAX_IMBALANCE * audio_WL.min(axis=1)).any():
        return rows_WN, lengths_WN, num_W1
    num_WL = np.diff(end_WL, axis=1, prepend=0)
    index_N = np.arange(num_WL.max())
    inside_WLN = index_N < num_WL[..., None]
    index_WLN = np.where(inside_WLN, (end_WL - num_WL)[..., None] + index_N, 0)
    window_W11 = np.arange(len(rows_WN))[:, None, None]
    shape = -1, len(index_N)
    lengths_WLN = lengths_WN[window_W11, index_WLN] * inside_WLN
    return rows_WN[window_W11, index_WLN].reshape(shape), lengths_WLN.reshape(shape), num_WL


def _sorted(rows_WN: Rows, lengths_WN: Counts, jitter_WN: NDArray[np.float32], cfg: Plan) -> tuple[Rows, Counts]:
    """Sort each window from long to short, then move each place back by a share of a batch, 0 to 1, `jitter_WN`.

    Length 0 stays at the end.
    """
    order_WN = _by_digits(lengths_WN.max() - lengths_WN)
    sorted_WN = _picked(lengths_WN, order_WN)
    per_batch_WN = np.minimum(float(cfg.budget_ms) / np.maximum(sorted_WN, 1), cfg.max_utterances).astype(np.int64)
    place_WN = np.arange(lengths_WN.shape[1]) + (jitter_WN * per_batch_WN).astype(np.int64)
    place_WN[sorted_WN == 0] = lengths_WN.shape[1] + cfg.max_utterances
    moved_WN = _by_digits(place_WN)
    return _picked(rows_WN, _picked(order_WN, moved_WN)), _picked(sorted_WN, moved_WN)


def _by_digits(keys_WN: Counts) -> Ints:
    """The places of the keys of each window from low to high, equal ones in their order; none is below 0."""
    order_WN = keys_WN.astype(np.uint16).argsort(axis=1, kind="stable")  # its lowest bits
    for shift in range(_DIGIT_BITS, int(keys_WN.max()).bit_length(), _DIGIT_BITS):
        digit_WN = _picked((keys_WN >> shift).astype(np.uint16), order_WN)
        order_WN = _picked(order_WN, digit_WN.argsort(axis=1, kind="stable"))
    return order_WN


def _picked(values_WN: NDArray[_Value], place_WN: Ints) -> NDArray[_Value]:
    """The values at these places of their window."""
    first_W1 = values_WN.shape[1] * np.arange(len(values_WN))[:, None]
    picked_WN: NDArray[_Value] = values_WN.ravel().take(place_WN + first_W1)
    return picked_WN


def _steps(rows_WLN: Rows, longest_WLN: Counts, num_WL: Ints, num_tokens: Ints | None, cfg: Plan) -> Steps:
    """Cut windows into steps that are as equally full as their limits allow."""
    share = cfg.batches_per_step // num_WL.shape[1]  # batches that a piece of a lane is cut into
    largest_W = num_WL.max(axis=1)
    tokens_WLN, budget_tokens = None, cfg.budget_tokens or 0
    if num_tokens is not None and budget_tokens:
        tokens_WLN = _max_from_here(np.where(longest_WLN > 0, num_tokens[rows_WLN], 0))
    lane_L = np.arange(num_WL.shape[1])

    def cut_at(fill_W: NDArray[np.float64]) -> tuple[Ints, list[_Cuts]]:
        """Number of steps of each window when its limits are lowered to the share `fill_W`, and where they are cut.

        Starts and ends count the rows of the largest lane; the others are passed through in proportion.
        """
        utterances_W = np.maximum(fill_W * cfg.max_utterances, 1)
        count_W = np.zeros(len(num_WL), np.int64)
        position_W, window_W = np.zeros(len(num_WL), np.int64), np.arange(len(num_WL))
        cuts = []
        while len(window_W):
            num, fill, largest = num_WL[window_W], fill_W[window_W, None], largest_W[window_W]
            first = window_W[:, None], lane_L, position_W[window_W, None] * num // largest[:, None]
            limit = np.minimum(fill * cfg.budget_ms // longest_WLN[first], utterances_W[window_W, None])
            if tokens_WLN is not None:
                limit = np.minimum(limit, fill * budget_tokens // tokens_WLN[first])
            pieces = np.maximum(limit.astype(np.int64), 1) * share
            start = position_W[window_W]
            end = np.minimum(start + (pieces * largest[:, None] // num).min(axis=1), largest)
            cuts.append((window_W, start, end))
            count_W[window_W] += 1
            position_W[window_W] = end
            window_W = window_W[end < largest]
        return count_W, cuts

    high_W = np.ones(len(num_WL))
    fewest_W, cuts = cut_at(high_W)
    if fewest_W.max() <= _MANY_STEPS:
        low_W = 1 - 1.5 / np.maximum(fewest_W, 3)
        for _ in range(_BISECTIONS):
            middle_W = (low_W + high_W) / 2
            enough_W = cut_at(middle_W)[0] <= fewest_W
            high_W, low_W = np.where(enough_W, middle_W, high_W), np.where(enough_W, low_W, middle_W)
        cuts = cut_at(high_W)[1]
    return _gathered(rows_WLN, num_WL, cuts, share)


def _max_from_here(counts: Counts) -> Counts:
    """The maximum of each count and all that follow it on the last axis."""
    return np.maximum.accumulate(counts[..., ::-1], axis=-1)[..., ::-1]


def _gathered(rows_WLN: Rows, num_WL: Ints, cuts: list[_Cuts], share: int) -> Steps:
    """Steps of all windows, with pieces of fewer than `share` utterances filled by repetition: no batch is empty."""
    is_full = (num_WL.ravel()[:-1] == rows_WLN.shape[2]).all()  # a mask would cost more than all else here
    rows = rows_WLN.ravel()[: num_WL.sum()] if is_full else rows_WLN[np.arange(rows_WLN.shape[2]) < num_WL[..., None]]
    window, start, end = (np.concatenate(column)[:, None] for column in zip(*cuts, strict=True))
    window_S = window[:, 0]
    num_SL, largest_S1 = num_WL[window_S], num_WL.max(axis=1)[window_S, None]
    first_SL = (np.cumsum(num_WL) - num_WL.ravel()).reshape(num_WL.shape)[window_S]
    start_SL = start * num_SL // largest_S1
    size_SL = end * num_SL // largest_S1 - start_SL
    start_SL += first_SL
    filled = [rows]
    for piece in zip(*np.nonzero(size_SL < share), strict=True):  # of the last step of a window, or a lane of few rows
        few = rows[start_SL[piece] : start_SL[piece] + max(size_SL[piece], 1)]
        start_SL[piece], size_SL[piece] = sum(map(len, filled)), share
        filled.append(np.resize(few, share))
    num_repeated = int(size_SL.sum()) - len(rows)
    return Steps(window_S, start_SL, size_SL, np.concatenate(filled) if len(filled) > 1 else rows, num_repeated)
