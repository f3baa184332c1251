"""The files of a finished table, written down when it was finished: what is missing or another later can be named."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from voxstill.core.errors import DataError
from voxstill.storage import tables
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store

NAME = "_manifest"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file of a table; `crc32` is that of `_SUCCESS.json`, as parts have their checksum within.

    `num_bytes` is None in manifests of earlier versions.
    """

    name: str
    crc32: int | None = None
    num_bytes: int | None = None


def write(work: Store, prefix: str, success: bytes) -> None:
    """Write down the parts of a table, and the checksum of the `_SUCCESS.json` that is written next."""
    rows = [WrittenFile(name, num_bytes=num_bytes) for name, num_bytes in sorted(_sizes(work, prefix).items())]
    rows.append(WrittenFile(tables.SUCCESS, zlib.crc32(success), len(success)))
    work.replace(f"{prefix}/{NAME}", tables.to_parquet(rows, WrittenFile))


def read(work: Store, prefix: str) -> list[WrittenFile] | None:
    """The files of a finished table; None where it has no manifest, as those of version 0.1. DataError where it is
    damaged."""
    key = f"{prefix}/{NAME}"
    if not work.exists(key):
        return None
    return tables.from_parquet(work.read(key), WrittenFile, work.uri(key))


def parts(work: Store, prefix: str) -> list[str]:
    """The keys of the parts of a table, sorted: all that it was finished with, and those that were added since.

    DataError where one is missing or has another size. What is in a part is compared with its own checksum by whoever
    reads it.
    """
    written = {file.name: file.num_bytes for file in read(work, prefix) or () if file.name != tables.SUCCESS}
    sizes = _sizes(work, prefix)  # read after the manifest, which may be replaced by one of more parts meanwhile
    if missing := sorted(written.keys() - sizes):
        raise _broken(work, prefix, f"{len(missing)} of {len(written)} parts are missing, for one `{missing[0]}`")
    for name, num_bytes in written.items():
        if num_bytes not in (None, sizes[name]):
            why = f"`{name}` has {sizes[name]} bytes, and had {num_bytes} when it was written"
            raise _broken(work, prefix, why)
    return sorted(f"{prefix}/{name}" for name in sizes)


def check_success(work: Store, prefix: str) -> None:
    """DataError where `_SUCCESS.json` of a finished table is not what was written."""
    written = {file.name: file.crc32 for file in read(work, prefix) or ()}
    if written.get(tables.SUCCESS) not in (None, zlib.crc32(work.read(f"{prefix}/{tables.SUCCESS}"))):
        raise _broken(work, prefix, f"its `{tables.SUCCESS}` is not what was written")


def _sizes(work: Store, prefix: str) -> dict[str, int]:
    return {
        entry.key.rpartition("/")[2]: entry.num_bytes for entry in work.list(prefix) if entry.key.endswith(".parquet")
    }


def _broken(work: Store, prefix: str, why: str) -> DataError:
    return DataError(
        f"`{redact_uri(work.uri(prefix))}` is not the table that was finished",
        why=why,
        fix=f"run: voxstill verify {redact_uri(work.root)} --repair",
    )
