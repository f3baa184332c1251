"""A training that is killed goes on to the same bits, and one that stands still is found and ended."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forked import forked
from seeds import seeded_random
from tones import write_shards
from torture.runs import SHARE
from training.test_loop import figures, same, weights
from training.test_watchdog import LIMIT_S, is_alive, ranks, started
from training.train_once import train_once
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store

pytestmark = pytest.mark.slow
STEPS = 8


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("work")
    write_shards(Store(str(folder)), "shards/r", {"train": 24, "dev": 4})
    return folder


def drafts(run: RunDir) -> list[Path]:
    return list(run.checkpoints.glob(".*draft")) if run.checkpoints.exists() else []


def lines(run: RunDir) -> int:
    return run.metrics.read_bytes().count(b"\n") if run.metrics.exists() else 0


def kill(arguments: list[str], run: RunDir, chance: random.Random, *, in_checkpoint: bool) -> str | None:
    """Start the training and kill it; where that was, or None where it had ended before."""
    wanted = chance.randint(0, STEPS - 1)
    with forked(train_once, *arguments, log=run.path.with_suffix(".log")) as process:
        while process.is_alive() and lines(run) < wanted:
            time.sleep(0.002)
        if in_checkpoint:
            while process.is_alive() and not drafts(run):
                pass  # it is there for a few hundredths of a second
            time.sleep(chance.random() * 0.02)
        else:
            time.sleep(chance.random() * (0.3 if wanted else 2))  # before the first step a student is built
    if process.exitcode != -signal.SIGKILL:
        return None
    if drafts(run):
        return "inside a checkpoint"
    return "between steps" if lines(run) else "before the first step"


@pytest.mark.skipif(SHARE is None, reason="the short form is in tests/train")
def test_a_training_killed_anywhere_and_resumed_equals_an_undisturbed_one(
    torture: Any, work: Path, tmp_path: Path
) -> None:
    chance = seeded_random()
    calm, run = RunDir(tmp_path / "calm"), RunDir(tmp_path / "killed")
    train_once(str(work), str(calm.path), f"train.steps={STEPS}")
    expected, curve = weights(calm), figures(calm)
    where: Counter[str] = Counter()
    while where.total() < torture.count(short=2, full=50):
        in_checkpoint = where.total() % 2 == 0
        settings = [f"train.steps={STEPS}", f"train.checkpoint_every={1 if in_checkpoint else 2}"]
        if moment := kill([str(work), str(run.path), *settings], run, chance, in_checkpoint=in_checkpoint):
            where[moment] += 1
        train_once(str(work), str(run.path), *settings)
        assert same(weights(run), expected)
        assert figures(run) == curve
        assert not drafts(run)
        shutil.rmtree(run.path)
    torture.tell("SIGKILL of a training", f"{where.total()} of {where.total()} resumed to the same bits: {dict(where)}")


@pytest.mark.skipif(SHARE is None, reason="the short form is in tests/train")
def test_a_stalled_rank_is_detected_in_time_and_all_ranks_end(torture: Any, work: Path, tmp_path: Path) -> None:
    chance = seeded_random()
    found_s, ended_s = [], []
    for number in range(torture.count(short=1, full=10)):
        run = RunDir(tmp_path / str(number))
        victim = number % 2
        with started(
            work, run, "train.devices=2", "plan.batches_per_step=2", f"train.step_timeout_s={LIMIT_S}"
        ) as process:
            time.sleep(chance.random())
            pids = ranks(run)
            os.kill(pids[victim], signal.SIGSTOP)
            begun = time.monotonic()
            while "has made no step" not in run.log.read_text():
                assert time.monotonic() < begun + 90
                time.sleep(0.02)
            found_s.append(time.monotonic() - begun)
            process.join(90)
            ended_s.append(time.monotonic() - begun)
            assert process.exitcode not in (None, 0)
        assert not any(map(is_alive, pids.values()))
        stacks = run.log.read_text().split("stacks of rank ")[1:]
        assert {stack[0] for stack in stacks} == {"0", "1"}
        assert len([stack for stack in stacks if "most recent call first" in stack]) >= 2
        assert found_s[-1] < 2 * LIMIT_S
    summary = f"{len(found_s)} of {len(found_s)} found, {min(found_s):.1f} to {max(found_s):.1f} s after it"
    ended = f"all ranks ended {min(ended_s):.1f} to {max(ended_s):.1f} s after it"
    torture.tell("SIGSTOP of a rank", f"{summary}; {ended}; the limit was {LIMIT_S} s")
