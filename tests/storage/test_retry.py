"""Retries: a faulty connection costs time but no bytes, and a lasting failure ends in an error to act on."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from faulty_proxy import faulty_proxy
from servers import SetEnvironment, http_server, oss_environment, s3_environment
from voxstill.core.errors import StorageError
from voxstill.storage import retry
from voxstill.storage.fetch import Blob, read_many, stream
from voxstill.storage.store import Store

_numbers = itertools.count()


FAULTS = {"error": 0.05, "slow_down": 0.05, "reset": 0.05, "cut": 0.05, "lost": 0.05}
"""Nine tries in a row fail once in 50,000 operations."""


def test_all_of_two_hundred_operations_over_a_faulty_connection_succeed(
    s3_port: int, set_environment: SetEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "MAX_PAUSE_S", 0.2)
    with faulty_proxy(s3_port, seed=7, **FAULTS) as line:
        set_environment(s3_environment(line.port))
        store = Store(f"s3://bucket/bad-line/{next(_numbers)}")
        data = {f"k{i}": bytes([i]) * (i * 500) for i in range(50)}
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(store.create, data, data.values()))  # 50
            assert not any(pool.map(store.create, data, [b"late"] * 50))  # 100
            assert list(pool.map(store.read, data)) == list(data.values())  # 150
        blobs = list(read_many([store.uri(key) for key in data]))  # 200
        large = os.urandom(6 << 20)
        store.create("large", large)
        for start, length in ((0, len(large)), (12_345, 3 << 20)) * 10:
            assert b"".join(stream(f"{store.uri('large')}#{start}+{length}")) == large[start : start + length]
        assert [blob.data for blob in blobs if isinstance(blob, Blob)] == list(data.values())
        assert {entry.key for entry in store.list()} == {*data, "large"}
    assert all(line.seen[fault] for fault in FAULTS)


@pytest.mark.parametrize("kind", ["s3", "oss"])
def test_a_write_whose_answer_is_lost_succeeds_and_that_of_other_bytes_does_not(
    kind: str, request: pytest.FixtureRequest, set_environment: SetEnvironment
) -> None:
    with faulty_proxy(request.getfixturevalue(f"{kind}_port"), lost=1.0) as line:
        set_environment(s3_environment(line.port) if kind == "s3" else oss_environment(line.port))
        store = Store(f"s3://bucket/lost/{next(_numbers)}" if kind == "s3" else f"oss://127/lost/{next(_numbers)}")

        def mend() -> None:
            while not line.seen["lost"]:
                time.sleep(0.005)
            line.shares = {}

        mender = threading.Thread(target=mend)
        mender.start()
        assert store.create("k", b"ours")  # written at once, told later
        mender.join()
        assert line.seen["lost"]
        assert not store.create("k", b"theirs")
        assert not store.create("k", b"ours")  # nothing was lost this time: it is there, so we were not first
        line.seen.clear()
        line.shares = {"lost": 1.0}
        mender = threading.Thread(target=mend)
        mender.start()
        assert not store.create("k", b"other")
        mender.join()
        assert store.read("k") == b"ours"


def test_exactly_one_of_many_writers_of_a_key_wins_over_a_faulty_connection(
    s3_port: int, set_environment: SetEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "MAX_PAUSE_S", 0.2)
    with faulty_proxy(s3_port, seed=3, lost=0.2, error=0.05, reset=0.05) as line:
        set_environment(s3_environment(line.port))
        store = Store(f"s3://bucket/race/{next(_numbers)}")
        for key in ("a", "b", "c"):
            payloads = [f"writer {i}".encode() for i in range(8)]
            with ThreadPoolExecutor(8) as pool:
                won = list(pool.map(lambda data: store.create(key, data), payloads))  # noqa: B023
            assert sum(won) == 1
            assert store.read(key) == payloads[won.index(True)]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("error", r"500 Internal Server Error \(InternalError\)"),
        ("slow_down", r"503 Service Unavailable \(SlowDown\)"),
        ("reset", "breaks"),
        ("stall", "repeated timeouts"),
        ("cut", "breaks"),
    ],
)
def test_a_lasting_failure_is_an_error_in_bounded_time_with_the_fix(
    s3_port: int, set_environment: SetEnvironment, fault: str, says: str
) -> None:
    with faulty_proxy(s3_port) as line:
        set_environment(s3_environment(line.port))
        store = Store(f"s3://bucket/permanent/{next(_numbers)}")
        store.create("k", b"1" * 1000)
        line.shares, line.stall_s = {fault: 1.0}, 1.5
        acts: list[Callable[[], object]] = [lambda: store.read("k"), lambda: list(stream(store.uri("k")))]
        if fault != "cut":
            acts += [lambda: store.create("new", b"1"), lambda: store.replace("k", b"2"), lambda: list(store.list())]

        def failure_of(act: Callable[[], object]) -> StorageError:
            start = time.monotonic()
            with pytest.raises(StorageError) as caught:
                act()
            assert time.monotonic() - start < 30  # with the limits as they are it takes a minute
            return caught.value

        with ThreadPoolExecutor(len(acts)) as pool:
            for error in pool.map(failure_of, acts):
                assert re.search(says, error.why)
                assert "again" in error.fix


def test_what_a_server_refuses_is_not_tried_again(set_environment: SetEnvironment) -> None:
    with http_server({}, status=403) as port:
        set_environment(s3_environment(port))
        start = time.monotonic()
        for act in (lambda: Store("s3://b").read("k"), lambda: Store("s3://b").create("k", b"")):
            with pytest.raises(StorageError, match=r"403 Forbidden \(SomeCode\)"):
                act()
        assert time.monotonic() - start < 8  # the pauses between tries alone would take 16 s


def test_an_address_that_no_storage_takes_is_an_error_with_its_cause() -> None:
    with pytest.raises(StorageError, match="the scheme is not supported") as caught:
        Store("foo://bar/x")
    assert "s3://" in caught.value.fix
    assert retry.storage_error("read", "s3://b/k", ValueError()).why == "ValueError"  # it has no words
