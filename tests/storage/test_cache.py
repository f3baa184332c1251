"""The cache: bytes that are read from it are right, it stays below its limit, and a killed writer does no harm."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import ConfigError, StorageError
from voxstill.storage.cache import Cache, CacheEntry

HAMMER = """
import random, sys
from pathlib import Path
from voxstill.storage.cache import Cache, CacheEntry

cache, seed = Cache(Path(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3])
rng = random.Random(seed)
print("ready", flush=True)
hits = 0
for _ in range(int(sys.argv[4])):
    number, version = rng.randrange(40), rng.randrange(3)
    kept = cache.read(f"s3://b/{number}")
    if kept is not None:
        name = f"{number}-{kept.etag}-".encode()
        assert kept.data == name * (kept.num_bytes // len(name)), "torn or wrong"
        hits += 1
    name = f"{number}-{version}-".encode()
    data = name * (rng.randrange(1, 60_000) // len(name) + 1)
    cache.put(f"s3://b/{number}", CacheEntry(str(version), len(data), data))
print(hits)
"""


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.name != "lock")


def test_a_cached_object_is_read_with_its_version(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "cache", 10_000)
    assert cache.read("u") is None
    cache.put("u", CacheEntry('"v1"', 5, b"bytes"))
    assert cache.read("u") == CacheEntry('"v1"', 5, b"bytes") == cache.read("u", '"v1"')
    assert cache.read("u", '"v2"') is None
    cache.put("u", CacheEntry('"v2"', 3, b"new"))
    assert cache.read("u") == CacheEntry('"v2"', 3, b"new")
    assert pickle.loads(pickle.dumps(cache)).read("u") == cache.read("u")


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 5000), max_size=40))
def test_it_is_never_larger_than_its_limit(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    cache = Cache(tmp_path_factory.mktemp("cache"), 8000)
    for i, num_bytes in enumerate(sizes):
        cache.put(f"u{i % 15}", CacheEntry("v", num_bytes, bytes(num_bytes)))
        assert size(cache.folder) <= cache.max_bytes
        last = cache.read(f"u{i % 15}")
        assert last is not None
        assert len(last.data) == num_bytes


def test_the_least_recently_used_is_evicted_and_what_is_too_large_is_not_cached(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 11_000)
    for name in "abc":
        cache.put(name, CacheEntry("v", 3000, bytes(3000)))
        time.sleep(0.02)
    assert cache.read("a") is not None
    cache.put("large", CacheEntry("v", 11_000, bytes(11_000)))
    assert cache.read("large") is None
    time.sleep(0.02)
    cache.put("d", CacheEntry("v", 3000, bytes(3000)))
    assert [name for name in "abcd" if cache.read(name)] == ["a", "c", "d"]


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"no json", b'{"etag": "v", "num_bytes": 4, "crc32": 1}\nabcd'])
def test_a_damaged_entry_is_none_and_is_written_anew(tmp_path: Path, damage: bytes) -> None:
    cache = Cache(tmp_path, 1000)
    cache.put("u", CacheEntry("v", 4, b"data"))
    (path,) = [path for path in tmp_path.iterdir() if path.name != "lock"]
    path.write_bytes(damage)
    (tmp_path / "lock").write_bytes(b"damaged too")
    assert cache.read("u") is None
    cache.put("u", CacheEntry("v", 4, b"data"))
    assert cache.read("u") == CacheEntry("v", 4, b"data")


def test_a_folder_that_cannot_be_created_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cache"):
        Cache(tmp_path / "file" / "cache", 1000).put("u", CacheEntry("v", 1, b"x"))


@pytest.mark.parametrize("name", ["file", "file/cache", "closed/cache"])
def test_a_folder_that_cannot_be_used_is_an_error_that_names_the_option(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "closed").mkdir(mode=0o500)
    if name.startswith("closed") and os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("root may write everywhere")
    with pytest.raises(ConfigError, match=r"`cache\.folder`") as caught:
        Cache.open(str(tmp_path / name), 1.0)
    assert caught.value.why
    assert caught.value.fix


def test_processes_that_hammer_it_and_are_killed_read_right_bytes_and_keep_the_limit(tmp_path: Path) -> None:
    limit = 600_000
    command = [sys.executable, "-c", HAMMER, str(tmp_path), str(limit)]
    lasting = [subprocess.Popen([*command, str(i), "400"], stdout=subprocess.PIPE, text=True) for i in range(3)]
    for i in range(6):
        victim = subprocess.Popen([*command, str(100 + i), "1000000"], stdout=subprocess.PIPE)
        assert victim.stdout is not None
        victim.stdout.readline()
        time.sleep(0.08 + 0.013 * i)
        assert size_or_less(tmp_path) <= limit + 5 * 61_000
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        victim.stdout.close()
    for process in lasting:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert int(out.splitlines()[-1]) > 50
    litter = [path for path in tmp_path.iterdir() if path.name.startswith("torn-")]
    assert size(tmp_path) <= limit + sum(path.stat().st_size for path in litter)
    cache = Cache(tmp_path, limit)
    for i in range(12):  # the next eviction takes the litter of the dead along
        cache.put(f"last {i}", CacheEntry("v", 60_000, bytes(60_000)))
    assert size(tmp_path) <= limit
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("torn-")]


def size_or_less(folder: Path) -> int:
    """The size of a folder that others work in: what vanishes meanwhile counts nothing."""
    total = 0
    for entry in os.scandir(folder):
        try:
            total += entry.stat().st_size
        except FileNotFoundError:
            continue
    return total
