from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from voxstill.core.config import Source
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import UtteranceInfo
from voxstill.indexing.failure import Failure
from voxstill.indexing.formats.entry import NO_METADATA, SourceEntry
from voxstill.indexing.scan import by_file, scan, split_of
from voxstill.storage.store import Store

Row = Mapping[str, object]


def manifest(folder: Path, rows: Sequence[Row | str], name: str = "manifest.jsonl") -> str:
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_a_manifest_is_read_from_where_the_process_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a notebook that changes its folder reads one: the folder of the path before is not remembered."""
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        (folder / "a.wav").write_bytes(b"x")
        manifest(folder, [{"audio": "a.wav"}])
        monkeypatch.chdir(folder)
        [entry] = scan(Source(uri="manifest.jsonl"))
        assert Path(entry.uri) == folder / "a.wav"


def test_files_are_one_by_where_the_process_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path of a folder that was a link elsewhere is one here only where it is one here."""
    entries = [SourceEntry(uri="a/1.wav"), SourceEntry(uri="b/1.wav")]
    for name, num_files in (("linked", 1), ("apart", 2)):
        folder = tmp_path / name
        (folder / "a").mkdir(parents=True)
        (folder / "b").symlink_to("a") if name == "linked" else (folder / "b").mkdir()
        monkeypatch.chdir(folder)
        assert len(by_file(entries)) == num_files


def test_a_folder_gives_every_file_that_may_be_audio_in_order(tmp_path: Path) -> None:
    for name in ["b/2.wav", "b/1.weird", "a.flac", "notes.txt", "b/1.TextGrid", "m.jsonl", ".hidden.wav", ".git/x.wav"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    entries = list(scan(Source(uri=str(tmp_path))))
    assert [Path(row.uri).relative_to(tmp_path).as_posix() for row in entries] == ["a.flac", "b/1.weird", "b/2.wav"]
    assert all(row.num_bytes == 1 and row.etag for row in entries)


def test_a_single_file_is_tried_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_bytes(b"hello")
    assert [row.num_bytes for row in scan(Source(uri=str(tmp_path / "notes.md")))] == [5]


def test_several_sources_come_one_after_another_and_a_file_in_both_counts_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.wav").write_bytes(b"x")
    entries = list(scan(Source(uri=[str(tmp_path / "b.wav"), str(tmp_path)])))
    assert [Path(row.uri).name for row in entries] == ["b.wav", "a.wav", "b.wav"]
    assert [len(file.entries) for file in by_file(entries)] == [1, 1]


def test_a_manifest_keeps_what_it_knows_and_its_paths_start_beside_it(tmp_path: Path) -> None:
    (tmp_path / "é.wav").write_bytes(b"x")
    uri = manifest(
        tmp_path,
        [
            {"audio": "é.wav", "id": "one", "text": "größe", "speaker": 7, "split": "dev", "start_ms": 0, "end_ms": 9},
            "",
            {"path": "s3://bucket/far.wav", "split": "unlabelled", "text": None, "extra": [1]},
            {"audio": str(tmp_path / "é.wav"), "split": "-", "language": "de", "dialect": "bar", "dataset": "d"},
        ],
    )
    one, far, three = scan(Source(uri=uri))
    assert (one.uri, one.id, one.text, one.info.speaker) == (str(tmp_path / "é.wav"), "one", "größe", "7")
    assert (one.split, one.start_ms, one.end_ms) == ("dev", 0, 9)
    assert (far.uri, far.split, far.text) == ("s3://bucket/far.wav", None, None)
    assert (three.split, three.info.language, three.info.dialect, three.info.dataset) == (None, "de", "bar", "d")
    assert [len(file.entries) for file in by_file([one, far, three])] == [2, 1]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{'audio': 1}", "not JSON"),
        ("[1]", "list, not an object"),
        ('{"id": "x"}', "no `audio`"),
        ('{"audio": 3}', "no `audio`"),
        ('{"audio": "a.wav", "text": 3}', "`text` is 3"),
        ('{"audio": "a.wav", "start_ms": "1"}', "`start_ms` is '1'"),
        ('{"audio": "a.wav", "end_ms": NaN}', "`end_ms` is nan"),
        ('{"audio": "a.wav", "weight": -1}', "`weight` is -1"),
        ('{"audio": "a.wav", "weight": "much"}', "`weight` is 'much'"),
        ('{"audio": "a.wav", "weight": Infinity}', "`weight` is inf"),
        ('{"audio": "a.wav", "start_ms": 5, "end_ms": 5}', "starts at 5 ms and ends at 5 ms"),
        ('{"audio": "a.wav", "start_ms": -1}', "starts at -1 ms"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, line: str, why: str) -> None:
    uri = manifest(tmp_path, [{"audio": "fine.wav"}, line])
    with pytest.raises(DataError) as caught:
        list(scan(Source(uri=uri)))
    assert f"{uri}:2" in caught.value.what
    assert why in caught.value.why
    assert caught.value.fix


def test_a_duplicate_id_is_named_with_both_lines_even_in_two_manifests(tmp_path: Path) -> None:
    first = manifest(tmp_path, [{"audio": "a.wav", "id": "x"}])
    second = manifest(tmp_path, [{"audio": "b.wav"}, {"audio": "b.wav", "id": "x"}], "other.jsonl")
    with pytest.raises(DataError) as caught:
        by_file(scan(Source(uri=[first, second])))
    assert f"{first}:1" in caught.value.why
    assert f"{second}:2" in caught.value.why


def test_a_missing_source_is_an_error_and_a_missing_file_is_a_row(tmp_path: Path) -> None:
    for uri in ["nowhere", "nowhere.jsonl", "nowhere.wav"]:
        with pytest.raises(DataError) as caught:
            list(scan(Source(uri=str(tmp_path / uri))))
        assert caught.value.fix
    with pytest.raises(ConfigError):
        list(scan(Source()))
    assert not (tmp_path / "nowhere").exists()
    [row] = scan(Source(uri=manifest(tmp_path, [{"audio": "gone.wav"}])))
    assert (row.num_bytes, row.etag) == (0, None)


def test_a_bucket_is_a_folder(tmp_path: Path) -> None:
    store = Store("memory://scan-bucket")
    for key in ["b/2.wav", "a.wav", "notes.txt", "b/.hidden.wav"]:
        store.replace(key, b"x")
    store.replace("m.jsonl", b'{"audio": "a.wav", "id": "q"}\n')
    entries = list(scan(Source(uri="memory://scan-bucket")))
    assert [row.uri for row in entries] == ["memory://scan-bucket/a.wav", "memory://scan-bucket/b/2.wav"]
    assert all(row.etag for row in entries)
    [row] = scan(Source(uri="memory://scan-bucket/m.jsonl"))
    assert (row.uri, row.id) == ("memory://scan-bucket/a.wav", "q")
    with pytest.raises(DataError, match=r"the source .* does not exist"):
        list(scan(Source(uri="memory://scan-bucket/none.wav")))


def test_a_changed_file_is_another_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"x")
    [before] = scan(Source(uri=str(path)))
    [again] = scan(Source(uri=str(path)))
    path.write_bytes(b"xy")
    [after] = scan(Source(uri=str(path)))
    assert before.recording_id == again.recording_id != after.recording_id


