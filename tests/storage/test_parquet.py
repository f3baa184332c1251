"""Parquet files with checksums: no flipped bit, cut or torn file is read as other data; files without are read."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from voxstill.core.errors import DataError
from voxstill.storage import parquet

TABLE = pa.table({"id": ["a", "b", "c"], "n": [1, 2, 3], "text": ["voxstill.crc32", None, "voxstill.checksum"]})
WHOLE = parquet.encode(TABLE)


def is_read(data: bytes) -> bool:
    try:
        return parquet.decode(data, "t.parquet").read().equals(TABLE)
    except DataError:
        return False


def test_what_was_written_is_read_by_us_and_by_others_and_equal_tables_are_equal_bytes() -> None:
    assert is_read(WHOLE)
    assert pq.read_table(io.BytesIO(WHOLE), page_checksum_verification=True).equals(TABLE)
    assert parquet.encode(TABLE) == WHOLE


def test_no_flipped_bit_goes_unnoticed() -> None:
    for place in range(len(WHOLE)):
        data = bytearray(WHOLE)
        data[place] ^= 1 << place % 8
        assert not is_read(bytes(data)), place


def test_the_error_names_the_file() -> None:
    with pytest.raises(DataError, match=r"t\.parquet"):
        parquet.decode(WHOLE[:-1], "t.parquet")


@pytest.mark.parametrize("step", [1, 7, 100])
def test_no_cut_goes_unnoticed(step: int) -> None:
    assert not any(is_read(WHOLE[:end]) for end in range(0, len(WHOLE), step))
    assert not is_read(WHOLE + bytes(step))


def test_a_file_of_version_0_1_is_read() -> None:
    sink = io.BytesIO()
    pq.write_table(TABLE.drop_columns(["text"]), sink, compression="zstd")
    assert parquet.decode(sink.getvalue(), "t.parquet").read().equals(TABLE.drop_columns(["text"]))


def test_pages_have_checksums_for_readers_that_know_no_other() -> None:
    column = pq.read_metadata(io.BytesIO(WHOLE)).row_group(0).column(1)
    data = bytearray(WHOLE)
    data[(column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(io.BytesIO(bytes(data)), page_checksum_verification=True)
