"""The store: whole or absent, one winner, the same in a folder, in memory, on S3 and on OSS."""

from __future__ import annotations

import itertools
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import DataError, StorageError
from voxstill.storage.fetch import read_uri
from voxstill.storage.store import Store

_numbers = itertools.count()


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9äß語 %=#.-]{1,20}x", fullmatch=True), st.binary(max_size=100)))
def test_any_name_of_a_table_is_listed_unchanged(files: dict[str, bytes]) -> None:
    store = Store(f"memory://test-names-{next(_numbers)}")
    for name, data in files.items():
        assert store.create(f"p/{name}", data)
    assert {entry.key: entry.num_bytes for entry in store.list("p")} == {
        f"p/{name}": len(data) for name, data in files.items()
    }
    assert all(store.read(f"p/{name}") == data for name, data in files.items())


def test_what_is_written_is_read_back_whole_and_by_range(store: Store) -> None:
    data = bytes(range(256)) * 100
    assert store.create("a/b.bin", data)
    assert store.read("a/b.bin") == data
    assert read_uri(store.uri("a/b.bin") + "#300+20") == data[300:320]
    store.replace("a/b.bin", b"new")
    assert store.read("a/b.bin") == b"new"


def test_a_copy_is_whole_takes_the_place_of_what_was_there_and_outlives_the_first(store: Store) -> None:
    store.replace("a/b.bin", b"first")
    store.replace("copies/a/b.bin", b"another")
    store.copy("a/b.bin", "copies/a/b.bin")
    store.delete("a/b.bin")
    assert not store.create("copies/a/b.bin", b"new")
    assert store.read("copies/a/b.bin") == b"first"
    assert {entry.key for entry in store.list()} == {"copies/a/b.bin"}
    with pytest.raises(StorageError):
        store.copy("none", "copies/none")


def test_exactly_one_of_many_writers_of_a_key_wins_and_its_bytes_stay(store: Store) -> None:
    payloads = [bytes([i]) * 100_000 for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda data: store.create("k", data), payloads))
    assert sum(won) == 1
    assert store.read("k") == payloads[won.index(True)]


def test_a_reader_never_sees_a_key_half_replaced(store: Store) -> None:
    payloads = [bytes([i]) * 300_000 for i in range(4)]
    store.replace("k", payloads[0])
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(store.replace, "k", payloads[i % 4]) for i in range(40)]
        contents = [store.read("k") for _ in range(40)]
        for write in writes:
            write.result()
    assert all(data in payloads for data in contents)


def test_a_writer_that_is_killed_leaves_whole_files_only(tmp_path: Path) -> None:
    code = (
        "import sys, itertools\n"
        "from voxstill.storage.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "for i in itertools.count():\n"
        "    store.create(f'p/{i}', bytes([i % 256]) * 3_000_000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    store = Store(str(tmp_path))
    for entry in store.list("p"):
        number = int(entry.key.removeprefix("p/"))
        assert store.read(entry.key) == bytes([number % 256]) * 3_000_000


def test_a_prefix_is_a_folder_and_an_absent_one_is_empty(store: Store) -> None:
    for key in ("labels/a/1", "labels/ab/2", "labels/a/b/3"):
        store.create(key, b"x")
    assert {entry.key for entry in store.list("labels/a")} == {"labels/a/1", "labels/a/b/3"}
    assert {entry.key for entry in store.list()} == {"labels/a/1", "labels/ab/2", "labels/a/b/3"}
    assert list(store.list("nowhere")) == []


def test_the_etag_changes_when_the_content_does(store: Store) -> None:
    store.replace("k", b"one")
    (before,) = store.list()
    store.replace("k", b"longer")
    (after,) = store.list()
    assert before.etag
    assert (before.etag, before.num_bytes) != (after.etag, after.num_bytes)


def test_an_absent_key_is_a_storage_error_that_says_what_why_and_the_fix(store: Store) -> None:
    for read in (lambda: store.read("gone"), lambda: read_uri(store.uri("gone") + "#0+1")):
        with pytest.raises(StorageError, match="gone") as caught:
            read()
        assert (caught.value.why, caught.value.exit_code) == ("it does not exist", 4)
        assert caught.value.fix
    assert not store.exists("gone")
    assert store.read_json("gone") is None


def test_a_range_beyond_the_end_is_short_or_a_storage_error(store: Store) -> None:
    store.create("k", b"abc")
    assert read_uri(store.uri("k") + "#1+100") == b"bc"
    with pytest.raises(StorageError):
        read_uri(store.uri("k") + "#50+10")


def test_json_keeps_its_order_and_a_torn_one_is_a_data_error_that_names_it(store: Store) -> None:
    value = {"b": 1, "a": ["ü", None], "c": {"x": 0.1}}
    store.write_json("s.json", value)
    restored = store.read_json("s.json")
    assert restored == value
    assert list(restored) == list(value)
    store.replace("s.json", b'{"b": 1, "a')
    with pytest.raises(DataError, match=r"s\.json"):
        store.read_json("s.json")


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError) as caught:
        Store(str(tmp_path / "file" / "work")).create("k", b"")
    assert caught.value.why
    for address in ("nosuch://bucket", "s3://", "s3:///key", "oss://"):
        with pytest.raises(StorageError, match=re.escape(address)):
            Store(address)


def test_equal_roots_see_the_same_keys_also_through_pickle(store: Store) -> None:
    store.create("k", b"1")
    assert Store(store.root).read("k") == b"1"
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.root, copy.read("k"), repr(copy)) == (store.root, b"1", repr(store))


def test_a_uri_opens_what_the_store_wrote(store: Store) -> None:
    store.create("a/b", b"data")
    assert read_uri(store.uri("a/b")) == b"data"
    with pytest.raises(StorageError, match="gone"):
        read_uri(store.uri("a/gone"))


def test_keys_of_several_pages_are_listed_once(store: Store) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda i: store.create(f"many/{i:04d}", b"x"), range(1_030)))
    assert sorted(entry.key for entry in store.list("many")) == [f"many/{i:04d}" for i in range(1_030)]


def test_a_bucket_is_one_place_whatever_root_it_is_reached_by(store: Store) -> None:
    store.create("a/b/k", b"1")
    below = Store(store.uri("a"))
    assert below.read("b/k") == b"1"
    assert [entry.key for entry in below.list()] == ["b/k"]
    below.replace("c", b"2")
    assert store.read("a/c") == b"2"


def test_making_a_store_of_a_folder_makes_its_root_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("w")
    assert store.root == str(tmp_path / "w")
    assert store.uri("k") == str(tmp_path / "w" / "k")


@pytest.mark.parametrize(
    ("root", "why"),
    {
        "file": "it is a file",
        "file/below": "a part of the path is a file",
        "/proc/x": "no folder can be created",
    }.items(),
)
def test_a_root_that_is_no_folder_is_refused_with_the_cause(tmp_path: Path, root: str, why: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        Store(str(tmp_path / root)).create("k", b"1")
    assert why in caught.value.why
    assert "folder" in caught.value.fix


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_folder_that_takes_no_files_is_refused_and_not_tried_for_ever() -> None:
    """In /proc a new file "does not exist": the client makes its folder, and asks again without an end."""
    with pytest.raises(StorageError) as caught:
        Store("/proc").replace("x", b"1")
    assert "no file can be created there" in caught.value.why
