"""What a second index does: nothing again, nothing twice, and nothing silently."""

from __future__ import annotations

import json
import os
import random
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from manifests import write_tar
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Recording, Utterance
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline import index as indexing
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard
from voxstill.storage import tables, workdir
from voxstill.storage.figures import IndexFigures
from voxstill.storage.store import Store

Row = Mapping[str, Any]


def write(path: Path, pitch_hz: int = 300) -> Path:
    time_T = np.arange(3200) / 16_000
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(codec.encode((9000 * np.sin(2 * np.pi * pitch_hz * time_T)).astype(np.int16), "wav"))
    return path


def manifest(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def index(folder: Path, uri: Path | list[Path], chunk: int = 3) -> IndexFigures:
    uris = [str(path) for path in uri] if isinstance(uri, list) else str(uri)
    tree = {"work": str(folder / "work"), "source": {"uri": uris}, "engine": {"name": "inline", "chunk": chunk}}
    return indexing.index(Config.model_validate(tree))


def table(folder: Path, kind: Any) -> list[Any]:
    name = "utterances" if kind is Utterance else "recordings"
    return list(tables.read(Store(str(folder / "work")), name, kind))


def parts(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted((folder / "work").rglob("*.parquet"))}


def refused(folder: Path, uri: Path) -> DataError:
    before = parts(folder)
    with pytest.raises(DataError) as caught:
        index(folder, uri)
    assert caught.value.fix
    assert parts(folder) == before
    return caught.value


def test_a_second_index_writes_nothing_and_a_larger_source_only_adds(tmp_path: Path) -> None:
    for number in range(7):
        write(tmp_path / f"audio/{number}.wav", 300 + number)
    first = index(tmp_path, tmp_path / "audio")
    before = parts(tmp_path)
    assert index(tmp_path, tmp_path / "audio") == first
    assert parts(tmp_path) == before
    for number in range(7, 9):
        write(tmp_path / f"audio/{number}.wav", 300 + number)
    second = index(tmp_path, tmp_path / "audio")
    assert (first.recordings, second.recordings, second.utterances) == (7, 9, 9)
    assert before.items() <= parts(tmp_path).items()
    assert sum(second.splits.values()) == 9
    assert second.hours == pytest.approx(9 * 0.2 / 3600)


def test_an_index_that_was_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / f"audio/{number}.wav", 300 + number)
    whole = index(tmp_path, tmp_path / "audio")
    rows = {row.id: row for row in table(tmp_path, Utterance)}
    folder = next((tmp_path / "work/utterances").iterdir())
    for path in sorted(folder.glob("*.parquet"))[:2]:
        path.unlink()  # ended between the recordings and their commit
    (folder / tables.SUCCESS).unlink()
    assert index(tmp_path, tmp_path / "audio", chunk=4) == whole
    assert {row.id: row for row in table(tmp_path, Utterance)} == rows


