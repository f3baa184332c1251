"""Short ranges of remote objects through the cache: every byte comes once, and is of one version."""

from __future__ import annotations

import io
import itertools
import random
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_bucket import Bucket, disk_bucket
from seeds import seeded_random
from servers import SetEnvironment, s3_environment
from tones import speak
from voxstill.audio import codec
from voxstill.core.config import Source
from voxstill.core.errors import StorageError
from voxstill.indexing.scan import scan
from voxstill.storage.cache import Cache
from voxstill.storage.fetch import BLOCK_BYTES, Blob, fetch, read_many
from voxstill.storage.store import Store

SIZE = 5 * BLOCK_BYTES + 12_345
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "bucket").mkdir()
    with disk_bucket(folder) as server:
        yield server


@pytest.fixture
def store(server: Bucket, set_environment: SetEnvironment) -> Store:
    set_environment(s3_environment(server.port))
    return Store(f"s3://bucket/{next(_numbers)}")


def num_sent(server: Bucket, store: Store) -> int:
    """Bytes of the store that the server has sent."""
    return server.counts()[f"sent {store.root.rpartition('/')[2]}/"]


def any_range(chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(SIZE)
    return start, chance.choice((1, 7_000, BLOCK_BYTES, 3 * BLOCK_BYTES, 8 * BLOCK_BYTES))


def test_any_range_is_that_of_the_object_as_it_is_now(server: Bucket, store: Store, tmp_path: Path) -> None:
    cache, chance = Cache(tmp_path, 10**9), seeded_random()
    for _ in range(3):
        data = chance.randbytes(SIZE)
        store.replace("k", data)
        for start, length in [any_range(chance) for _ in range(40)]:
            blob = fetch(f"{store.uri('k')}#{start}+{length}", cache)
            assert blob.data == data[start : start + length]
            assert blob.num_bytes == SIZE
    with pytest.raises(StorageError):
        fetch(f"{store.uri('k')}#{SIZE}+1", cache)
    with pytest.raises(StorageError):
        fetch(f"{store.uri('k')}#{9 * BLOCK_BYTES}+1", cache)


def test_neighbours_come_once_whoever_asks(server: Bucket, store: Store, tmp_path: Path) -> None:
    cache, chance = Cache(tmp_path, 10**9), seeded_random()
    data = chance.randbytes(SIZE)
    store.replace("k", data)
    ranges = [(start, min(5_000, SIZE - start)) for start in range(0, SIZE, 5_000)]
    wrong: list[int] = []

    def read() -> None:
        uris = [f"{store.uri('k')}#{start}+{length}" for start, length in ranges]
        for (start, length), blob in zip(ranges, read_many(uris, cache=cache), strict=True):
            if not isinstance(blob, Blob) or blob.data != data[start : start + length]:
                wrong.append(start)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert num_sent(server, store) == SIZE


def test_a_tar_that_was_scanned_is_not_sent_again_for_its_audio(server: Bucket, store: Store, tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(300):
            clip = codec.encode(speak("ba du ko", number)[0], "flac")
            for name, member_bytes in ((f"{number:04}.flac", clip), (f"{number:04}.txt", b"ba du ko")):
                member = tarfile.TarInfo(name)
                member.size = len(member_bytes)
                tar.addfile(member, io.BytesIO(member_bytes))
    store.replace("clips.tar", content.getvalue())
    cache = Cache(tmp_path, 10**9)
    for source in (store.root, store.uri("clips.tar")):
        entries = list(scan(Source(uri=source), cache=cache))
        assert len(entries) == 300
        blobs = list(read_many((entry.uri for entry in entries), cache=cache))
        assert all(isinstance(blob, Blob) and blob.data.startswith(b"fLaC") for blob in blobs)
    assert num_sent(server, store) <= 1.001 * len(content.getvalue()) + 2_000, "but for what the listing takes"
