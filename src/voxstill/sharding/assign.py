"""Assign utterances to shards: each that is kept lies in exactly one of its split, far from others of its speaker.

`survey` reads what is kept as columns, `assign` is pure and decides everything, and `jobs` reads the tables again, a
window at a time, for `write` to write them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from voxstill.core.config import Shard
from voxstill.core.errors import DataError
from voxstill.core.records import RATE_HZ, Utterance, Verdict, hash64
from voxstill.sharding import word_times
from voxstill.storage import join, manifest, tables
from voxstill.storage.arrays import numpy_array
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW = 2**18
"""Utterances that are shuffled together. A split with more is shuffled in several windows, each of parts drawn at
random, so that a shard needs the parts of its window and not those of the whole kept."""
TAR_MEMBER = re.compile(r"(.+)#(\d+)\+(\d+)")
"""The address of a member of a tar: that of the tar, the offset and the number of bytes."""
_BLOCK = 65_536
_BYTES_PER_MS = RATE_HZ * 2 // 1000
_SPLITS = ("train", "dev", "test")
_SURVEYED = ("id", "recording_id", "uri", "channel", "start_ms", "end_ms", "split", "speaker", "dataset", "gain_db")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUtterances:
    """The utterances that are kept, in the order of their ids: 25 bytes for each.

    `part_N` is the number of its part of the table and `row_N` its place there; `speaker_N` is equal for utterances of
    one speaker of one data set, and `split_N` the place of its split in `train`, `dev`, `test`.
    """

    part_N: NDArray[np.int32]
    row_N: NDArray[np.int32]
    split_N: NDArray[np.int8]
    speaker_N: NDArray[np.uint64]
    duration_ms_N: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard to be written: its number, its utterances in order and the label of each, both as Parquet files."""

    index: int
    utterances: bytes
    labels: bytes


