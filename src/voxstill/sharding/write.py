"""Write shards: a tar with the audio and labels of its utterances, and a sidecar with all that is known of them.

A shard is there when its sidecar is, and is never written twice.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import codec, read_utterances
from voxstill.audio.contents import ContentHashes
from voxstill.audio.decoder import Decoder
from voxstill.audio.level import Gain
from voxstill.core import pcm
from voxstill.core.config import Shard
from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.core.records import Label, Utterance
from voxstill.engine import StageWork
from voxstill.sharding.assign import TAR_MEMBER, ShardJob
from voxstill.sharding.cut_labels import Shorter, shorten
from voxstill.storage import shard_format, tables
from voxstill.storage.cache import Cache
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

_LOST = "could not be read when the shard was written"
_UNCUT = "not cut when the shard was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenShard:
    """What one shard holds; `dropped` counts utterances whose audio cannot be used, by reason."""

    index: int
    utterances: int
    duration_ms: int
    num_bytes: int
    dropped: Mapping[str, int]
    uncut: Mapping[str, int]
    """Utterances longer than `shard.max_ms`, by what kept them from being cut."""
    changed: Sequence[str] = ()
    """Utterances whose source has changed since it was indexed: then nothing of the shard was written."""


@dataclass
class ShardWriter(StageWork):
    """Write shards below `prefix` for the engine: jobs in, one `WrittenShard` for each out."""

    work: Store
    prefix: str
    cfg: Shard
    reading: read_utterances.Reading
    _decoder: Decoder | None = field(default=None, init=False, repr=False, compare=False)

    def open(self) -> None:
        """Start the decoder."""
        self._decoder = self.reading.decoder()

    def __call__(self, jobs: Sequence[ShardJob], payload: object) -> list[WrittenShard]:
        """Write the shards of a chunk."""
        decode = codec.decode if self._decoder is None else self._decoder.decode
        return [
            write_shard(
                self.work,
                self.prefix,
                job.index,
                tables.from_parquet(job.utterances, Utterance),
                {label.utterance_id: label for label in tables.from_parquet(job.labels, Label)},
                cfg=self.cfg,
                cache=self.reading.cache,
                decode=decode,
                contents=self.reading.contents,
            )
            for job in jobs
        ]

    def close(self) -> None:
        """End the decoder."""
        if self._decoder is not None:
            self._decoder.close()


def set_aside(job: ShardJob, reason: str) -> WrittenShard:
    """A shard that could not be written stops the step: without it the corpus would be silently smaller."""
    raise StorageError(
        f"shard {job.index} cannot be written",
        code="part-failed",
        why=reason,
        fix="check the storage and run `voxstill shard` again; it resumes where it stopped",
    )


def written_shards(work: Store, prefix: str) -> set[int]:
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
    contents: ContentHashes | None = None,
) -> WrittenShard:
    """Write shard `index` unless it is there already; the sidecar, written last, is the commit.

    An utterance without a label has an empty text. One whose audio cannot be used is counted with its reason. Where a
    source has changed since it was indexed nothing is written, and StorageError if one cannot be read: both may
    pass, and a shard without the audio would be final.
    """
    sidecar, tar = f"{prefix}/{shard_format.sidecar_name(index)}", f"{prefix}/{shard_format.tar_name(index)}"
    if work.exists(sidecar):
        return next(written_counts(work, prefix, {index: len(utterances)}, cfg.max_ms))
    shorter = shorten(utterances, labels, cfg.max_ms)
    utterances = shorter.utterances
    crc32_of: dict[str, int] = {}
    if cfg.format == "in_place":
        audio = _whole_members(utterances, cache, decode, contents, crc32_of)
    else:
        audio = read_utterances.samples(utterances, cache, decode, contents)
    labelled = functools.partial(_labelled, shorter, exponent=cfg.confidence_weight)
    encoded, dropped, changed = _encode_all(audio, cfg)
    if changed:
        ids = tuple(dict.fromkeys(shorter.cut_from.get(id_) or id_ for id_ in changed))
        return WrittenShard(index=index, utterances=0, duration_ms=0, num_bytes=0, dropped={}, uncut={}, changed=ids)
    if cfg.format == "in_place":
        placed = sorted((sample for sample, _ in labelled(encoded)), key=lambda row: row.offset)
        rows = [dataclasses.replace(row, crc32=crc32_of[row.id]) for row in placed]
        assert len({row.tar for row in rows}) <= 1, "two tars have the same hash"
    else:
        file = io.BytesIO()
        rows = shard_format.write(file, labelled(encoded))
        if not work.create(tar, file.getvalue()):  # left by a crash, before its sidecar was there
            work.replace(tar, file.getvalue())
    work.create(sidecar, tables.to_parquet(rows, Sample))
    return WrittenShard(
        index=index,
        utterances=len(rows),
        duration_ms=sum(row.duration_ms for row in rows),
        num_bytes=sum(row.num_bytes for row in rows),
        dropped=dropped,
        uncut=shorter.uncut,
    )


def written_counts(work: Store, prefix: str, planned: Mapping[int, int], max_ms: int | None) -> Iterator[WrittenShard]:
    """What shards that are written hold of the numbers of utterances planned for them, by shard."""
    keys = (f"{prefix}/{shard_format.sidecar_name(index)}" for index in planned)
    sidecars = tables.columns(work, keys, Sample, (*shard_format.UTTERANCE, "duration_ms", "num_bytes"))
    for (index, num), rows in zip(planned.items(), sidecars, strict=True):
        durations_ms = rows["duration_ms"].to_pylist()
        written = len(rows) if max_ms is None else len(set(shard_format.utterance_ids(rows)))
        uncut = 0 if max_ms is None else sum(duration_ms > max_ms for duration_ms in durations_ms)
        yield WrittenShard(
            index=index,
            utterances=len(rows),
            duration_ms=sum(durations_ms),
            num_bytes=sum(rows["num_bytes"].to_pylist()),
            dropped={_LOST: num - written} if num > written else {},
            uncut={_UNCUT: uncut} if uncut else {},
        )


def _encode_all(
    audio: Iterator[tuple[Utterance, NDArray[np.int16] | VoxstillError]], cfg: Shard
) -> tuple[dict[str, tuple[Sample, bytes]], dict[str, int], list[str]]:
    """Audio of each utterance by id, as a sample and its encoded bytes; why some have none; and those that changed."""
    encoded: dict[str, tuple[Sample, bytes]] = {}
    dropped: Counter[str] = Counter()
    changed: list[str] = []
    for utterance, samples_T in audio:
        if isinstance(samples_T, read_utterances.ChangedError):
            changed.append(utterance.id)
            continue
        if isinstance(samples_T, DataError):
            dropped[samples_T.what] += 1
            continue
        if isinstance(samples_T, VoxstillError):
            raise samples_T
        if not samples_T.any():  # normalised features of silence are noise of no origin
            dropped["silent"] += 1
            continue
        sample = Sample(
            id=utterance.id,
            split=utterance.split,
            duration_ms=pcm.samples_to_ms(len(samples_T)),
            num_samples=len(samples_T),
            reference=utterance.text if utterance.split != "train" else None,  # what is not there is not learnt from
            info=utterance.info,
            weight=1.0 if utterance.weight is None else utterance.weight,
            format=cfg.format,
        )
        if cfg.format == "in_place":
            encoded[utterance.id] = _in_place(sample, utterance.uri), b""
        else:
            encoded[utterance.id] = sample, codec.encode(samples_T, cfg.format)
    return encoded, dict(dropped), changed


def _in_place(sample: Sample, uri: str) -> Sample:
    """The sample with the place of its audio, which is a member of a tar of the source."""
    member = TAR_MEMBER.fullmatch(uri)
    assert member is not None, "`survey` lets nothing else pass"
    return dataclasses.replace(sample, tar=member[1], offset=int(member[2]), num_bytes=int(member[3]))


def _whole_members(
    utterances: Sequence[Utterance],
    cache: Cache | None,
    decode: Callable[..., codec.Audio],
    contents: ContentHashes | None,
    crc32_of: dict[str, int],
) -> Iterator[tuple[Utterance, NDArray[np.int16] | VoxstillError]]:
    """`read_utterances.samples`, where an utterance that is not all of its recording is a DataError.

    The checksum of the stored bytes of each is put into `crc32_of`, by its id.
    """
    num_samples = crc32 = 0

    def measured(data: bytes, *, channel: int | None, gain: Gain) -> codec.Audio:
        nonlocal num_samples, crc32
        audio = decode(data, channel=channel, gain=gain)
        num_samples, crc32 = len(audio.samples_T), zlib.crc32(data)
        return audio

    for utterance, samples_T in read_utterances.samples(utterances, cache, measured, contents):
        crc32_of[utterance.id] = crc32
        is_part = not isinstance(samples_T, VoxstillError) and len(samples_T) < num_samples
        yield (
            utterance,
            DataError("only a part of its member of the tar", code="not-in-audio") if is_part else samples_T,
        )


def _labelled(
    shorter: Shorter, encoded: dict[str, tuple[Sample, bytes]], *, exponent: float
) -> Iterator[tuple[Sample, bytes]]:
    """Samples with their labels in the order of the utterances; the bytes of each are let go once it was taken.

    The weight of each is multiplied by the confidence of its label to the power of `exponent`.
    """
    for utterance in shorter.utterances:
        if utterance.id not in encoded:
            continue
        sample, audio = encoded.pop(utterance.id)
        sample = dataclasses.replace(sample, cut_from=shorter.cut_from.get(utterance.id))
        label = shorter.labels.get(utterance.id)
        if label is not None:
            info = dataclasses.replace(sample.info, language=sample.info.language or label.language)
            sample = dataclasses.replace(sample, text=label.text, words=label.words, teacher=label.teacher, info=info)
            if label.mean_logprob is not None:
                weight = sample.weight * math.exp(exponent * min(label.mean_logprob, 0.0))
                sample = dataclasses.replace(sample, weight=weight)
        yield sample, audio
