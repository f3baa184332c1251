"""Parquet files with checksums: every page has a checksum, and so has the file.

A page's checksum covers its data alone. What says where they lie and what they mean (the header of the page, the
footer of the file) is covered by a CRC-32 of the whole file, in the footer, counted with zeros in its own place.
Files of version 0.1 have neither and are read as they are.
"""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxstill.core.errors import DataError, first_line
from voxstill.storage.store import Entry, Store

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_MARK, _SUM = "voxstill.checksum", "voxstill.crc32"
"""Keys of the footer. Two, so that a flipped bit in the name of one does not make the file look like an old one."""
_NO_SUM = "00000000"


_TAIL_BYTES = 16_384
"""Most footers are shorter."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What the footer of a file says: its checksum, None in files of version 0.1, and the number of its rows."""

    crc32: int | None
    num_rows: int


def encode(table: pa.Table) -> bytes:
    """A table as one Parquet file; equal columns give equal bytes."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_MARK: "1", _SUM: _NO_SUM})
    data = sink.getvalue()
    place = _place(data)
    assert place is not None
    return b"".join((data[:place], b"%08x" % zlib.crc32(data), data[place + len(_NO_SUM) :]))


def decode(data: bytes, where: str, what: str = "table") -> pq.ParquetFile:
    """Open a Parquet file; DataError if it is none, or not the one that was written, down to the last bit."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not _is_whole(data):
        raise _refused(where, what, "its bytes do not match its checksum")
    try:
        return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise refused(error, where, what) from None


def checksum(data: bytes) -> int | None:
    """The checksum that stands in a file, or in the end of one; None in files of version 0.1."""
    place = _place(data)
    if place is None:
        return None
    return int(data[place : place + len(_NO_SUM)], 16)


def read_footer(store: Store, entry: Entry) -> Footer:
    """The footer of a file, and nothing else is read; DataError if it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_bytes = min(entry.num_bytes, _TAIL_BYTES)
    try:
        while True:
            tail = store.read_range(entry.key, entry.num_bytes - num_bytes, entry.num_bytes) if num_bytes else b""
            size = int.from_bytes(tail[-8:-4], "little") + 8
            if size <= num_bytes or num_bytes == entry.num_bytes:
                break
            num_bytes = min(entry.num_bytes, size)
        num_rows = pq.read_metadata(pa.BufferReader(tail)).num_rows
        crc32 = checksum(tail)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise refused(error, store.uri(entry.key)) from None
    return Footer(crc32, num_rows)


def refused(error: Exception, where: str, what: str = "table") -> DataError:
    """The DataError for what Arrow says of a file."""
    return _refused(where, what, first_line(error))


def _refused(where: str, what: str, why: str) -> DataError:
    fix = "run `voxstill verify WORK --repair`, or remove the file and run the step again"
    return DataError(f"`{where}` is not a {what}", code="table-broken", why=why, fix=fix)


def _place(data: bytes) -> int | None:
    """Where the checksum stands: behind its key, the header of a field and its length (Thrift's compact protocol); None
    where there is none."""
    start = data.rfind(_SUM.encode())  # from the end, where the footer is
    return start + len(_SUM) + 2 if start >= 0 else None


def _is_whole(data: bytes) -> bool:
    """Whether a file has the checksum in it, or none."""
    place = _place(data)
    if place is None:
        return _MARK.encode() not in data
    end = place + len(_NO_SUM)
    counted = zlib.crc32(data[end:], zlib.crc32(_NO_SUM.encode(), zlib.crc32(data[:place])))
    return data[place:end] == b"%08x" % counted