def test_files_that_storage_failed_to_give_are_retried_until_it_does(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    rows = [{"audio": "a.wav"}, {"audio": "late.wav"}, {"audio": "later.wav"}, {"audio": "never.wav"}]
    uri = manifest(tmp_path, rows)
    first = index(tmp_path, uri)
    assert (first.damaged, first.reasons) == (3, {"cannot be read": 3})
    before = parts(tmp_path)
    assert index(tmp_path, uri) == first
    assert parts(tmp_path) == before  # trying in vain leaves nothing behind
    for number, name in enumerate(["late.wav", "later.wav"]):
        write(tmp_path / name, 400 + number)
        now = index(tmp_path, uri)
        assert (now.recordings - now.damaged, now.utterances) == (number + 2, number + 2)
    assert now.reasons == {"cannot be read": 1}
    assert len({row.id for row in table(tmp_path, Utterance)}) == len(table(tmp_path, Utterance)) == 3


@pytest.mark.parametrize("seed", range(4))
def test_files_that_come_and_fail_in_any_order_end_with_one_utterance_each(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"{number}.wav" for number in range(8)]
    uri = manifest(tmp_path, [{"audio": name, "id": name} for name in names])
    there: set[str] = set()
    while len(there) < len(names):
        for name in chance.sample(names, 3):
            if name not in there:
                write(tmp_path / name, 300 + int(name[0]))
                there.add(name)
        figures = index(tmp_path, uri, chunk=chance.randint(1, 5))
        assert sorted(row.id for row in table(tmp_path, Utterance)) == sorted(there)
        assert figures.utterances == len(there)
        assert figures.damaged == figures.recordings - len(there)


@pytest.mark.parametrize(
    "edit",
    [{"text": "other"}, {"split": "test"}, {"speaker": "b"}, {"language": "de"}, {"text": None}, {"id": "z"}],
)
def test_an_edited_manifest_is_refused_with_its_line(tmp_path: Path, edit: Row) -> None:
    write(tmp_path / "a.wav")
    write(tmp_path / "b.wav", 500)
    row = {"audio": "b.wav", "id": "b", "text": "words", "speaker": "a", "split": "train", "language": "en"}
    index(tmp_path, manifest(tmp_path, [{"audio": "a.wav"}, row]))
    error = refused(tmp_path, manifest(tmp_path, [{"audio": "a.wav"}, row | edit]))
    assert "has other metadata" in error.what
    assert "m.jsonl:2" in error.what
    assert index(tmp_path, manifest(tmp_path, [row, {"audio": "a.wav"}])).utterances == 2  # order is no edit


def test_another_stretch_of_an_indexed_file_is_refused_too(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    rows = [{"audio": "a.wav", "start_ms": 0, "end_ms": 90}, {"audio": "a.wav", "start_ms": 100, "end_ms": 190}]
    index(tmp_path, manifest(tmp_path, rows[:1]))
    assert "has other metadata" in refused(tmp_path, manifest(tmp_path, rows)).what


def test_a_manifest_that_was_wrong_about_a_file_may_be_mended(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    row = {"audio": "a.wav", "start_ms": 0, "end_ms": 9_000}
    write(tmp_path / "b.wav", 500)
    sound = {"audio": "b.wav"}
    assert index(tmp_path, manifest(tmp_path, [row, sound])).reasons == {"beyond the end": 1}
    worse = index(tmp_path, manifest(tmp_path, [row | {"end_ms": 8_000}, sound]))
    assert (worse.recordings, worse.damaged) == (2, 1)
    mended = index(tmp_path, manifest(tmp_path, [row | {"end_ms": 150}, sound]))
    assert (mended.recordings, mended.damaged, mended.utterances, mended.reasons) == (2, 0, 2, {})


def test_a_source_of_which_nothing_can_be_used_is_an_error_with_its_reasons_until_it_is_mended(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    (tmp_path / "b.wav").write_bytes(b"no audio")
    rows: list[Row] = [{"audio": "a.wav", "start_ms": 0, "end_ms": 9_000}, {"audio": "b.wav"}]
    for _ in range(2):  # the second finds nothing to do
        with pytest.raises(DataError, match="none of 2 recordings can be used") as caught:
            index(tmp_path, manifest(tmp_path, rows))
        assert "beyond the end: 1" in caught.value.why
        assert "not audio: 1" in caught.value.why
        assert caught.value.fix
    assert index(tmp_path, manifest(tmp_path, [{"audio": "a.wav"}, rows[1]])).utterances == 1


def test_samples_of_two_tars_with_one_id_have_utterances_of_their_own_and_old_ones_keep_their_names(
    tmp_path: Path,
) -> None:
    def tar(name: str, pitch_hz: int, id_: str) -> Path:
        write(tmp_path / "x.wav", pitch_hz)
        members = {"0.wav": (tmp_path / "x.wav").read_bytes(), "0.json": json.dumps({"id": id_}).encode()}
        return write_tar(tmp_path / name, members)

    first = tar("b.tar", 300, "one")
    index(tmp_path, first)
    assert [row.id for row in table(tmp_path, Utterance)] == ["one"]
    second, other = tar("a.tar", 400, "one"), tar("c.tar", 500, "two")
    for _ in range(2):
        index(tmp_path, [second, first, other])
        ids = sorted(row.id for row in table(tmp_path, Utterance))
        assert (len(ids), ids[0].startswith("a-0-"), ids[1:]) == (3, True, ["one", "two"])
    index(tmp_path, tar("d.tar", 600, "two"))  # alone: only the table knows that the id is taken
    ids = sorted(row.id for row in table(tmp_path, Utterance))
    assert (len(ids), ids[1].startswith("d-0-")) == (4, True)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "audio/a.wav")
    index(tmp_path, tmp_path / "audio")
    write(tmp_path / "audio/a.wav", 700)
    os.utime(tmp_path / "audio/a.wav", ns=(1, 1))
    assert "changed since" in refused(tmp_path, tmp_path / "audio").what


def touch(path: Path) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


def test_a_touched_file_is_the_same_recording(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / f"audio/{number}.wav", 300 + number)
    first, before = index(tmp_path, tmp_path / "audio"), parts(tmp_path)
    for number in range(4):
        touch(tmp_path / f"audio/{number}.wav")
    assert index(tmp_path, tmp_path / "audio") == first
    assert parts(tmp_path) == before
    write(tmp_path / "audio/5.wav", 600)
    assert index(tmp_path, tmp_path / "audio").utterances == 6
    write(tmp_path / "audio/0.wav", 900)
    touch(tmp_path / "audio/0.wav")
    error = refused(tmp_path, tmp_path / "audio")
    assert "0.wav` has changed since" in error.what  # it alone


def test_of_a_touched_file_the_source_says_the_same_as_before(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    figures = index(tmp_path, manifest(tmp_path, [{"audio": "a.wav", "text": "then"}]))
    touch(tmp_path / "a.wav")
    assert "has other metadata" in refused(tmp_path, manifest(tmp_path, [{"audio": "a.wav", "text": "now"}])).what
    assert index(tmp_path, manifest(tmp_path, [{"audio": "a.wav", "text": "then"}])) == figures


def test_a_touched_member_of_a_tar_is_the_same_recording(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "a.wav", "a.wav")
    figures = index(tmp_path, tmp_path / "a.tar")
    touch(tmp_path / "a.tar")
    assert index(tmp_path, tmp_path / "a.tar") == figures


def without_content_hashes(folder: Path) -> None:
    """Make the recordings those of a version that knew no content hashes."""
    for path in (folder / "work/recordings").rglob("*.parquet"):
        rows = pq.read_table(path).drop_columns(["content_hash"])
        pq.write_table(rows, path)


def test_a_touched_file_of_a_table_without_content_hashes_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "audio/a.wav")
    figures = index(tmp_path, tmp_path / "audio")
    without_content_hashes(tmp_path)
    assert index(tmp_path, tmp_path / "audio") == figures
    touch(tmp_path / "audio/a.wav")
    assert "changed since" in refused(tmp_path, tmp_path / "audio").what


def test_touched_files_are_labelled_and_sharded_and_changed_ones_are_not(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.wav", 300 + number)
    rows = [{"audio": f"{number}.wav", "text": f"word {number}"} for number in range(4)]
    tree = {
        "work": str(tmp_path / "work"),
        "source": {"uri": str(manifest(tmp_path, rows)), "dev_share": 0, "test_share": 0},
        "engine": {"name": "inline", "chunk": 2},
        "teacher": "reference",
        "filter": {"min_chars_per_s": 0, "max_chars_per_s": 1e9},
    }
    cfg = Config.model_validate(tree)
    indexing.index(cfg)
    for number in range(3):
        touch(tmp_path / f"{number}.wav")
    write(tmp_path / "3.wav", 999)
    touch(tmp_path / "3.wav")
    labelled = label_utterances(cfg)
    assert (labelled.labels, labelled.failed) == (4, 1)
    filter_labels(cfg)
    sharded = shard(cfg)
    assert (sharded.utterances, sharded.dropped) == (3, {})


def test_an_id_of_an_earlier_index_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    write(tmp_path / "b.wav", 500)
    index(tmp_path, manifest(tmp_path, [{"audio": "a.wav", "id": "one"}]))
    assert "`one` is already used" in refused(tmp_path, manifest(tmp_path, [{"audio": "b.wav", "id": "one"}])).what


def test_a_table_without_metadata_hashes_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    uri = manifest(tmp_path, [{"audio": "a.wav", "text": "then"}])
    figures = index(tmp_path, uri)
    rows = [
        Recording(**{name: getattr(row, name) for name in Recording.__dataclass_fields__})
        for row in table(tmp_path, IndexRow)
    ]
    [path] = (tmp_path / "work/recordings").rglob("*.parquet")
    path.write_bytes(tables.to_parquet(rows, Recording))
    assert index(tmp_path, manifest(tmp_path, [{"audio": "a.wav", "text": "now"}])) == figures
    path.write_bytes(b"torn")
    with pytest.raises(DataError, match="is not a table"):
        index(tmp_path, uri)


def test_readers_of_recordings_see_what_they_always_saw(tmp_path: Path) -> None:
    write(tmp_path / "audio/a.wav")
    figures = index(tmp_path, tmp_path / "audio")
    [recording] = table(tmp_path, Recording)
    assert type(recording) is Recording
    assert recording.etag
    assert workdir.finished(Store(str(tmp_path / "work")), IndexFigures).recordings == figures.recordings == 1
