"""Compressed tars are unpacked once, and what cannot be is told."""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from manifests import indexed, refused, wav, write_tar
from voxstill.audio import codec
from voxstill.core.config import Source
from voxstill.core.errors import StorageError
from voxstill.indexing.scan import scan
from voxstill.indexing.unpack import _unpack
from voxstill.storage.fetch import fetch
from voxstill.storage.store import Store


def squeezed(path: Path, ending: str) -> Path:
    """The same tar compressed, beside it."""
    data = path.read_bytes()
    if ending in ("zst", "lz4"):
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, "zstd" if ending == "zst" else "lz4") as stream:
            stream.write(data)
        small = out.getvalue().to_pybytes()
    else:
        small = {"gz": gzip, "bz2": bz2, "xz": lzma}[ending].compress(data)
    archive = path.with_name(f"{path.name}.{ending}")
    archive.write_bytes(small)
    return archive


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst", "lz4"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_compressed_tar_is_unpacked_once_into_the_work_folder_and_its_cost_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str, alone: bool
) -> None:
    (tmp_path / "f").mkdir()
    members = {"0.wav": wav(300), "1.wav": wav(301), "1.txt": b"one two", "2.wav": wav(302)}
    path = squeezed(write_tar(tmp_path / "t.tar", members), ending)
    path = path.rename(tmp_path / "f" / path.name)
    work = Store(str(tmp_path / "work"))
    with caplog.at_level(logging.WARNING):
        first = list(scan(Source(uri=str(path if alone else path.parent)), work))
        again = list(scan(Source(uri=str(path if alone else path.parent)), work))
    assert first == again
    assert [fetch(row.uri).data for row in first] == [members[f"{k}.wav"] for k in range(3)]
    assert [row.text for row in first] == [None, "one two", None]
    assert sum("is compressed: unpacking it took" in line for line in caplog.messages) == 1
    assert not any("--from" in line for line in caplog.messages)  # the command that is run may be just that
    assert len(list(Path(work.root, "unpacked").iterdir())) == 1


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst", "lz4"])
def test_a_compressed_tar_that_breaks_off_gives_what_comes_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    noise_NT = np.random.default_rng(0).integers(-9000, 9000, (3, 1_000_000)).astype(np.int16)
    members = {f"{k}.wav": codec.encode(noise_T, "wav") for k, noise_T in enumerate(noise_NT)}
    path = squeezed(write_tar(tmp_path / "t.tar", members), ending)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    with caplog.at_level(logging.WARNING):
        entries = list(scan(Source(uri=str(path)), Store(str(tmp_path / "work"))))
    assert [entry.failure is None for entry in entries][:1] == [True]
    assert str(entries[-1].failure and entries[-1].failure.text).startswith("damaged tar: after ")
    assert sum("It is incomplete: " in line for line in caplog.messages) == 1


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_without_a_work_folder_a_compressed_tar_is_refused_and_in_a_folder_it_is_a_row(
    tmp_path: Path, mode: str
) -> None:
    (tmp_path / "f").mkdir()
    path = write_tar(tmp_path / f"f/t.tar.{mode}", {"a.wav": wav()}, f"w:{mode}")
    assert "compressed tar" in refused(path).what
    assert "unpack" in refused(path).fix
    [row] = indexed(tmp_path / "f")
    assert (row.recording.error or "").startswith("compressed tar: ")
    path.rename(tmp_path / "disguised.tar")
    assert "compressed tar" in refused(tmp_path / "disguised.tar").what


def test_a_full_disk_while_unpacking_is_reported_as_such(tmp_path: Path) -> None:
    path = squeezed(write_tar(tmp_path / "t.tar", {"a.wav": wav()}), "gz")
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(StorageError) as caught:
        _unpack(str(path), full)
    assert (caught.value.why, caught.value.fix) == ("No space left on device", "free some space in the work folder")
