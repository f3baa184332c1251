"""Every utterance that is kept lies in exactly one shard, far from others of its speaker, in a shard of its split.

`survey` reads what is kept as columns, `assign` is pure and decides everything, `jobs` reads the tables again, a window
at a time, and `write_shard` is the work of one process on one shard. A shard is there when its sidecar is, and is never
written twice.
"""

from __future__ import annotations

import dataclasses
import io
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill import shards, tables
from voxstill.audio import codec
from voxstill.audio.decoder import Decoder
from voxstill.cache import Cache
from voxstill.config import Shard
from voxstill.errors import DataError, StorageError, VoxstillError
from voxstill.factory import extract, join
from voxstill.factory.manifests import hash64
from voxstill.records import RATE_HZ, Label, Utterance, Verdict
from voxstill.shards import Sample
from voxstill.store import Store

WINDOW = 2**18
"""Utterances that are shuffled together. A split with more is shuffled in several windows, each of parts drawn at
random, so that a shard needs the parts of its window and not those of the whole corpus."""
_BYTES_PER_MS = RATE_HZ * 2 // 1000
_SPLITS = ("train", "dev", "test")
_SURVEYED = ("id", "recording_id", "uri", "channel", "start_ms", "end_ms", "split", "speaker", "dataset")
_MEMBER = re.compile(r"(.+)#(\d+)\+(\d+)")
_LOST = "could not be read when the shard was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The utterances that are kept, in the order of their ids: 25 bytes for each.

    `part_N` is the number of its part of the table and `row_N` its place there; `voice_N` is equal for utterances of
    one speaker of one data set, and `split_N` the place of its split in `train`, `dev`, `test`.
    """

    part_N: NDArray[np.int32]
    row_N: NDArray[np.int32]
    split_N: NDArray[np.int8]
    voice_N: NDArray[np.uint64]
    duration_ms_N: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one shard holds; `dropped` counts utterances whose audio is not what it was, by reason."""

    index: int
    utterances: int
    duration_ms: int
    num_bytes: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Job:
    """One shard to be written: its number, its utterances in order and the label of each, both as Parquet files."""

    index: int
    utterances: bytes
    labels: bytes


@dataclass(frozen=True, slots=True)
class Writer:
    """Makes the work of a process that writes shards below `prefix`."""

    work: Store
    prefix: str
    cfg: Shard
    reading: extract.Reading

    def __call__(self) -> Writing:
        """The work, ready to read audio."""
        return Writing(self, self.reading.cache, self.reading.decoder())


@dataclass(frozen=True, slots=True)
class Writing:
    """Jobs become shards."""

    make: Writer
    cache: Cache | None
    decoder: Decoder

    def __call__(self, jobs: Sequence[Job], _: Any) -> list[Written]:
        """One `Written` for each job."""
        return [
            write_shard(
                self.make.work,
                self.make.prefix,
                job.index,
                tables.from_parquet(job.utterances, Utterance),
                {each.utterance_id: each for each in tables.from_parquet(job.labels, Label)},
                cfg=self.make.cfg,
                cache=self.cache,
                decode=self.decoder.decode,
            )
            for job in jobs
        ]

    def close(self) -> None:
        """End the decoder."""
        self.decoder.close()


def set_aside(job: Job, reason: str) -> Written:
    """A shard that could not be written stops the step: without it the corpus would be silently smaller."""
    raise StorageError(
        f"shard {job.index} cannot be written",
        why=reason,
        fix="check the storage and run `voxstill shard` again; it goes on where it stopped",
    )


# ----------------------------------------------------------------------------------------------------------- planning


