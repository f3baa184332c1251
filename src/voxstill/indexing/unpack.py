"""Unpack compressed tars and Parquet files with audio inside, once, into the work folder: nothing can be read from the
middle of a compressed file."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from voxstill.core.errors import StorageError, first_line, system_code
from voxstill.core.monitor import clock, log
from voxstill.core.records import fingerprint
from voxstill.indexing.formats import parquet_audio
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.formats.remote_file import open_manifest
from voxstill.indexing.formats.webdataset import file_name
from voxstill.storage import lease
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path

_PART_BYTES = 1 << 20
_XZ_BYTES = 256 << 20
"""A decompressor takes no more memory: `xz -9` needs 65 MiB, and a file may ask for 4 GiB."""


class _Xz:
    """Decompresses a file of xz streams; LZMAError if one needs more than `_XZ_BYTES` of memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decoder = file, lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_BYTES)

    def read(self, num_bytes: int) -> bytes:
        """Up to so many bytes; none at the end. EOFError if the file ends too early."""
        while True:
            if self._decoder.eof:
                following = self._decoder.unused_data.lstrip(b"\0") or self._file.read(_PART_BYTES).lstrip(b"\0")
                if not following:
                    return b""
                self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_BYTES)
            else:
                following = self._file.read(_PART_BYTES) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not following:
                    raise EOFError("the compressed file ends too early")
            if part := self._decoder.decompress(following, num_bytes):
                return part


_DECOMPRESSORS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": _Xz,
    b"\x28\xb5\x2f\xfd": lambda file: _by_arrow(file, "zstd"),
    b"\x04\x22\x4d\x18": lambda file: _by_arrow(file, "lz4"),
}
"""By the first bytes of a file; what begins otherwise is taken as it is."""


def unpacked_tar(file: SourceEntry, work: Store) -> str:
    """Unpack a compressed tar, or a Parquet file with audio inside, unless it was; returns the address of a plain tar.

    The tar is kept in the work folder by the version of the file and, of a file on this machine, by its content: one
    that was only touched is not unpacked again. Time and space are logged. One that breaks off gives what comes before.
    StorageError if it cannot be kept, or where another process unpacks it now: a copy over that one would have
    another time, so its recordings other ids.
    """
    version = fingerprint(file.uri, file.etag, file.num_bytes)
    if (key := _kept(work, file, version)) is None:
        with lease.hold(work, f"unpacked/{version}", "index"):
            key = _kept(work, file, version)  # another process may have unpacked it meanwhile
            if key is None:
                content = f"-{_content_of(file.uri)}" if is_local(file.uri) else ""
                key = f"unpacked/{version}{content}.tar"
                _keep(file, work, key)
    return work.uri(key)


def _kept(work: Store, file: SourceEntry, version: str) -> str | None:
    """The key of the plain tar of this version of a file, or of one of equal content; None if there is none."""
    copies = {Path(entry.key).stem: entry.key for entry in work.list("unpacked") if entry.key.endswith(".tar")}
    key = next((key for name, key in copies.items() if name.partition("-")[0] == version), None)
    if key is None and copies and is_local(file.uri):
        content = _content_of(file.uri)
        key = next((key for name, key in copies.items() if name.partition("-")[2] == content), None)
    return key


def _content_of(uri: str) -> str:
    with open_manifest(uri) as file:
        content = hashlib.file_digest(cast(io.BufferedReader, file), lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    return fingerprint(uri, content)


def _keep(file: SourceEntry, work: Store, key: str) -> None:
    """Unpack a file into the work folder, under this key."""
    start = time.perf_counter()
    folder = local_path(work.root) / "unpacked" if is_local(work.root) else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=".part-", dir=folder) as part:
        fault = _unpack(file.uri, part.file)
        part.flush()
        part.seek(0, io.SEEK_END)
        num_bytes = part.tell()
        work.upload(key, Path(part.name))
    seconds = time.perf_counter() - start
    log.warning(
        "`%s` %s: unpacking it took %s, %.0f MB/s, and its copy in `%s` takes %.1f MB%s; "
        "shards that are made of it need neither",
        redact_uri(file.uri),
        "has audio inside Parquet" if file_name(file.uri).endswith(".parquet") else "is compressed",
        clock(seconds),
        num_bytes / 1e6 / seconds,
        redact_uri(work.uri(key)),
        num_bytes / 1e6,
        f". It is incomplete: {fault}" if fault else "",
    )


def _unpack(uri: str, out: IO[bytes]) -> str | None:
    """Write everything that can be unpacked to `out`; returns the reason, where that is not all."""
    try:
        if file_name(uri).endswith(".parquet"):
            return parquet_audio.write_tar(uri, out)
        for part in _parts(uri):
            if isinstance(part, str):
                return part
            out.write(part)
    except OSError as error:  # that of reading is a DataError by then
        raise StorageError(
            f"`{redact_uri(uri)}` cannot be unpacked",
            code=system_code(error),
            why=error.strerror or str(error),
            fix="free some space in the work folder",
        ) from None
    return None


def _parts(uri: str) -> Iterator[bytes | str]:
    """Decompressed bytes, and as the last part the reason, as text, where they are not all."""
    import pyarrow as pa

    with open_manifest(uri) as file:
        num_bytes, num_unpacked = file.seek(0, io.SEEK_END), 0
        file.seek(0)
        head = file.read(8)
        file.seek(0)
        decompress = next(
            (opener for start, opener in _DECOMPRESSORS.items() if head.startswith(start)), lambda file: file
        )
        stream = decompress(file)
        while True:
            try:
                part = stream.read(_PART_BYTES)
            except (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
                if getattr(error, "errno", None) is not None:  # of the disk, not of what is on it
                    raise
                yield first_line(error)
                return
            if not part:
                return
            num_unpacked += len(part)
            if why := parquet_audio.unpacks_to_too_much(num_unpacked, num_bytes):
                yield why
                return
            yield part


def _by_arrow(file: BinaryIO, codec: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
