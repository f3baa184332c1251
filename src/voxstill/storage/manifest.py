"""The files of a finished table, written down when it was finished: what is missing later can be named."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from voxstill.storage import tables
from voxstill.storage.store import Store

NAME = "_manifest"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file of a table; `crc32` is that of `_SUCCESS.json`, as parts have their checksum within."""

    name: str
    crc32: int | None = None


def write(work: Store, prefix: str, success: bytes) -> None:
    """Write down the parts of a table, and the checksum of the `_SUCCESS.json` that is written next."""
    rows = [WrittenFile(key.rpartition("/")[2]) for key in tables.parts(work, prefix)]
    rows.append(WrittenFile(tables.SUCCESS, zlib.crc32(success)))
    work.replace(f"{prefix}/{NAME}", tables.to_parquet(rows, WrittenFile))


def read(work: Store, prefix: str) -> list[WrittenFile] | None:
    """The files of a finished table; None where it has no manifest, as those of version 0.1. DataError where it is
    damaged."""
    key = f"{prefix}/{NAME}"
    if not work.exists(key):
        return None
    return tables.from_parquet(work.read(key), WrittenFile, work.uri(key))