def survey(work: Store, parts: Sequence[join.Part], verdicts: str | None, *, by_tar: bool = False) -> Corpus:
    """What is to be known of every utterance that was kept; some 90 bytes for each are in use meanwhile.

    Without verdicts all but those of the test split are kept. With `by_tar` those of one tar are of one voice;
    DataError where one is not a member of a tar.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kept = None if verdicts is None else _kept(work, verdicts)
    ids, part, row, split, voice, duration_ms = [], array("i"), array("i"), array("b"), array("Q"), array("q")
    keys = (each.utterances for each in parts)
    for number, every in enumerate(tables.columns(work, keys, Utterance, _SURVEYED)):
        chosen = pc.not_equal(every["split"], "test").to_numpy() if kept is None else kept.has(every["id"].to_pylist())
        row_K = np.flatnonzero(chosen)
        some = every.take(row_K)
        ids.append(some["id"].combine_chunks().cast(pa.large_string()))
        part.extend([number] * len(row_K))
        row.frombytes(row_K.astype(np.int32).tobytes())
        split.extend(map(_SPLITS.index, some["split"].to_pylist()))
        voice.extend(_tars(some) if by_tar else _voices(some))
        duration_ms.frombytes((some["end_ms"].to_numpy() - some["start_ms"].to_numpy()).tobytes())
    del kept
    joined = pa.concat_arrays(ids or [pa.array([], pa.large_string())])
    ids.clear()  # here most is held at a time: what is done with goes at once
    order_N = pc.sort_indices(joined).to_numpy()
    del joined

    def ordered(columns: list[array[int]], kind: Any) -> NDArray[Any]:
        found: NDArray[Any] = np.frombuffer(columns.pop(), kind)[order_N]
        return found

    columns = [duration_ms, voice, split, row, part]
    del duration_ms, voice, split, row, part
    return Corpus(
        part_N=ordered(columns, np.int32),
        row_N=ordered(columns, np.int32),
        split_N=ordered(columns, np.int8),
        voice_N=ordered(columns, np.uint64),
        duration_ms_N=ordered(columns, np.int64),
    )


def _kept(work: Store, verdicts: str) -> tables.Ids:
    return tables.Ids(
        id_
        for judged in tables.columns(work, tables.parts(work, verdicts), Verdict, ("utterance_id", "kept"))
        for id_ in judged["utterance_id"].filter(judged["kept"]).to_pylist()
    )


def _tars(utterances: Any) -> Iterator[int]:
    names = ("id", "uri", "channel")
    for id_, uri, channel in zip(*(utterances[name].to_pylist() for name in names), strict=True):
        found = _MEMBER.fullmatch(uri)
        if found is None or channel is not None:
            raise DataError(
                f"the audio of utterance `{id_}` cannot stay where it is",
                why="`shard.format: in_place` asks for whole members of tars",
                fix="set `shard.format: flac`, which writes the audio anew",
            )
        yield hash64(found[1])


def _voices(utterances: Any) -> Iterator[int]:
    names = ("dataset", "speaker", "recording_id")
    for dataset, speaker, recording in zip(*(utterances[name].to_pylist() for name in names), strict=True):
        yield hash64(repr((dataset, speaker or recording)))


def assign(corpus: Corpus, cfg: Shard, seed: int, window: int = WINDOW) -> list[list[NDArray[np.int32]]]:
    """Windows of shards; each utterance, by its place in the corpus, is in exactly one shard of its split, shuffled.

    Neighbours are of different speakers and data sets where there are enough to choose from. A shard is within
    `cfg.utterances` and `cfg.max_mb`, but for a single utterance larger than that. A split of up to `window` utterances
    is one window, so its shards depend on the seed and not on the order of the table.
    """
    planned = []
    for number in range(len(_SPLITS)):
        member_M = np.flatnonzero(corpus.split_N == number).astype(np.int32)
        random = np.random.default_rng([seed, number])
        for inside_W in _windows(corpus.part_N[member_M], window, random):
            place_W = member_M[inside_W]
            order_W = place_W[spread(_groups(corpus.voice_N[place_W]), random)]
            cuts = _cut(corpus.duration_ms_N[order_W] * _BYTES_PER_MS, cfg)
            planned.append([order_W[start:end] for start, end in pairwise(cuts)])
    return planned


def assign_in_place(corpus: Corpus, window: int = WINDOW) -> list[list[NDArray[np.int32]]]:
    """Windows of shards; each utterance is in that of its tar, where `survey` went by tars."""
    order_N = np.argsort(corpus.voice_N, kind="stable").astype(np.int32)
    starts = np.flatnonzero(np.diff(corpus.voice_N[order_N], prepend=~corpus.voice_N[order_N[:1]]))
    planned: list[list[NDArray[np.int32]]] = []
    for members in np.split(order_N, starts[1:]):
        if not planned or sum(map(len, planned[-1])) + len(members) > window:
            planned.append([])
        planned[-1].append(members)
    return planned


def _windows(part_M: NDArray[np.int32], most: int, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Where the members of each window are: up to `most`, and less than a part more, of parts drawn at random."""
    num = len(part_M)
    if num <= most:
        yield from [np.arange(num)] if num else []
        return
    sizes_P = np.bincount(part_M)
    drawn_P = random.permutation(np.flatnonzero(sizes_P))  # parts of which nothing was kept have no say
    window_P = np.empty(len(sizes_P), np.int32)
    window_P[drawn_P] = (np.cumsum(sizes_P[drawn_P]) - sizes_P[drawn_P]) * -(-num // most) // num
    for window in np.unique(window_P[drawn_P]):
        yield np.flatnonzero(window_P[part_M] == window)


def _groups(voice_N: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Voices numbered in the order in which they come first."""
    _, first_G, group_N = np.unique(voice_N, return_index=True, return_inverse=True)
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


def jobs(
    work: Store,
    parts: Sequence[join.Part],
    corpus: Corpus,
    windows: Sequence[Sequence[NDArray[np.int32]]],
    there: Collection[int],
) -> Iterator[Job]:
    """A job for each shard whose number is not in `there`; the rows of one window at a time are in memory."""
    first = 0
    for window in windows:
        todo = {number: place_K for number, place_K in enumerate(window, start=first) if number not in there}
        if todo:
            yield from _window_jobs(work, parts, corpus, todo)
        first += len(window)


def _window_jobs(
    work: Store, parts: Sequence[join.Part], corpus: Corpus, todo: Mapping[int, NDArray[np.int32]]
) -> Iterator[Job]:
    place_W = np.concatenate(list(todo.values()))
    by_part_W = np.argsort(corpus.part_N[place_W], kind="stable")
    utterances, labels = _rows(work, parts, corpus, place_W[by_part_W])
    row_W = np.empty(len(place_W), np.int64)
    row_W[by_part_W] = np.arange(len(place_W))
    start = 0
    for number, place_K in todo.items():
        row_K = row_W[start : start + len(place_K)]
        heard = labels.take(row_K) if len(labels) else labels  # of none or of all
        yield Job(number, tables.of_arrow(utterances.take(row_K)), tables.of_arrow(heard))
        start += len(place_K)


def _rows(work: Store, parts: Sequence[join.Part], corpus: Corpus, place_N: NDArray[np.int32]) -> tuple[Any, Any]:
    """Utterances and labels at these places, which are in the order of parts, as two Arrow tables."""
    import pyarrow as pa

    numbers_P, starts_P = np.unique(corpus.part_N[place_N], return_index=True)
    rows_P = np.split(corpus.row_N[place_N], starts_P[1:])
    utterances, labels = [], []
    chosen = [parts[i] for i in numbers_P]
    for part, (said, heard), row_K in zip(chosen, join.columns(work, chosen), rows_P, strict=True):
        members = said.take(row_K)
        if not part.labelled:
            utterances.append(members)
            labels.append(heard)
            continue
        rows = join.rows_of(members["id"].to_pylist(), heard["utterance_id"].to_pylist())
        if None in rows:
            raise DataError(
                f"utterance `{members['id'][rows.index(None)].as_py()}` was kept and has no label",
                why=f"labels in `{work.root}` were removed since they were filtered",
                fix="run `voxstill label` and `voxstill filter` again",
            )
        utterances.append(members)
        labels.append(heard.take(rows))
    return pa.concat_tables(utterances).combine_chunks(), pa.concat_tables(labels).combine_chunks()


# ------------------------------------------------------------------------------------------------------------ writing


def written(work: Store, prefix: str) -> set[int]:
    """Numbers of the shards that are there."""
    return {int(key.rpartition("/")[2].removesuffix(".parquet")) for key in tables.parts(work, prefix)}


def write_shard(
    work: Store,
    prefix: str,
    index: int,
    utterances: Sequence[Utterance],
    labels: Mapping[str, Label],
    *,
    cfg: Shard,
    cache: Cache | None = None,
    decode: Callable[..., codec.Audio] = codec.decode,
) -> Written:
    """Write shard `index` unless it is there already; the sidecar, written last, is the commit.

    An utterance without a label has an empty text. One whose audio is not what it was is counted with its reason.
    StorageError where audio cannot be read, which may pass: a shard without it would be final.
    """
    sidecar, tar = f"{prefix}/{shards.sidecar_name(index)}", f"{prefix}/{shards.tar_name(index)}"
    if work.exists(sidecar):
        return next(counts(work, prefix, {index: len(utterances)}))
    found = (_whole if cfg.format == "in_place" else extract.samples)(utterances, cache, decode)
    audio, dropped = _encode_all(found, cfg)
    if cfg.format == "in_place":
        rows = sorted((sample for sample, _ in _samples(utterances, labels, audio)), key=lambda row: row.offset)
        assert len({row.tar for row in rows}) <= 1, "two tars have one hash"
    else:
        file = io.BytesIO()
        rows = shards.write(file, _samples(utterances, labels, audio))
        if not work.create(tar, file.getvalue()):  # left by a crash, before its sidecar was there
            work.replace(tar, file.getvalue())
    work.create(sidecar, tables.to_parquet(rows, Sample))
    return Written(
        index=index,
        utterances=len(rows),
        duration_ms=sum(row.duration_ms for row in rows),
        num_bytes=sum(row.num_bytes for row in rows),
        dropped=dropped,
    )


def counts(work: Store, prefix: str, planned: Mapping[int, int]) -> Iterator[Written]:
    """What shards that are there hold of the numbers of utterances planned for them."""
    keys = (f"{prefix}/{shards.sidecar_name(index)}" for index in planned)
    sidecars = tables.columns(work, keys, Sample, ("duration_ms", "num_bytes"))
    for (index, num), rows in zip(planned.items(), sidecars, strict=True):
        yield Written(
            index=index,
            utterances=len(rows),
            duration_ms=sum(rows["duration_ms"].to_pylist()),
            num_bytes=sum(rows["num_bytes"].to_pylist()),
            dropped={_LOST: num - len(rows)} if num > len(rows) else {},
        )


def _encode_all(
    found: Iterator[tuple[Utterance, NDArray[np.int16] | VoxstillError]], cfg: Shard
) -> tuple[dict[str, tuple[Sample, bytes]], dict[str, int]]:
    """Audio of each utterance by id, as a sample and its encoded bytes, and why some have none."""
    encoded: dict[str, tuple[Sample, bytes]] = {}
    dropped: Counter[str] = Counter()
    for each, samples_T in found:
        if isinstance(samples_T, DataError):
            dropped[samples_T.what] += 1
            continue
        if isinstance(samples_T, VoxstillError):
            raise samples_T
        if not samples_T.any():  # normalised features of silence are noise of no origin
            dropped["silent"] += 1
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
            **(_place(each.uri) if cfg.format == "in_place" else {"format": cfg.format}),
        )
        encoded[each.id] = sample, b"" if cfg.format == "in_place" else codec.encode(samples_T, cfg.format)
    return encoded, dict(dropped)


def _place(uri: str) -> dict[str, Any]:
    found = _MEMBER.fullmatch(uri)
    assert found is not None, "`survey` lets nothing else pass"
    return {"format": "in_place", "tar": found[1], "offset": int(found[2]), "num_bytes": int(found[3])}


def _whole(
    utterances: Sequence[Utterance], cache: Cache | None, decode: Callable[..., codec.Audio]
) -> Iterator[tuple[Utterance, NDArray[np.int16] | VoxstillError]]:
    """`extract.samples`, where an utterance that is not all of its recording is a DataError."""
    num_samples = 0

    def measured(data: bytes, *, channel: int | None) -> codec.Audio:
        nonlocal num_samples
        audio = decode(data, channel=channel)
        num_samples = len(audio.samples_T)
        return audio

    for each, samples_T in extract.samples(utterances, cache, measured):
        is_part = not isinstance(samples_T, VoxstillError) and len(samples_T) < num_samples
        yield each, DataError("only a part of its member of the tar") if is_part else samples_T


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