ROW = st.builds(
    SourceEntry,
    uri=st.sampled_from(["a.wav", "b.wav", "c.wav", "d.wav"]),
    etag=st.none(),
    text=st.none() | st.sampled_from(["x", "y"]),
    start_ms=st.none() | st.sampled_from([0, 500]),
    end_ms=st.none() | st.sampled_from([1000, 2000]),
)


def consistent(rows: list[SourceEntry]) -> list[SourceEntry]:
    """The rows with one text for each stretch; a listing of the file says nothing."""
    texts: dict[object, str | None] = {}
    return [
        row
        if row.metadata == NO_METADATA
        else replace(row, text=texts.setdefault((row.uri, row.start_ms, row.end_ms), row.text))
        for row in rows
    ]


def rows_of(min_size: int, max_size: int) -> st.SearchStrategy[list[SourceEntry]]:
    return st.lists(ROW, min_size=min_size, max_size=max_size).map(consistent)


@settings(deadline=None)
@given(rows_of(0, 40))
def test_no_row_is_lost_and_none_comes_twice_however_they_are_mixed(rows: list[SourceEntry]) -> None:
    files = list(by_file(rows))
    assert [file.entries[0].uri for file in files] == list(dict.fromkeys(row.uri for row in rows))
    for file in files:
        about = [row for row in rows if row.uri == file.entries[0].uri]
        telling = [row for row in about if any(item is not None for item in row.metadata)]
        assert list(file.entries) == list(dict.fromkeys(telling or about[:1]))
        assert file.id == about[0].recording_id


@settings(deadline=None)
@given(rows_of(0, 20), st.randoms())
def test_the_metadata_of_a_file_do_not_depend_on_the_order(rows: list[SourceEntry], random: Random) -> None:
    hashes = {file.id: file.metadata_hash for file in by_file(rows)}
    mixed = [*rows, *rows]
    random.shuffle(mixed)
    assert {file.id: file.metadata_hash for file in by_file(mixed)} == hashes


