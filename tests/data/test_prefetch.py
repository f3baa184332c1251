"""Fetching tars ahead changes nothing but the time it takes, and never takes more room than it may."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest

from noise_corpus import NUM, PER_SHARD, corpus_of, planned, read_all, same, write_corpus
from voxstill.core.config import Plan
from voxstill.data.loader import Batches, Loader
from voxstill.data.plan import plan
from voxstill.data.prefetch import CacheDir, shard_uses
from voxstill.data.shard_index import ShardIndex
from voxstill.storage.shard_format import tar_name
from voxstill.storage.store import Store
from waiting import until

PLENTY = 1 << 30
NAMES = itertools.count()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0


@pytest.fixture
def remote(tmp_path: Path) -> ShardIndex:
    local = Store(str(tmp_path / "local"))
    write_corpus(local)
    far = Store(f"memory://test-prefetch-{next(NAMES)}")
    for entry in local.list("s"):
        far.create(entry.key, local.read(entry.key))
    return corpus_of(far)


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetching_gives_the_same_batches_and_leaves_no_files(tmp_path: Path, s3: Store, workers: int) -> None:
    cache_dir = CacheDir(tmp_path / "tars", PLENTY)
    write_corpus(s3)
    remote = corpus_of(s3)
    epoch_plan = planned(remote)
    with_it = Loader(Batches(remote, epoch_plan, cache_dir=cache_dir), workers=workers)
    assert same(read_all(with_it), read_all(Loader(Batches(remote, epoch_plan), workers=0)))
    until(lambda: not size_of(cache_dir.folder))


def test_the_folder_never_holds_more_than_its_limit(remote: ShardIndex, tmp_path: Path) -> None:
    cfg = Plan(budget_ms=2000, layout="remote", window=10)
    epoch_plan = plan(remote.durations_ms, None, cfg, seed=0, epoch=0, shard_of=remote.shard.astype(np.int64))
    needed = shard_uses(remote, epoch_plan, rank=0, ranks=1, first=0)
    cache_dir = CacheDir(tmp_path / "tars", max(use.num_bytes for use in needed) + 1)
    fetched = set()
    for k, _ in enumerate(Loader(Batches(remote, epoch_plan, cache_dir=cache_dir), workers=0)):
        if k < epoch_plan.steps - 1:
            until(lambda: list(cache_dir.folder.glob("[!.]*.tar")))
        assert size_of(cache_dir.folder) <= cache_dir.max_bytes
        fetched |= {path.name for path in cache_dir.folder.glob("[!.]*.tar")}
    assert len(fetched) == len(needed) > 1


def test_a_tar_is_needed_from_its_first_step_to_its_last(remote: ShardIndex) -> None:
    epoch_plan = planned(remote)
    for rank in range(2):
        for first in (0, 1, epoch_plan.steps - 1, epoch_plan.steps):
            steps_of_shard: dict[int, list[int]] = {}
            for k in range(first, epoch_plan.steps):
                for row in np.concatenate(epoch_plan.batches_of(k, rank, 2)).tolist():
                    steps_of_shard.setdefault(int(remote.shard[row]), []).append(k)
            needed = shard_uses(remote, epoch_plan, rank=rank, ranks=2, first=first)
            assert {use.shard: (use.first, use.last) for use in needed} == {
                shard: (min(steps), max(steps)) for shard, steps in steps_of_shard.items()
            }


def test_tars_of_an_earlier_start_are_reused(remote: ShardIndex, tmp_path: Path) -> None:
    cache_dir = CacheDir(tmp_path / "tars", PLENTY)
    epoch_plan = planned(remote)
    steps = iter(Loader(Batches(remote, epoch_plan, cache_dir=cache_dir), workers=0))
    next(steps)
    until(lambda: len(list(cache_dir.folder.glob("*.tar"))) == NUM // PER_SHARD)
    (cache_dir.folder / ".part-00009.tar").write_bytes(b"half of it")
    del steps
    without = Store(f"memory://test-prefetch-{next(NAMES)}")
    for entry in remote.store.list("s"):
        if not entry.key.endswith(".tar"):
            without.create(entry.key, remote.store.read(entry.key))
    loader = Loader(Batches(corpus_of(without), epoch_plan, cache_dir=cache_dir), first=1, workers=0)
    assert same(read_all(loader), read_all(Loader(Batches(remote, epoch_plan), first=1, workers=0)))
    assert not loader.replaced


def test_a_tar_that_cannot_be_fetched_is_logged_and_read_by_ranges(
    remote: ShardIndex, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote.store.replace(f"s/{tar_name(1)}", b"short")
    epoch_plan = planned(remote)
    loader = Loader(
        Batches(remote, epoch_plan, cache_dir=CacheDir(tmp_path / "tars", PLENTY)), workers=0, max_unread=1.0
    )
    with caplog.at_level(logging.WARNING):
        for _ in loader:
            until(lambda: caplog.messages)
    assert loader.replaced == PER_SHARD
    assert sum("read one by one" in line for line in caplog.messages) == 1


def test_a_folder_that_cannot_be_used_costs_time_and_not_the_training(
    remote: ShardIndex, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    epoch_plan = planned(remote)
    loader = Loader(Batches(remote, epoch_plan, cache_dir=CacheDir(tmp_path / "file" / "tars", PLENTY)), workers=0)
    assert same(read_all(loader), read_all(Loader(Batches(remote, epoch_plan), workers=0)))
    assert [line for line in caplog.messages if "cannot be used: Not a directory" in line] == caplog.messages
    assert not loader.replaced