def survey(
    work: Store,
    parts: Sequence[join.Part],
    kept_ids: tables.IdSet | None,
    *,
    without: tables.IdSet | None = None,
    by_tar: bool = False,
) -> KeptUtterances:
    """Read what the assignment needs of every utterance that was kept; some 90 bytes for each are in use meanwhile.

    Without `kept_ids` all but those of the test split are kept; of both, those that are in `without` are left out. With
    `by_tar` those of one tar count as of one speaker. DataError if one is not a member of a tar, or stands twice in
    the table.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids, part, row, split, speaker, duration_ms = [], array("i"), array("i"), array("b"), array("Q"), array("q")
    keys = (part_of.utterances for part_of in parts)
    for number, table in enumerate(tables.columns(work, keys, Utterance, _SURVEYED)):
        is_kept_N = (
            numpy_array(pc.not_equal(table["split"], "test"))
            if kept_ids is None
            else kept_ids.has(table["id"].to_pylist())
        )
        if without is not None:
            is_kept_N = is_kept_N & ~without.has(table["id"].to_pylist())
        row_K = np.flatnonzero(is_kept_N)
        rows = table.take(row_K)
        ids.append(rows["id"].combine_chunks().cast(pa.large_string()))
        part.extend([number] * len(row_K))
        row.frombytes(row_K.astype(np.int32).tobytes())
        split.extend(map(_SPLITS.index, rows["split"].to_pylist()))
        speaker.extend(_tar_hashes(rows) if by_tar else _speaker_hashes(rows))
        duration_ms.frombytes((numpy_array(rows["end_ms"]) - numpy_array(rows["start_ms"])).tobytes())
    joined = pa.concat_arrays(ids or [pa.array([], pa.large_string())])
    ids.clear()  # here most is held at a time: what is done with goes at once
    order_N = numpy_array(pc.sort_indices(joined))
    _refuse_doubled(work, parts, joined, order_N)
    del joined

    def ordered(columns: list[array[int]], kind: DTypeLike) -> NDArray[Any]:
        column_N: NDArray[Any] = np.frombuffer(columns.pop(), kind)[order_N]
        return column_N

    columns = [duration_ms, speaker, split, row, part]
    del duration_ms, speaker, split, row, part
    return KeptUtterances(
        part_N=ordered(columns, np.int32),
        row_N=ordered(columns, np.int32),
        split_N=ordered(columns, np.int8),
        speaker_N=ordered(columns, np.uint64),
        duration_ms_N=ordered(columns, np.int64),
    )


def _refuse_doubled(work: Store, parts: Sequence[join.Part], ids: pa.Array, order_N: NDArray[np.uint64]) -> None:
    """DataError if two neighbours of the sorted ids are equal; a block of them is in memory."""
    import pyarrow.compute as pc

    for start in range(0, len(order_N), _BLOCK):
        block = ids.take(order_N[start : start + _BLOCK + 1])
        if pc.any(pc.equal(block[1:], block[:-1])).as_py():
            raise tables.doubled_ids(work.uri(parts[0].utterances.rpartition("/")[0]), "utterances")


def kept_ids(work: Store, verdicts: str) -> tables.IdSet:
    """The ids of the utterances that the verdicts keep."""
    return tables.IdSet(
        id_
        for table in tables.columns(work, manifest.parts(work, verdicts), Verdict, ("utterance_id", "kept"))
        for id_ in table["utterance_id"].filter(table["kept"]).to_pylist()
    )


def _tar_hashes(utterances: pa.Table) -> Iterator[int]:
    names = ("id", "uri", "channel", "gain_db")
    for id_, uri, channel, gain_db in zip(*(utterances[name].to_pylist() for name in names), strict=True):
        member = TAR_MEMBER.fullmatch(uri)
        if member is None or channel is not None or gain_db is not None:
            raise DataError(
                f"the audio of utterance `{id_}` cannot be used in place",
                code="option-conflict",
                why="`shard.format: in_place` needs whole members of tars: all channels, and their own level",
                fix="set `shard.format: flac`, which writes the audio again",
            )
        yield hash64(member[1])


def _speaker_hashes(utterances: pa.Table) -> Iterator[int]:
    names = ("dataset", "speaker", "recording_id")
    for dataset, speaker, recording in zip(*(utterances[name].to_pylist() for name in names), strict=True):
        yield hash64(repr((dataset, speaker or recording)))


def assign(kept: KeptUtterances, cfg: Shard, seed: int, window: int = WINDOW) -> list[list[NDArray[np.int32]]]:
    """Windows of shards; each utterance, by its place among those kept, is in exactly one shard of its split, shuffled.

    Neighbours are of different speakers and data sets where there are enough to choose from. A shard is within
    `cfg.utterances` and `cfg.max_mb`, but for a single utterance larger than that. A split of up to `window` utterances
    is one window, so its shards depend on the seed and not on the order of the table.
    """
    windows = []
    for number in range(len(_SPLITS)):
        member_M = np.flatnonzero(kept.split_N == number).astype(np.int32)
        random = np.random.default_rng([seed, number])
        for inside_W in _windows(kept.part_N[member_M], window, random):
            place_W = member_M[inside_W]
            order_W = place_W[spread(_groups(kept.speaker_N[place_W]), random)]
            cuts = _bounds(kept.duration_ms_N[order_W] * _BYTES_PER_MS, cfg)
            windows.append([order_W[start:end] for start, end in pairwise(cuts)])
    return windows


def assign_in_place(kept: KeptUtterances, window: int = WINDOW) -> list[list[NDArray[np.int32]]]:
    """Windows of shards; each utterance is in that of its tar, where `survey` went by tars."""
    order_N = np.argsort(kept.speaker_N, kind="stable").astype(np.int32)
    starts = np.flatnonzero(np.diff(kept.speaker_N[order_N], prepend=~kept.speaker_N[order_N[:1]]))
    windows: list[list[NDArray[np.int32]]] = []
    for members in np.split(order_N, starts[1:]):
        if not windows or sum(map(len, windows[-1])) + len(members) > window:
            windows.append([])
        windows[-1].append(members)
    return windows


def _windows(part_M: NDArray[np.int32], window: int, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Where the members of each window are: up to `window`, and less than a part more, of parts drawn at random."""
    num = len(part_M)
    if num <= window:
        yield from [np.arange(num)] if num else []
        return
    sizes_P = np.bincount(part_M)
    drawn_P = random.permutation(np.flatnonzero(sizes_P))  # parts of which nothing was kept count for nothing
    window_P = np.empty(len(sizes_P), np.int32)
    window_P[drawn_P] = (np.cumsum(sizes_P[drawn_P]) - sizes_P[drawn_P]) * -(-num // window) // num
    for number in np.unique(window_P[drawn_P]):
        yield np.flatnonzero(window_P[part_M] == number)


def _groups(speaker_N: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Speakers numbered in the order in which they come first."""
    _, first_G, group_N = np.unique(speaker_N, return_index=True, return_inverse=True)
    number_G = np.empty(len(first_G), np.int64)
    number_G[np.argsort(first_G)] = np.arange(len(first_G))
    return number_G[group_N]


def spread(group_N: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """A random order in which every group is spread evenly from end to end and neighbours differ where they can."""
    num = len(group_N)
    shuffled_N = random.permutation(num)
    by_group_N = shuffled_N[np.argsort(group_N[shuffled_N], kind="stable")]
    sizes_G = np.bincount(group_N)
    sizes_N = np.repeat(sizes_G, sizes_G)
    rank_N = np.arange(num) - np.repeat(np.cumsum(sizes_G) - sizes_G, sizes_G)
    # the k-th of n falls somewhere in the k-th of n equal stretches
    order_N = by_group_N[np.argsort((rank_N + random.random(num)) / sizes_N, kind="stable")]
    return _separate_neighbours(order_N, group_N)


def _separate_neighbours(order_N: NDArray[np.int64], group_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exchange members of pairs that share a group with the nearest that fits, looking a short way ahead and back."""
    order = order_N.tolist()
    group = group_N[order_N].tolist()
    num = len(order)
    crowded = (2 * np.bincount(group_N) > num + 1).tolist()  # it needs more than every other place: no use looking

    def fits(at: int, new: int, other: int) -> bool:
        """Whether group `new` can stand at `at` while `other` is exchanged as well."""
        return all(group[i] != new for i in (at - 1, at + 1) if 0 <= i < num and i != other)

    for i in range(1, num):
        if group[i] != group[i - 1] or crowded[group[i]]:
            continue
        for distance in range(1, 65):
            for j in (i + distance, i - 1 - distance):
                if 0 <= j < num and fits(i, group[j], j) and fits(j, group[i], i):
                    order[i], order[j] = order[j], order[i]
                    group[i], group[j] = group[j], group[i]
                    break
            else:
                continue
            break
    return np.array(order, np.int64)


def _bounds(num_bytes_N: NDArray[np.int64], cfg: Shard) -> list[int]:
    """Bounds of shards of nearly equal numbers of utterances, each within both limits."""
    num, limit = len(num_bytes_N), cfg.max_mb * 1_000_000
    needed = max(-(-num // cfg.utterances), -(-int(num_bytes_N.sum()) // limit))
    most = min(cfg.utterances, -(-num // needed))
    before_N = np.concatenate([[0], np.cumsum(num_bytes_N)])
    cuts = [0]
    while cuts[-1] < num:
        start = cuts[-1]
        fits = int(np.searchsorted(before_N, before_N[start] + limit, side="right")) - 1
        cuts.append(min(start + most, max(fits, start + 1), num))
    return cuts


def jobs(
    work: Store,
    parts: Sequence[join.Part],
    kept: KeptUtterances,
    windows: Sequence[Sequence[NDArray[np.int32]]],
    written: Collection[int],
    aligned: word_times.AlignedParts | None = None,
) -> Iterator[ShardJob]:
    """A job for each shard whose number is not among those `written`; one window of rows at a time is in memory.

    Labels without word times that are to be cut have those of their alignment.
    """
    first = 0
    for window in windows:
        todo = {number: place_K for number, place_K in enumerate(window, start=first) if number not in written}
        if todo:
            yield from _window_jobs(work, parts, kept, todo, aligned)
        first += len(window)


def _window_jobs(
    work: Store,
    parts: Sequence[join.Part],
    kept: KeptUtterances,
    todo: Mapping[int, NDArray[np.int32]],
    aligned: word_times.AlignedParts | None,
) -> Iterator[ShardJob]:
    place_W = np.concatenate(list(todo.values()))
    by_part_W = np.argsort(kept.part_N[place_W], kind="stable")
    utterances, labels = _rows(work, parts, kept, place_W[by_part_W], aligned)
    row_W = np.empty(len(place_W), np.int64)
    row_W[by_part_W] = np.arange(len(place_W))
    start = 0
    for number, place_K in todo.items():
        row_K = row_W[start : start + len(place_K)]
        shard_labels = labels.take(row_K) if len(labels) else labels  # of none or of all
        yield ShardJob(number, tables.arrow_to_parquet(utterances.take(row_K)), tables.arrow_to_parquet(shard_labels))
        start += len(place_K)


def _rows(
    work: Store,
    parts: Sequence[join.Part],
    kept: KeptUtterances,
    place_N: NDArray[np.int32],
    aligned: word_times.AlignedParts | None,
) -> tuple[pa.Table, pa.Table]:
    """Utterances and labels at these places, which are in the order of parts, as two Arrow tables."""
    import pyarrow as pa

    numbers_P, starts_P = np.unique(kept.part_N[place_N], return_index=True)
    rows_P = np.split(kept.row_N[place_N], starts_P[1:])
    utterances, labels = [], []
    chosen = [parts[i] for i in numbers_P]
    read = zip(chosen, join.columns(work, chosen), word_times.read(work, chosen, aligned), rows_P, strict=True)
    for part, (part_utterances, part_labels), part_alignments, row_K in read:
        members = part_utterances.take(row_K)
        if not part.labelled:
            utterances.append(members)
            labels.append(part_labels)
            continue
        rows = join.rows_of(members["id"].to_pylist(), part_labels["utterance_id"].to_pylist())
        if None in rows:
            raise DataError(
                f"utterance `{members['id'][rows.index(None)].as_py()}` was kept and has no label",
                code="step-outdated",
                why=f"labels in `{work.root}` were removed since they were filtered",
                fix="run `voxstill label` and `voxstill filter` again",
            )
        utterances.append(members)
        kept_labels = part_labels.take(rows)
        if aligned is not None and part_alignments is not None:
            kept_labels = word_times.added(kept_labels, members, part_alignments, aligned.max_ms)
        labels.append(kept_labels)
    return pa.concat_tables(utterances).combine_chunks(), pa.concat_tables(labels).combine_chunks()
