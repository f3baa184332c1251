"""The loader: what was sharded comes back, bad utterances do no harm, and no process is left behind."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from data import one_rank
from forked import finish, start
from noise_corpus import (
    NUM,
    PER_SHARD,
    corpus_of,
    damage,
    opened_with,
    planned,
    read_all,
    same,
    samples_of,
    text_of,
    write_corpus,
)
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.config import Plan
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import Batch
from voxstill.data import loader
from voxstill.data.loader import Batches, Loader
from voxstill.data.plan import Crops, plan
from voxstill.storage import tables
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from waiting import until


@pytest.fixture
def store(tmp_path: Path) -> Store:
    new = Store(str(tmp_path / "work"))
    write_corpus(new)
    return new


def test_every_utterance_comes_back_to_the_bit_with_its_tokens_times_and_weight(store: Store) -> None:
    corpus = corpus_of(store)
    indices = []
    for batch in read_all(Loader(Batches(corpus, planned(corpus)), workers=0)):
        assert batch.audio_BT.dtype == torch.int16
        assert batch.audio_BT.shape == (len(batch.ids), int(batch.audio_len_B.max()))
        for b, name in enumerate(batch.ids):
            i = int(name.removeprefix("u/"))
            indices.append(i)
            num_samples, num_tokens = int(batch.audio_len_B[b]), int(batch.token_len_B[b])
            assert np.array_equal(batch.audio_BT[b, :num_samples], samples_of(i))
            assert not batch.audio_BT[b, num_samples:].any()
            assert "".join(map(chr, batch.tokens_BU[b, :num_tokens].tolist())) == text_of(i).replace(" ", "")
            assert (batch.tokens_BU[b, num_tokens:] == -1).all()
            expected = [(0, 40)] * 2 + [(40, 100)] * 3 if i % 3 else [(-1, -1)] * 5
            assert batch.times_BU2[b, :num_tokens].tolist() == [list(times) for times in expected]
            assert float(batch.weight_B[b]) == (0.5 if i == 7 else 1.0)
    assert sorted(indices) == list(range(NUM))


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing_but_the_time(store: Store, workers: int) -> None:
    batches = Batches(corpus_of(store), planned(corpus_of(store)))
    loader = Loader(batches, workers=workers)
    assert same(read_all(loader), read_all(Loader(batches, workers=0)))
    assert loader.spent.waited_s > 0 < loader.spent.decode_s


def test_what_prepares_the_batches_is_measured_by_itself(store: Store) -> None:
    def slow(_: int, batches: list[Batch]) -> list[Batch]:
        time.sleep(0.01)
        return batches

    batches = Batches(corpus_of(store), planned(corpus_of(store)))
    loader = Loader(batches, workers=0, make=slow)
    steps = list(loader)
    assert loader.spent.prepare_s >= 0.01 * len(steps) > 0


def test_resuming_is_starting_at_another_step(store: Store) -> None:
    batches = Batches(corpus_of(store), planned(corpus_of(store)))
    whole = list(Loader(batches, workers=0))
    assert len(whole) > 4
    for first in (1, len(whole) - 1, len(whole)):
        rest = list(Loader(batches, first=first, workers=0))
        assert same([item for step in rest for item in step], [item for step in whole[first:] for item in step])


def test_two_ranks_together_read_what_one_reads(store: Store) -> None:
    corpus = corpus_of(store)
    epoch_plan = planned(corpus)
    alone = list(Loader(Batches(corpus, epoch_plan), workers=0))
    ranks = [list(Loader(Batches(corpus, epoch_plan, rank=rank, ranks=2), workers=0)) for rank in range(2)]
    assert all(same(a, b + c) for a, b, c in zip(alone, *ranks, strict=True))
    with pytest.raises(ConfigError):
        Batches(corpus, epoch_plan, rank=0, ranks=3)


def test_the_training_s_random_numbers_are_left_alone(store: Store) -> None:
    batches = Batches(corpus_of(store), planned(corpus_of(store)))
    before = torch.get_rng_state()
    read_all(Loader(batches, workers=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_repeats_count_equal_neighbours_within_an_utterance_only(store: Store) -> None:
    corpus = opened_with(store, lambda text, words: ([1, 1, 2, 1, 1], [(-1, -1)] * 5))
    assert corpus.equal_neighbours.tolist() == [2] * NUM
    alternating = iter(range(NUM))
    corpus = opened_with(store, lambda text, words: ([3] * (n := next(alternating) % 4), [(-1, -1)] * n))
    assert corpus.num_tokens.tolist() == [i % 4 for i in range(NUM)]
    assert corpus.equal_neighbours.tolist() == [max(i % 4 - 1, 0) for i in range(NUM)]


def test_audio_without_texts_has_no_tokens(store: Store) -> None:
    corpus = opened_with(store, None)
    epoch_plan = plan(corpus.durations_ms, None, Plan(), seed=0, epoch=0)
    (batch, *_) = read_all(Loader(Batches(corpus, epoch_plan), workers=0))
    assert batch.tokens_BU.shape == (len(batch.ids), 0)
    assert batch.times_BU2.shape == (len(batch.ids), 0, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_neighbour_of_weight_zero_stands_in_for_what_cannot_be_read_and_the_log_names_it(
    store: Store, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    damage(store, 25, b"this is no flac")
    corpus = corpus_of(store)
    batches = Batches(corpus, planned(corpus))
    loader = Loader(batches, workers=workers, max_unread=0.05)
    with caplog.at_level(logging.WARNING, logger="voxstill"):
        logging.getLogger("voxstill").propagate = True
        read = read_all(loader)
    assert loader.replaced == 1
    assert "`u/25`" in caplog.text
    assert "00001.tar" in caplog.text
    assert sum(len(batch.ids) for batch in read) == NUM
    (stand_in,) = [(batch, b) for batch in read for b in range(len(batch.ids)) if batch.weight_B[b] == 0]
    batch, b = stand_in
    i = int(batch.ids[b].removeprefix("u/"))
    assert i != 25
    assert batch.ids.count(batch.ids[b]) == 2
    assert np.array_equal(batch.audio_BT[b, : int(batch.audio_len_B[b])], samples_of(i))


@pytest.mark.parametrize("has_checksum", [True, False])
def test_audio_that_decodes_to_other_samples_is_replaced_by_its_checksum(
    tmp_path: Path, has_checksum: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(tmp_path / "work"))
    write_corpus(store)
    if not has_checksum:  # as version 0.1 wrote them
        for sidecar in Path(store.root).glob("s/*.parquet"):
            pq.write_table(pq.read_table(sidecar).drop_columns(["crc32"]), sidecar)
    damage(store, 25, codec.encode(samples_of(25)[::-1].copy(), "flac"))
    corpus = corpus_of(store)
    assert (corpus.crc32 >= 0).all() == has_checksum
    loader = Loader(Batches(corpus, planned(corpus)), workers=0, max_unread=0.05)
    with caplog.at_level(logging.WARNING, logger="voxstill"):
        logging.getLogger("voxstill").propagate = True
        read_all(loader)
    assert loader.replaced == has_checksum
    assert ("the checksum of its audio is not" in caplog.text) == has_checksum


def test_a_batch_of_which_nothing_can_be_read_is_silence_that_counts_for_nothing(store: Store) -> None:
    (Path(store.root) / "s" / "00002.tar").unlink()
    corpus = corpus_of(store)
    epoch_plan = plan(corpus.durations_ms, corpus.num_tokens, Plan(budget_ms=100 + 10 * NUM), seed=0, epoch=0)
    loader = Loader(Batches(corpus, epoch_plan), workers=0, max_unread=0.5)
    read = read_all(loader)
    assert loader.replaced == PER_SHARD
    silent = [batch for batch in read if not batch.weight_B.any()]
    assert silent
    assert all(not batch.audio_BT.any() and (batch.token_len_B > 0).all() for batch in silent)


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_unreadable_utterances_are_an_error_that_names_one(store: Store, workers: int) -> None:
    for row in (3, 4, 45):
        damage(store, row, b"this is no flac")
    corpus = corpus_of(store)
    with pytest.raises(DataError) as caught:
        read_all(Loader(Batches(corpus, planned(corpus)), workers=workers, max_unread=0.04))
    assert "utterance `u/" in caught.value.why
    assert ".tar" in caught.value.why


def test_a_truncated_tar_is_distinguished_from_one_of_the_wrong_length(store: Store) -> None:
    path = Path(store.root) / "s" / "00000.tar"
    path.write_bytes(path.read_bytes()[:-30_000])
    sidecar = "s/00001.parquet"
    rows = tables.from_parquet(store.read(sidecar), Sample)
    shifted = [row if i else Sample(**{**fields(row), "num_samples": 1}) for i, row in enumerate(rows)]
    store.replace(sidecar, tables.to_parquet(shifted, Sample))
    corpus = corpus_of(store)
    step = [Batches(corpus, planned(corpus))[k] for k in range(planned(corpus).steps)]
    lines = [line for item in step for line in item.unread]
    assert any("`u/19`" in line and "ends before it" in line for line in lines)
    assert any("`u/20`" in line and "sidecar says 1" in line for line in lines)


def fields(row: Sample) -> dict[str, object]:
    return {name: getattr(row, name) for name in Sample.__slots__}


def test_what_is_not_a_plain_folder_is_read_by_ranges_with_the_same_result(store: Store) -> None:
    remote = Store("memory://test-loader")
    for entry in store.list("s"):
        remote.create(entry.key, store.read(entry.key))
    local, far = corpus_of(store), corpus_of(remote)
    assert same(
        read_all(Loader(Batches(local, planned(local)), workers=0)),
        read_all(Loader(Batches(far, planned(far)), workers=0)),
    )
    remote.replace("s/00001.tar", b"short")
    step = [Batches(far, planned(far))[k] for k in range(planned(far).steps)]
    assert sum(len(item.unread) for item in step) == PER_SHARD


def test_a_dataset_travels_to_another_process_without_its_open_files(store: Store) -> None:
    corpus = opened_with(store, None)
    batches = Batches(corpus, plan(corpus.durations_ms, None, Plan(), seed=0, epoch=0))
    first = batches[0].batches
    assert same(pickle.loads(pickle.dumps(batches))[0].batches, first)


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


PARENT = """
import os, signal, sys, time
sys.path[:0] = {tests!r}
from noise_corpus import *
from test_loader import Batches, children
corpus = corpus_of(Store({root!r}))
steps = iter(Loader(Batches(corpus, planned(corpus)), workers=2))
next(steps)
workers = children(os.getpid())
{then}
"""


def parent_of_workers(store: Store, then: str) -> subprocess.Popen[str]:
    """A process of its own with two workers: torch's signal handler raises wherever the parent happens to be."""
    code = PARENT.format(tests=[str(folder) for folder in Path(__file__).parents[:2]], root=store.root, then=then)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_worker_is_an_error_and_not_a_hang(store: Store) -> None:
    parent = parent_of_workers(store, "os.kill(workers[0], signal.SIGKILL)\nlist(steps)\nprint('went on')")
    out, err = parent.communicate(timeout=200)
    assert "went on" not in out
    assert "died" in err or "killed by signal" in err
    assert parent.returncode > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_whole_group_ends_no_worker_that_starts(
    store: Store, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aside = loader._die_with_parent

    def signalled(parent: int, worker: int) -> None:
        os.kill(os.getpid(), number)
        set_aside(parent, worker)

    monkeypatch.setattr(loader, "_die_with_parent", signalled)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    corpus = corpus_of(store)
    batches = read_all(Loader(Batches(corpus, planned(corpus)), workers=2))
    assert sum(len(batch.ids) for batch in batches) == NUM
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_no_worker_outlives_a_killed_parent(store: Store) -> None:
    parent = parent_of_workers(store, "print(*workers, flush=True)\ntime.sleep(60)")
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate()
    assert len(workers) == 2
    until(lambda: not any(map(runs, workers)))


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_eight_processes_have_equal_steps_and_every_utterance_once(tmp_path: Path) -> None:
    bad = {3, 120, 240}
    for num in (1, 7, 8, 9, 240, 241):
        store = Store(str(tmp_path / f"corpus-{num:04}"))
        write_corpus(store, num)
        for row in bad & set(range(num)):
            damage(store, row, b"this is no FLAC")
    with tarfile.open(tmp_path / "t.tar.bz2", "w:bz2") as tar:
        for i in range(30):
            for name, data in ((f"{i}.wav", codec.encode(samples_of(i), "wav")), (f"{i}.txt", b"a b")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    squeezed = ["shard", str(tmp_path / "corpus-squeezed"), "--from", str(tmp_path / "t.tar.bz2")]
    assert cli.main([*squeezed, "--set", "engine=inline", "--set", "shard.format=in_place"]) == 0
    log, outputs = tmp_path / "log", [tmp_path / f"rank-{rank}" for rank in range(8)]
    ranks = [
        start(one_rank.read_corpora, tmp_path, rank, 8, log=log, output=output) for rank, output in enumerate(outputs)
    ]
    finish(*ranks, log=log)
    facts = [[json.loads(line) for line in output.read_text().splitlines()] for output in outputs]
    *plain, last = zip(*facts, strict=True)
    assert len({row["steps"] for row in last}) == 1
    assert len({name for row in last for name in row["ids"]}) == 30
    for num, rows in zip((1, 7, 8, 9, 240, 241), plain, strict=True):
        assert len({row["steps"] for row in rows}) == 1 <= rows[0]["steps"]
        count = Counter(name for row in rows for name in row["ids"])
        unread = {f"u/{row}" for row in bad if row < num}
        assert set(count) == {f"u/{row}" for row in range(num)} - unread
        assert sum(row["replaced"] for row in rows) >= len(unread)
        twice = count.total() - len(count) + sum(row["replaced"] for row in rows) - len(unread)
        assert twice == rows[0]["repeated"]


def test_a_long_utterance_is_cropped_as_the_plan_has_drawn(store: Store) -> None:
    corpus = corpus_of(store)
    longest = int(np.median(corpus.num_samples))
    stretches = set()
    for epoch in range(3):
        crops = Crops.draw(corpus.num_samples, longest, seed=0, epoch=epoch)
        cropped = dataclasses.replace(planned(corpus), crops=crops)
        assert cropped.sha256() != planned(corpus).sha256()
        for batch in read_all(Loader(Batches(corpus, cropped), workers=0)):
            for b, name in enumerate(batch.ids):
                i = int(name.removeprefix("u/"))
                start, num_samples = int(crops.start_N[i]), int(batch.audio_len_B[b])
                assert num_samples == min(longest, len(samples_of(i)))
                assert np.array_equal(batch.audio_BT[b, :num_samples], samples_of(i)[start : start + num_samples])
                stretches.add((i, start))
    assert len(stretches) > NUM  # another stretch each time
