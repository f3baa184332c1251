"""A bucket that answers with errors, late or not at all: every request is tried again, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from faulty_proxy import FaultyProxy, faulty_proxy
from servers import reset_moto, s3_environment
from torture import runs
from voxstill.storage import clients
from voxstill.storage.store import Store

pytestmark = pytest.mark.slow
NUM = 15 if runs.SHARE is None else 30
FAULTS = {"error": 0.08, "slow_down": 0.08, "reset": 0.06, "lost": 0.04, "cut": 0.06}
TIME_OUT = {"stall": 0.004}
STALL_S = 35.0
"""Longer than the store waits for a server that says nothing."""
ECHO = {"name": "echo", "substitute": 0.1, "delay_ms": 10}
ENGINE = {"name": "inline", "chunk": 3}


@pytest.fixture
def moto_port(s3_server: int) -> int:
    reset_moto(s3_server, "bucket")
    return s3_server


@pytest.fixture
def bucket(moto_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The bucket, seen by this process without any fault."""
    for name, value in s3_environment(moto_port).items():
        monkeypatch.setenv(name, value)
    clients.client.cache_clear()
    yield Store("s3://bucket")
    clients.client.cache_clear()


def prepare(work: str, folder: Path, line: FaultyProxy) -> None:
    """Index, label, filter and shard behind the line."""
    config = runs.configure(folder, "", work=work, teacher=ECHO, engine=ENGINE)
    environment = s3_environment(line.port)
    index = ("index", "s3://bucket/audio/manifest.jsonl", "--work", work)
    for command in (index, *((step, work) for step in ("label", "filter", "shard"))):
        runs.finish(*command, "--config", config, log=folder / "log", within_s=1200, **environment)


def kept(bucket: Store, work: str) -> dict[str, bytes]:
    keys = [entry.key for entry in bucket.list(work)]
    return {key.removeprefix(work): bucket.read(key) for key in keys if key.endswith((".parquet", ".tar"))}


def test_a_bucket_that_fails_at_every_third_request_loses_nothing(
    torture: Any, bucket: Store, moto_port: int, tmp_path: Path
) -> None:
    wanted = torture.count(short=10, full=1000)
    for path in runs.corpus(tmp_path / "audio", NUM).parent.iterdir():
        bucket.replace(f"audio/{path.name}", path.read_bytes())
    outcomes: Counter[str] = Counter()
    with faulty_proxy(moto_port, stall_s=STALL_S) as line:
        prepare("s3://bucket/calm", tmp_path, line)
        expected = kept(bucket, "calm")
        assert [name.split("/")[1] for name in expected].count("labels") == NUM / 3
        line.shares = FAULTS | (TIME_OUT if wanted == 1000 else {})
        rounds = 0
        while outcomes.total() - outcomes["fine"] < wanted:
            rounds += 1
            line.seen.clear()
            prepare(f"s3://bucket/work{rounds}", tmp_path, line)
            assert kept(bucket, f"work{rounds}") == expected
            outcomes += line.seen
    torture.tell("S3 errors", f"{outcomes.total() - outcomes['fine']:,} in {rounds} corpora of {NUM}: {dict(outcomes)}")


def test_requests_back_off_where_a_bucket_says_slow_down(bucket: Store, moto_port: int, tmp_path: Path) -> None:
    for path in runs.corpus(tmp_path / "audio", 12).parent.iterdir():
        bucket.replace(f"audio/{path.name}", path.read_bytes())
    with faulty_proxy(moto_port) as line:

        def overload() -> None:
            while line.seen["fine"] < 8:
                time.sleep(0.005)
            line.shares = {"slow_down": 1.0}
            time.sleep(3)
            line.shares = {}

        thread = threading.Thread(target=overload)
        thread.start()
        prepare("s3://bucket/work", tmp_path, line)
        thread.join()
        assert 1 <= line.seen["slow_down"] < 16 * 7, "each of 16 readers may ask after 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s"
    assert len(kept(bucket, "work")) > 0


def test_a_page_of_a_listing_that_breaks_off_is_asked_for_again(torture: Any, bucket: Store, moto_port: int) -> None:
    keys = [f"pages/{i:04}" for i in range(1005)]  # a page is 1,000
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: bucket.create(key, b"k"), keys))
    with faulty_proxy(moto_port, seed=1, cut=0.3) as line, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment(line.port).items():
            patch.setenv(name, value)
        clients.client.cache_clear()
        for _ in range(torture.count(short=5, full=10)):
            assert [entry.key for entry in Store("s3://bucket").list("pages")] == keys
        assert line.seen["cut"] > 1
