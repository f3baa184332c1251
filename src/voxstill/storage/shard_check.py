"""Compare a shard with its sidecar: every byte of the tar follows from the samples and their audio."""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from voxstill.core.errors import StorageError
from voxstill.storage import shard_format, tables
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_uri
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

_BLOCK = tarfile.BLOCKSIZE


def tar_fault(data: bytes, samples: Sequence[Sample]) -> str | None:
    """The first difference between a tar and its sidecar; None if they agree to the last byte.

    Audio whose sidecar has no checksum (version 0.1) is compared by its place and its size.
    """
    at = 0
    for sample in samples:
        key, start, end = shard_format.key_of(sample.id), sample.offset, sample.offset + sample.num_bytes
        if start != at + _BLOCK or data[at:start] != shard_format.header(f"{key}.{sample.format}", sample.num_bytes):
            return f"the header of the audio of `{sample.id}` has moved or changed"
        if end > len(data):
            return f"it ends in the audio of `{sample.id}`"
        if sample.crc32 not in (None, zlib.crc32(data[start:end])):
            return f"the audio of `{sample.id}` does not have the checksum of its sidecar"
        at = end + -sample.num_bytes % _BLOCK
        if any(data[end:at]):
            return f"there are extra bytes after the audio of `{sample.id}`"
        size = _json_size(data[at : at + _BLOCK])
        start, end = at + _BLOCK, at + _BLOCK + size
        if data[at:start] != shard_format.header(f"{key}.json", size) or not _agrees(data[start:end], sample):
            return f"the JSON of `{sample.id}` is not that of its sidecar"
        at = end + -size % _BLOCK
        if any(data[end:at]):
            return f"there are extra bytes after the JSON of `{sample.id}`"
    if data[at:] != shard_format.end(at):
        return f"it has {len(data):,} bytes, and those after byte {at:,} belong to no sample"
    return None


def place_fault(work: Store, samples: Sequence[Sample]) -> str | None:
    """The first sample whose audio, in a tar of the source or of other shards, is not what it was; else None."""
    with ThreadPoolExecutor(tables.READERS) as pool:
        return next((fault for fault in pool.map(partial(_place_fault, work), samples) if fault is not None), None)


def _place_fault(work: Store, sample: Sample) -> str | None:
    tar = shard_format.tar_address(work, sample.tar or "")
    try:
        data = read_uri(f"{tar}#{sample.offset}+{sample.num_bytes}")
    except StorageError as error:
        return f"the audio of `{sample.id}`: {error.what}"
    if len(data) != sample.num_bytes or sample.crc32 not in (None, zlib.crc32(data)):
        return f"the audio of `{sample.id}` in `{redact_uri(tar)}` has changed"
    return None


def _json_size(header: bytes) -> int:
    try:
        return tarfile.TarInfo.frombuf(header, "utf-8", "strict").size
    except (tarfile.HeaderError, UnicodeError):
        return 0


def _agrees(member: bytes, sample: Sample) -> bool:
    """Whether the JSON says of the sample what its sidecar does; a version with fewer fields wrote fewer."""
    expected = shard_format.described(sample)
    try:
        names = list(json.loads(member))
        return json.dumps({name: expected[name] for name in names}, ensure_ascii=False).encode() == member
    except (ValueError, TypeError, KeyError):
        return False
