"""The shard format: a tar that any WebDataset reader can read, and a sidecar that makes opening it unnecessary.

A prefix holds shards numbered from 0, each of two objects, and one `_SUCCESS.json` written last::

    00000.tar       for each utterance `<key>.flac` (or `.wav`), then `<key>.json`, in the order of the sidecar
    00000.parquet   one `Sample` for each utterance: all that is known of it, and where its audio lies in the tar
    _SUCCESS.json   {"shards": 1, "utterances": 2000, "duration_ms": 24680000, ...}

The tar is POSIX ustar: members are regular files of mode 0644, owner 0 and time 0, so equal samples give equal bytes.
The audio is 16 kHz mono int16, lossless. The JSON holds the fields of the `Sample` but for those that say where and
how the audio is stored; absent fields are null.

A key is the id with every byte but ASCII letters, digits, `_` and `-` written as `%XX`: WebDataset ends a key at the
first dot, and a slash would be a folder. Of a key longer than 80 characters the first 63 stay, followed by `~` and the
fingerprint of the id. The true id is in the JSON and in the sidecar.

The audio of a sample is `num_bytes` bytes of the tar from `offset`, and `crc32` is their CRC-32. The sidecar is written
after its tar: a tar without one is left over from a crash and means nothing. The splits of a corpus are never mixed in
one shard.

Where the audio was left in place, a shard is a sidecar alone. All its samples lie in one `tar`, in their order there,
and may be of any split and of any format. A `tar` that is not an address is a key of the same work folder: that of a
shard of an earlier generation, or of the shards that a mixture was made of.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tarfile
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from voxstill.core.errors import DataError
from voxstill.core.records import Split, UtteranceInfo, Word, fingerprint
from voxstill.storage import tables
from voxstill.storage.arrays import arrow_array
from voxstill.storage.figures import ShardFigures
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_KEY = 80  # ustar has room for 100 characters, ending included
_STORED = ("format", "tar", "offset", "num_bytes", "crc32", "cut_from")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One row of a sidecar. `text` and `words` are what a student learns; `reference` is what a human wrote down.

    `weight` multiplies the utterance's loss. `tar` is the address of the tar of the source, where the
    audio was left there.
    """

    id: str
    split: Split = "train"
    duration_ms: int
    num_samples: int
    text: str = ""
    words: tuple[Word, ...] = ()
    reference: str | None = None
    teacher: str | None = None
    info: UtteranceInfo = field(default_factory=UtteranceInfo)
    weight: float = 1.0
    format: str = "flac"
    tar: str | None = None
    offset: int = 0
    num_bytes: int = 0
    crc32: int | None = None
    """Of the stored audio; None in shards of version 0.1."""
    cut_from: str | None = None
    """The id of the utterance that it was cut from; None if it is a whole one."""


UTTERANCE = ("id", "cut_from")
"""Columns for `utterance_ids`."""


def utterance_ids(rows: pa.Table) -> list[str]:
    """The id of the utterance that each sample is, or was cut from."""
    columns = (rows[name].to_pylist() for name in UTTERANCE)
    return [cut_from or id_ for id_, cut_from in zip(*columns, strict=True)]


def tar_name(index: int) -> str:
    """Name of a shard's tar below its prefix."""
    return f"{index:05}.tar"


def sidecar_name(index: int) -> str:
    """Name of a shard's sidecar below its prefix."""
    return f"{index:05}.parquet"


def tar_address(store: Store, tar: str) -> str:
    """The address of the `tar` of a sample, which may be a key in the store of its sidecar."""
    return tar if "://" in tar or tar.startswith("/") else store.uri(tar)


def key_of(sample_id: str) -> str:
    """The WebDataset key of an id: never empty, no dot, no slash, ASCII, and different for different ids."""
    key = urllib.parse.quote(sample_id, safe="").replace("%", "\0").replace(".", "%2E").replace("~", "%7E")
    key = key.replace("\0", "%")
    return key if 0 < len(key) <= _MAX_KEY else f"{key[:63]}~{fingerprint(sample_id)}"


