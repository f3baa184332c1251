"""Every utterance that is kept lies in exactly one shard, far from others of its speaker, in a shard of its split.

`assign` is pure and decides everything; `write_shard` is the work of one process on one shard. A shard is there when
its sidecar is, and is never written twice.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill import shards, tables
from voxstill.audio import codec
from voxstill.config import Shard
from voxstill.errors import StorageError, VoxstillError
from voxstill.factory import extract
from voxstill.records import RATE_HZ, Label, Utterance
from voxstill.shards import Sample
from voxstill.store import Store

_BYTES_PER_MS = RATE_HZ * 2 // 1000
_SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one shard holds; `dropped` names utterances whose audio can no longer be read, each with its reason."""

    index: int
    utterances: int
    duration_ms: int
    num_bytes: int
    dropped: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Job:
    """One shard to be written: its number, its utterances in order, and the label of each."""

    index: int
    utterances: tuple[Utterance, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Writer:
    """Makes the work of a process that writes shards below `prefix`."""

    work: Store
    prefix: str
    cfg: Shard

    def __call__(self) -> Callable[[Sequence[Job], Any], list[Written]]:
        """The work: one `Written` for each job."""

        def write(jobs: Sequence[Job], _: Any) -> list[Written]:
            return [
                write_shard(
                    self.work,
                    self.prefix,
                    job.index,
                    job.utterances,
                    {each.utterance_id: each for each in job.labels},
                    cfg=self.cfg,
                )
                for job in jobs
            ]

        return write


def set_aside(job: Job, reason: str) -> Written:
    """A shard that could not be written stops the step: without it the corpus would be silently smaller."""
    raise StorageError(
        f"shard {job.index} cannot be written", why=reason, fix="check the storage and run `voxstill shard` again"
    )


def assign(utterances: Sequence[Utterance], cfg: Shard, seed: int) -> list[list[Utterance]]:
    """Each utterance in exactly one shard of its split, shuffled; equal for a seed whatever the order given.

    Neighbours are of different speakers and data sets where there are enough to choose from. A shard is within
    `cfg.utterances` and `cfg.max_mb`, but for a single utterance larger than that.
    """
    planned: list[list[Utterance]] = []
    ordered = sorted(utterances, key=lambda each: each.id)
    for number, split in enumerate(_SPLITS):
        members = [each for each in ordered if each.split == split]
        if not members:
            continue
        voices: dict[tuple[str | None, str], int] = {}
        group_N = np.array(
            [voices.setdefault((each.dataset, each.speaker or each.recording_id), len(voices)) for each in members]
        )
        order_N = spread(group_N, np.random.default_rng([seed, number]))
        num_bytes_N = np.array([members[i].duration_ms for i in order_N], np.int64) * _BYTES_PER_MS
        cuts = _cut(num_bytes_N, cfg)
        planned += [[members[i] for i in order_N[start:end]] for start, end in pairwise(cuts)]
    return planned


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
    return _part_neighbours(order_N, group_N)


def _part_neighbours(order_N: NDArray[np.int64], group_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exchange members of pairs that share a group with the nearest that fits, looking a short way ahead and back."""
    order = order_N.tolist()
    group = group_N[order_N].tolist()
    num = len(order)
    crowded = (2 * np.bincount(group_N) > num + 1).tolist()  # more than every other place is theirs: no use looking

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


def _cut(num_bytes_N: NDArray[np.int64], cfg: Shard) -> list[int]:
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


def write_shard(
    work: Store, prefix: str, index: int, utterances: Sequence[Utterance], labels: Mapping[str, Label], *, cfg: Shard
) -> Written:
    """Write shard `index` unless it is there already; the sidecar, written last, is the commit.

    An utterance without a label has an empty text. One whose audio is not what it was is counted with its reason;
    StorageError where that is so of all of them because nothing can be read.
    """
    sidecar, tar = f"{prefix}/{shards.sidecar_name(index)}", f"{prefix}/{shards.tar_name(index)}"
    if work.exists(sidecar):
        rows = tables.from_parquet(work.read(sidecar), Sample, work.uri(sidecar))
        there = {row.id for row in rows}
        reason = "could not be read when the shard was written"
        return _written(index, rows, {each.id: reason for each in utterances if each.id not in there})
    audio, dropped = _encode_all(utterances, cfg)
    file = io.BytesIO()
    rows = shards.write(file, _samples(utterances, labels, audio))
    if not work.create(tar, file.getvalue()):  # left by a crash, before its sidecar was there
        work.replace(tar, file.getvalue())
    work.create(sidecar, tables.to_parquet(rows, Sample))
    return _written(index, rows, dropped)


def _written(index: int, rows: Sequence[Sample], dropped: Mapping[str, str]) -> Written:
    return Written(
        index=index,
        utterances=len(rows),
        duration_ms=sum(row.duration_ms for row in rows),
        num_bytes=sum(row.num_bytes for row in rows),
        dropped=dropped,
    )


def _encode_all(utterances: Sequence[Utterance], cfg: Shard) -> tuple[dict[str, tuple[Sample, bytes]], dict[str, str]]:
    """Audio of each utterance by id, as a sample and its encoded bytes, and why some have none."""
    encoded: dict[str, tuple[Sample, bytes]] = {}
    dropped: dict[str, str] = {}
    unread: StorageError | None = None
    for each, samples_T in extract.samples(utterances):
        if isinstance(samples_T, VoxstillError):
            dropped[each.id] = samples_T.what
            unread = samples_T if isinstance(samples_T, StorageError) else unread
            continue
        if not samples_T.any():  # normalised features of silence are noise of no origin
            dropped[each.id] = "silent"
            continue
        sample = Sample(
            id=each.id,
            split=each.split,
            duration_ms=codec.samples_to_ms(len(samples_T)),
            num_samples=len(samples_T),
            reference=each.text if each.split != "train" else None,  # nobody learns from what is not there
            language=each.language,
            speaker=each.speaker,
            dialect=each.dialect,
            dataset=each.dataset,
            format=cfg.format,
        )
        encoded[each.id] = sample, codec.encode(samples_T, cfg.format)
    if unread is not None and not encoded:
        raise unread
    return encoded, dropped


def _samples(
    utterances: Sequence[Utterance], labels: Mapping[str, Label], encoded: dict[str, tuple[Sample, bytes]]
) -> Iterator[tuple[Sample, bytes]]:
    """Samples with their labels in the order of `utterances`; each one's bytes are let go when it was taken."""
    for each in utterances:
        if each.id not in encoded:
            continue
        sample, audio = encoded.pop(each.id)
        label = labels.get(each.id)
        if label is not None:
            language = sample.language or label.language
            sample = dataclasses.replace(
                sample, text=label.text, words=label.words, teacher=label.teacher, language=language
            )
        yield sample, audio