@settings(deadline=None)
@given(rows_of(1, 20), st.data())
def test_every_change_of_metadata_changes_the_hash(rows: list[SourceEntry], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    assume(rows[at].metadata != NO_METADATA)
    another = replace(rows[at], info=UtteranceInfo(speaker="another"))
    edited = [another if row == rows[at] else row for row in rows]
    [before] = [file for file in by_file(rows) if file.entries[0].uri == rows[at].uri]
    [after] = [file for file in by_file(edited) if file.entries[0].uri == rows[at].uri]
    if set(rows) - set(edited):
        assert before.metadata_hash != after.metadata_hash


def test_files_may_be_asked_for_more_than_once(tmp_path: Path) -> None:
    files = by_file(SourceEntry(uri=f"{k % 5}.wav", start_ms=k) for k in range(20))
    assert len(files) == 5
    assert list(files) == list(files)
    assert [[row.start_ms for row in file.entries] for file in files][1] == [1, 6, 11, 16]
    assert list(by_file([])) == []


def test_a_listing_knows_the_version_and_a_manifest_the_words() -> None:
    bare = SourceEntry(uri="s3://b/a.wav", etag="v1", num_bytes=5)
    [file] = by_file([SourceEntry(uri="s3://b/a.wav", text="x"), bare])
    assert file.id == bare.recording_id
    assert file.entries == (replace(bare, text="x"),)


def test_the_same_manifest_twice_is_the_same_source(tmp_path: Path) -> None:
    uri = manifest(tmp_path, [{"audio": "a.wav", "id": "x", "text": "t"}])
    assert list(by_file(scan(Source(uri=[uri, uri])))) == list(by_file(scan(Source(uri=uri))))


def test_rows_are_few_bytes_of_memory_each() -> None:
    entries = (
        SourceEntry(uri=f"s3://bucket/a/rather/long/prefix/{k:09}.flac", text="some words") for k in range(20_000)
    )
    tracemalloc.start()
    files = by_file(entries)
    held, peak = tracemalloc.get_traced_memory()
    assert sum(1 for _ in files) == 20_000
    tracemalloc.stop()
    assert held < 30 * 20_000
    assert peak < 100 * 20_000


def test_a_link_that_leads_to_itself_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "a.wav").write_bytes(b"x")
    assert [Path(row.uri).name for row in scan(Source(uri=str(tmp_path)))] == ["a.wav", "loop"]


@given(st.lists(st.text(min_size=1), min_size=1, max_size=20), st.integers(0, 5))
def test_a_speaker_is_in_one_split(speakers: list[str], seed: int) -> None:
    for speaker in speakers:
        rows = [SourceEntry(uri=f"{k}.wav", info=UtteranceInfo(speaker=speaker)) for k in range(4)]
        assert len({split_of(row, Source(), seed) for row in rows}) == 1


def test_shares_of_splits_are_as_asked_and_the_manifest_has_the_last_word() -> None:
    source = Source(dev_share=0.2, test_share=0.1)
    counts = Counter(split_of(SourceEntry(uri=str(k)), source, 0) for k in range(4000))
    assert counts["dev"] / 4000 == pytest.approx(0.2, abs=0.03)
    assert counts["test"] / 4000 == pytest.approx(0.1, abs=0.03)
    assert {split_of(SourceEntry(uri=str(k), split="test"), source, 0) for k in range(50)} == {"test"}
    nothing_aside = Source(dev_share=0, test_share=0)
    assert {split_of(SourceEntry(uri=str(k)), nothing_aside, 0) for k in range(50)} == {"train"}


@pytest.mark.parametrize("name", ["fsdd", "yesno-hebrew", "short-fixtures", "speechocean762-train"])
def test_the_shared_manifests_are_read(shared_data: Callable[[str], Path], name: str) -> None:
    path = shared_data(name) / "manifest.jsonl"
    entries = list(scan(Source(uri=str(path))))
    assert len(entries) == len(path.read_text(encoding="utf-8").splitlines())
    assert all(row.num_bytes and row.id for row in entries)


def test_the_hash_of_metadata_is_that_of_the_first_release_so_that_no_file_counts_as_edited() -> None:
    info = UtteranceInfo(speaker="s", language="l", dialect="d", dataset="e")
    full = SourceEntry(uri="a.wav", etag="v", id="i", text="t", info=info, split="dev", channel=1, start_ms=2, end_ms=3)
    files = list(by_file([full, SourceEntry(uri="b.wav")]))
    assert [file.metadata_hash for file in files] == ["c0da67bc6e8f7559", "7368d3eabebae5be"]
    assert [file.id for file in files] == ["7aa9df4b727b3e07", "8efc4374309ff3a4"]


def test_a_weight_is_read_and_one_of_1_is_none(tmp_path: Path) -> None:
    rows = [{"audio": f"{i}.wav", "weight": weight} for i, weight in enumerate((0.5, 1, 0, None))]
    entries = list(scan(Source(uri=manifest(tmp_path, rows))))
    assert [entry.weight for entry in entries] == [0.5, None, 0.0, None]
    (tmp_path / "m.csv").write_text("audio,weight\na.wav,2.5\nb.wav,\nc.wav,1\n")
    assert [entry.weight for entry in scan(Source(uri=str(tmp_path / "m.csv")))] == [2.5, None, None]
    one, same = SourceEntry(uri="a.wav", weight=0.5), SourceEntry(uri="a.wav")
    assert one.metadata != same.metadata == SourceEntry(uri="b.wav").metadata


def test_an_entry_that_waits_in_the_temporary_file_comes_back_as_it_was() -> None:
    entry = SourceEntry(
        uri="a.wav", info=UtteranceInfo(speaker="s"), failure=Failure("damaged", "after: 1 s"), where="m.jsonl:1"
    )
    [file] = by_file([entry])
    assert file.entries == (entry,)
    assert file.entries[0].where == "m.jsonl:1"
