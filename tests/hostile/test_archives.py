"""Headers of a tar that cannot be, and small files that unpack to much, are rows with a reason."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import entries_in, refused, wav
from voxstill.core.config import Source
from voxstill.core.errors import DataError
from voxstill.indexing.formats import parquet_audio
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.formats.webdataset import read_tar
from voxstill.indexing.scan import scan
from voxstill.storage.store import Store
from voxstill.text import lm

END = bytes(1024)


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """The header of a member of any size, also of one that no member has."""
    member = tarfile.TarInfo(name)
    member.type = kind
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = (0x80 << 88 | size if size >= 0 else (1 << 96) + size).to_bytes(12, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def extended(key: bytes, value: bytes) -> bytes:
    """An extended header with one record, which begins with its own length."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) > length:
        length += 1
    return member("x", b"%d" % length + rest, tarfile.XHDTYPE)


CHAIN = 5000
HEADERS = {
    "a member of less than no bytes": header("a.wav", -512) + END,
    "a member before its own header": member("a.wav", wav()) + header("b.wav", -(1 << 20)) + END,
    "a member of a size beyond any file": header("a.wav", 1 << 80) + END,
    "an extended header of less than no bytes": header("a", -512, tarfile.XHDTYPE) + END,
    "a long name of less than no bytes": header("a", -512, tarfile.GNUTYPE_LONGNAME) + END,
    "a chain of extended headers": CHAIN * header("a", 0, tarfile.XHDTYPE) + member("a.wav", wav()) + END,
    "a chain of long names": CHAIN * header("a", 0, tarfile.GNUTYPE_LONGNAME) + member("a.wav", wav()) + END,
    "a size below 0": extended(b"size", b"-512") + member("a.wav", wav()) + END,
    "a size of too many digits": extended(b"size", b"9" * 5000) + member("a.wav", wav()) + END,
    "a sparse map that is none": extended(b"GNU.sparse.map", b"1,x") + member("a.wav", wav()) + END,
    "a sparse size that is none": extended(b"GNU.sparse.size", b"9" * 5000) + member("a.wav", wav()) + END,
    "records that take quadratic time": member("x", b"1" * 500_000, tarfile.XHDTYPE) + member("a.wav", wav()) + END,
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_a_header_that_cannot_be_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    entries = list(read_tar(str(tmp_path / "a.tar")))
    assert len(entries) <= 2
    assert entries[-1].failure is not None
    assert entries[-1].failure.kind == "damaged tar"
    (tmp_path / "audio_0.tar").write_bytes(content)  # where NeMo's manifest looks for it
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "c.wav", "shard_id": 0, "duration": 0.2}\n')
    [entry] = entries_in(tmp_path / "m.jsonl")
    assert entry.failure is not None


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_gigabytes_is_not_read(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(header("a", 80 << 30, kind))
    os.truncate(tmp_path / "a.tar", 90 << 30)
    [entry] = read_tar(str(tmp_path / "a.tar"))
    assert entry.failure is not None
    assert "there is a header of" in str(entry.failure.detail)


def test_a_description_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(header("a.json", 40 << 30))
        file.seek(40 << 30, io.SEEK_CUR)
        file.write(member("a.wav", wav()) + END)
    [entry] = read_tar(str(tmp_path / "a.tar"))
    assert entry.failure is not None
    assert "too many to describe audio" in str(entry.failure.detail)


# ------------------------------------------------------------------------------------------------- compressed


def repeated(value: object, kind: pa.DataType, times: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int32)), pa.array([value], kind))


def test_a_small_table_of_very_many_rows_is_refused(tmp_path: Path) -> None:
    table = pa.table({"audio": repeated("a.wav", pa.string(), 2_000_000)})
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=2_000_000)
    assert "rows in" in refused(tmp_path / "m.parquet").why


def test_a_long_text_that_all_rows_share_is_refused(tmp_path: Path) -> None:
    columns = {"audio": repeated("a.wav", pa.string(), 64), "text": repeated("x" * (17 << 20), pa.string(), 64)}
    pq.write_table(pa.table(columns), tmp_path / "m.parquet", compression="zstd")
    assert "longer than" in refused(tmp_path / "m.parquet").why


def unpacked(path: Path, work: Path) -> list[SourceEntry]:
    return list(scan(Source(uri=str(path)), Store(str(work))))


def test_audio_that_all_rows_share_is_not_unpacked_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_audio, "_ALWAYS_BYTES", 1 << 20)
    table = pa.table({"audio": repeated(bytes(1 << 20), pa.binary(), 1000)})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    *_, last = unpacked(tmp_path / "a.parquet", tmp_path / "work")
    assert last.failure is not None
    assert last.failure.kind == "damaged tar"
    assert sum(path.stat().st_size for path in (tmp_path / "work").rglob("*.tar")) < 50 << 20


def test_a_tar_that_compresses_as_no_audio_does_is_not_unpacked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_audio, "_ALWAYS_BYTES", 1 << 20)
    inner = gzip.compress(member("a.wav", wav()) + member("b.wav", bytes(8 << 20)) + END)
    (tmp_path / "a.tar.bz2").write_bytes(bz2.compress(bytes(16 << 20)))
    (tmp_path / "whole.tar.gz").write_bytes(inner)
    [entry] = unpacked(tmp_path / "a.tar.bz2", tmp_path / "work")
    assert entry.failure is not None
    assert sum(path.stat().st_size for path in (tmp_path / "work").rglob("*.tar")) < 2 << 20
    assert len(unpacked(tmp_path / "whole.tar.gz", tmp_path / "other")) == 2


def with_dictionary(data: bytes, size: int) -> bytes:
    """An xz file whose first block asks for another dictionary: 2 | size & 1, shifted by size / 2 + 11 (LZMA2)."""
    whole = bytearray(lzma.compress(data))
    start, length = 12, (whole[12] + 1) * 4
    assert whole[start + 2 : start + 4] == b"\x21\x01"  # LZMA2 and the length of its properties
    whole[start + 4] = size
    whole[start + length - 4 : start + length] = zlib.crc32(whole[start : start + length - 4]).to_bytes(4, "little")
    return bytes(whole)


def test_an_archive_that_needs_gigabytes_of_memory_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = member("a.wav", wav()) + member("b.wav", wav()) + END
    half = len(whole) // 2
    streams = lzma.compress(whole[:half]) + bytes(8) + with_dictionary(whole[half:], 28) + bytes(4)  # of 64 MiB
    (tmp_path / "several.tar.xz").write_bytes(streams)
    assert [entry.failure for entry in unpacked(tmp_path / "several.tar.xz", tmp_path / "work")] == [None, None]
    (tmp_path / "short.tar.xz").write_bytes(streams[:-100])
    assert unpacked(tmp_path / "short.tar.xz", tmp_path / "short")[-1].failure is not None
    (tmp_path / "a.tar.xz").write_bytes(with_dictionary(whole, 40))  # of 4 GiB
    [entry] = unpacked(tmp_path / "a.tar.xz", tmp_path / "other")
    assert entry.failure is not None
    assert "It is incomplete: Memory usage limit exceeded" in caplog.text


def test_a_language_model_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm, "MAX_BYTES", 1 << 20)
    (tmp_path / "a.arpa.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(DataError, match="is not a language model") as caught:
        lm.read(str(tmp_path / "a.arpa.gz"))
    assert "unpacks to more than" in caught.value.why
