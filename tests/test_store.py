"""The store: whole or absent, one winner, the same in a folder and in memory, and errors a person can act on."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.errors import DataError, StorageError
from voxstill.store import Store, is_local, local_path, read_uri

_numbers = itertools.count()


@pytest.fixture(params=["folder", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    root = tmp_path / "a folder ü"
    roots = {"folder": str(root), "file": f"file://{root}", "memory": f"memory://test-store-{next(_numbers)}"}
    return Store(roots[request.param])


def test_what_is_written_is_read_back_whole_and_by_range(store: Store) -> None:
    data = bytes(range(256)) * 100
    assert store.create("a/b.bin", data)
    assert store.read("a/b.bin") == data
    assert store.read_range("a/b.bin", 300, 20) == data[300:320]
    store.replace("a/b.bin", b"new")
    assert store.read("a/b.bin") == b"new"


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9äß語 %=#.-]{1,20}x", fullmatch=True), st.binary(max_size=100)))
def test_any_name_a_table_may_have_is_listed_as_it_was_given(files: dict[str, bytes]) -> None:
    store = Store(f"memory://test-names-{next(_numbers)}")
    for name, data in files.items():
        assert store.create(f"p/{name}", data)
    assert {entry.key: entry.num_bytes for entry in store.list("p")} == {
        f"p/{name}": len(data) for name, data in files.items()
    }
    assert all(store.read(f"p/{name}") == data for name, data in files.items())


def test_of_many_who_create_a_key_at_once_exactly_one_wins_and_its_bytes_stay(store: Store) -> None:
    payloads = [bytes([i]) * 200_000 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda data: store.create("k", data), payloads))
    assert sum(won) == 1
    assert store.read("k") == payloads[won.index(True)]


def test_a_reader_never_sees_a_key_half_replaced(store: Store) -> None:
    payloads = [bytes([i]) * 300_000 for i in range(4)]
    store.replace("k", payloads[0])
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(store.replace, "k", payloads[i % 4]) for i in range(40)]
        seen = [store.read("k") for _ in range(40)]
        for each in writes:
            each.result()
    assert all(data in payloads for data in seen)


def test_a_writer_that_is_killed_leaves_whole_files_only(tmp_path: Path) -> None:
    code = (
        "import sys, itertools\n"
        "from voxstill.store import Store\n"
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
    for read in (lambda: store.read("gone"), lambda: store.read_range("gone", 0, 1)):
        with pytest.raises(StorageError, match="gone") as caught:
            read()
        assert (caught.value.why, caught.value.exit_code) == ("it does not exist", 4)
        assert caught.value.fix
    assert not store.exists("gone")
    assert store.read_json("gone") is None


def test_a_range_beyond_the_end_is_short_or_a_storage_error(store: Store) -> None:
    store.create("k", b"abc")
    assert store.read_range("k", 1, 100) == b"bc"
    with pytest.raises(StorageError):
        store.read_range("k", 50, 10)


def test_json_keeps_its_order_and_a_torn_one_is_a_data_error_that_names_it(store: Store) -> None:
    value = {"b": 1, "a": ["ü", None], "c": {"x": 0.1}}
    store.write_json("s.json", value)
    found = store.read_json("s.json")
    assert found == value
    assert list(found) == list(value)
    store.replace("s.json", b'{"b": 1, "a')
    with pytest.raises(DataError, match=r"s\.json"):
        store.read_json("s.json")


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError) as caught:
        Store(str(tmp_path / "file" / "work")).create("k", b"")
    assert caught.value.why
    with pytest.raises(StorageError, match="nosuch"):
        Store("nosuch://bucket")


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


def test_making_a_store_of_a_folder_makes_its_root_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("w")
    assert store.root == str(tmp_path / "w")
    assert store.uri("k") == str(tmp_path / "w" / "k")


def test_local_uris_are_told_from_others() -> None:
    assert [is_local(each) for each in ("a/b", "/a", "file:///a", "s3://b/a", "memory://x")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert local_path("file:///a/b") == Path("/a/b") == local_path("/a/b")
