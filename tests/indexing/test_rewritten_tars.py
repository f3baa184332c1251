"""A tar that was rewritten, or a file that was unpacked again, is a changed file: nothing is indexed a second time."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import wav, write_tar
from voxstill.core.config import load
from voxstill.core.errors import DataError
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline.index import index
from voxstill.storage import tables
from voxstill.storage.figures import IndexFigures
from voxstill.storage.store import Store


def figures_of(source: Path | str, work: Path | str) -> IndexFigures:
    return index(load(None, [f"work={work}", f"source.uri={source}", "engine.name=inline"], {}))


def refused(source: Path | str, work: Path | str) -> DataError:
    with pytest.raises(DataError, match="changed since") as caught:
        figures_of(source, work)
    assert "restore the old files" in caught.value.fix
    return caught.value


def write(path: Path, num: int, first: int = 0) -> None:
    """A file with audio inside: each row has its own pitch."""
    clips = {f"{k}.wav": wav(300 + 50 * k) for k in range(first, num)}
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"audio": list(clips.values())}), path)
    else:
        write_tar(path, clips, "w:gz" if path.suffix == ".tgz" else "w")


@pytest.mark.parametrize("name", ["a.parquet", "a.tgz"])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("is_folder", [True, False])
def test_an_unpacked_file_that_grew_or_was_rewritten_is_a_changed_file(
    tmp_path: Path, name: str, first: int, is_folder: bool
) -> None:
    path = tmp_path / "corpus" / name
    path.parent.mkdir()
    write(path, 2)
    before, stat = path.read_bytes(), path.stat()
    source = path.parent if is_folder else path
    assert figures_of(source, tmp_path / "work").utterances == 2
    write(path, 5, first)
    assert f"`{path}` has changed" in refused(source, tmp_path / "work").what
    path.write_bytes(before)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert figures_of(source, tmp_path / "work").utterances == 2


def test_an_unpacked_file_in_a_bucket_is_compared_too(s3: Store, tmp_path: Path) -> None:
    for num in (2, 3):
        write(tmp_path / "a.parquet", num)
        s3.replace("corpus/a.parquet", (tmp_path / "a.parquet").read_bytes())
        if num == 2:
            assert figures_of(s3.uri("corpus"), s3.uri("work")).utterances == 2
    assert s3.uri("corpus/a.parquet") in refused(s3.uri("corpus"), s3.uri("work")).what


def test_another_unpacked_file_is_new_and_an_interrupted_index_goes_on(tmp_path: Path) -> None:
    corpus, work = tmp_path / "corpus", tmp_path / "work"
    corpus.mkdir()
    write(corpus / "a.parquet", 2)
    cfg = load(None, [f"work={work}", f"source.uri={corpus}", "engine.name=inline", "engine.chunk=1"], {})
    recipe = index(cfg).recipe
    next((work / "utterances" / recipe).glob("*.parquet")).unlink()
    write(corpus / "b.tgz", 3, 2)
    assert index(cfg).utterances == 3


def test_files_that_an_earlier_version_unpacked_without_a_note_are_not_indexed_again(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 2)
    recipe = figures_of(tmp_path / "a.parquet", tmp_path / "work").recipe
    work = Store(str(tmp_path / "work"))
    [key] = [entry.key for entry in work.list(f"recordings/{recipe}") if entry.key.endswith(".parquet")]
    rows = [replace(row, origin=None) for row in tables.from_parquet(work.read(key), IndexRow)]
    work.replace(key, tables.to_parquet(rows, IndexRow))
    assert figures_of(tmp_path / "a.parquet", tmp_path / "work").utterances == 2
    write(tmp_path / "a.parquet", 3)
    refused(tmp_path / "a.parquet", tmp_path / "work")


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_plain_tar_whose_members_moved_is_a_changed_file(tmp_path: Path, place: str, s3: Store) -> None:
    store = s3 if place == "bucket" else Store(str(tmp_path / "corpus"))
    for clips in ({"a.wav": wav()}, {"0.txt": b"of another sample", "a.wav": wav(), "b.wav": wav(400)}):
        write_tar(tmp_path / "t.tar", clips)
        store.replace("t.tar", (tmp_path / "t.tar").read_bytes())
        if len(clips) == 1:
            assert figures_of(store.root, tmp_path / "work").utterances == 1
    assert f"`{store.uri('t.tar')}` has changed" in refused(store.root, tmp_path / "work").what


def test_a_tar_of_this_machine_that_only_grew_gives_what_is_new(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", {"a.wav": wav(), "b.wav": wav(400)})
    assert figures_of(path, tmp_path / "work").utterances == 2
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("c.wav")
        member.size = len(wav(500))
        archive.addfile(member, io.BytesIO(wav(500)))
    assert figures_of(path, tmp_path / "work").utterances == 3
    assert figures_of(path, tmp_path / "work").utterances == 3