def write(file: BinaryIO, samples: Iterable[tuple[Sample, bytes]]) -> list[Sample]:
    """Write the samples with their audio as one tar and return them with `offset`, `num_bytes` and `crc32`.

    Holds one sample's audio at a time; equal samples give equal bytes.
    """
    rows: list[Sample] = []
    at = 0

    def add(name: str, data: bytes) -> int:
        nonlocal at
        padding = -len(data) % tarfile.BLOCKSIZE
        for part in (header(name, len(data)), data, bytes(padding)):
            file.write(part)
        start = at + tarfile.BLOCKSIZE
        at = start + len(data) + padding
        return start

    for sample, audio in samples:
        key = key_of(sample.id)
        offset = add(f"{key}.{sample.format}", audio)
        add(f"{key}.json", json.dumps(described(sample), ensure_ascii=False).encode())
        rows.append(dataclasses.replace(sample, offset=offset, num_bytes=len(audio), crc32=zlib.crc32(audio)))
    file.write(end(at))
    return rows


def header(name: str, num_bytes: int) -> bytes:
    """The header of a member of the tar."""
    member = tarfile.TarInfo(name)
    member.size = num_bytes
    return member.tobuf(tarfile.USTAR_FORMAT)


def described(sample: Sample) -> dict[str, object]:
    """What the JSON of a sample says."""
    return {name: value for name, value in tables.to_columns(sample).items() if name not in _STORED}


def end(at: int) -> bytes:
    """What follows the last member, which ends at byte `at`."""
    return bytes(2 * tarfile.BLOCKSIZE + -(at + 2 * tarfile.BLOCKSIZE) % tarfile.RECORDSIZE)


def finish(store: Store, prefix: str, figures: ShardFigures) -> None:
    """Write `_SUCCESS.json` of shards that lie in no work folder: from now on they are whole."""
    store.write_json(f"{prefix}/{tables.SUCCESS}".lstrip("/"), figures.to_dict())


def figures(store: Store, prefix: str) -> ShardFigures:
    """Read `_SUCCESS.json` of finished shards; DataError if they are not finished."""
    counted = store.read_json(f"{prefix}/{tables.SUCCESS}".lstrip("/"))
    if counted is None:
        raise DataError(
            f"the shards in `{store.uri(prefix)}` are not finished",
            code="step-unfinished",
            why=f"there is no {tables.SUCCESS}",
            fix="run `voxstill shard`; it resumes where it stopped",
        )
    return ShardFigures.from_dict(counted)


def version(store: Store, prefix: str) -> str:
    """Hash all sidecars: training on equal ones is the same training. DataError if the shards are not finished."""
    digest = hashlib.sha256()
    for index in range(figures(store, prefix).shards):
        digest.update(hashlib.sha256(store.read(f"{prefix}/{sidecar_name(index)}".lstrip("/"))).digest())
    return digest.hexdigest()


def sidecars(store: Store, prefix: str, splits: Sequence[Split] | None = None) -> Iterator[Any]:
    """Each sidecar as an Arrow table: the fields of `Sample` and `shard`, the number of its tar, in stored order.

    DataError if the shards are not finished, or are not what `_SUCCESS.json` counted.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    counted = figures(store, prefix)
    num_rows = 0
    for index in range(counted.shards):
        key = f"{prefix}/{sidecar_name(index)}".lstrip("/")
        part = tables.to_arrow(store.read(key), Sample, store.uri(key))
        num_rows += len(part)
        part = part.append_column("shard", arrow_array([index] * len(part), pa.int32()))
        if splits is not None:
            part = part.filter(pc.is_in(part["split"], value_set=arrow_array(list(splits), pa.string())))
        yield part
    if num_rows != counted.utterances:
        raise DataError(
            f"the shards in `{store.uri(prefix)}` have changed",
            code="table-broken",
            why=f"{num_rows} utterances are there, but {tables.SUCCESS} has {counted.utterances}",
            fix="run `voxstill verify WORK --repair`, or remove them and run `voxstill shard` again",
        )
