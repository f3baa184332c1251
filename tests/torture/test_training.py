"""A training that is killed goes on to the same bits, and one that stands still is found and ended."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forked import call, command, forked
from seeds import seeded_random
from tones import write_shards
from torture.runs import SHARE
from training.test_loop import figures, same, weights
from training.test_watchdog import LIMIT_S, is_alive, ranks, started
from training.train_once import train_once
from voxstill.storage import tables
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store

pytestmark = pytest.mark.slow
STEPS = 8
WITHIN_S = 60
"""A step, a checkpoint and the end of the workers take a second or two."""
SETTINGS = """
work: {work}
plan: {{budget_ms: 6000}}
train: {{steps: {steps}, seed_mode: debug, loader_workers: 1, validate_every: 4, checkpoint_every: 2, log_every: 1,
  average_share: 0.3, root: {root}}}
"""


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


@pytest.fixture(scope="module")
def finished_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder of which every step says that it is finished."""
    folder: Path = tmp_path_factory.mktemp("finished")
    store = Store(str(folder))
    for kind in ("utterances", "labels", "verdicts"):
        store.write_json(f"{kind}/r/{tables.SUCCESS}", {"recipe": "r", "sha256": ""})
    write_shards(store, "shards/r", {"train": 24, "dev": 4})
    return folder


def written(folder: Path, work: Path) -> Path:
    """A configuration with a process that reads batches; its experiments are in `folder/exp`."""
    folder.mkdir()
    (folder / "train.yaml").write_text(SETTINGS.format(work=work, root=folder / "exp", steps=STEPS))
    return folder / "train.yaml"


def experiment(folder: Path) -> RunDir | None:
    """The one experiment in a folder, once it is there."""
    paths = [path for path in folder.glob("exp/*") if not path.name.startswith(".")]
    assert len(paths) <= 1
    return RunDir(paths[0]) if paths else None


def has_begun(pid: int | None) -> bool:
    """Whether it is the command that runs: before it has a group of its own it is Python that starts."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid or 0) == pid
    return True


def end_by(number: signal.Signals, path: Path, chance: random.Random, *, whole_group: bool) -> int:
    """Start `voxstill train` and send it a signal, or its whole process group; returns the exit code."""
    wanted, log = chance.randint(0, STEPS - 1), path.with_suffix(".log")
    with forked(command, ["train", path], log=log) as process:
        while process.is_alive():
            run = experiment(path.parent)
            if run is not None and lines(run) >= wanted and has_begun(process.pid):
                break
            time.sleep(0.002)
        time.sleep(chance.random() * 0.3)
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if whole_group else os.kill)(process.pid, number)
        process.join(WITHIN_S)
        assert process.exitcode is not None, f"{number.name} did not end it:\n{log.read_text()[-3000:]}"
        return process.exitcode


@pytest.mark.skipif(SHARE is None, reason="the short forms are in tests/flow and tests/training")
def test_a_training_ended_by_any_signal_to_it_or_its_group_goes_on_to_the_same_bits(
    torture: Any, finished_work: Path, tmp_path: Path
) -> None:
    chance = seeded_random()
    calm = written(tmp_path / "calm", finished_work)
    call(command, ["train", calm], log=tmp_path / "log")
    expected = experiment(calm.parent)
    assert expected is not None
    ends: Counter[str] = Counter()
    while ends.total() < torture.count(short=3, full=200):
        path = written(tmp_path / "ended", finished_work)
        for _ in range(chance.randint(1, 3)):
            number = chance.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL))
            whole_group = chance.random() < 0.5
            code = end_by(number, path, chance, whole_group=whole_group)
            # 130 with a checkpoint, or before there is anything to save the end that the signal has by itself
            assert code in (0, -number, 130), path.with_suffix(".log").read_text()[-3000:]
            if code != 0:
                ends[f"{number.name} to the {'group' if whole_group else 'process'}"] += 1
        call(command, ["train", path], log=tmp_path / "log")
        run = experiment(path.parent)
        assert run is not None
        assert same(weights(run), weights(expected))
        assert figures(run) == figures(expected)
        shutil.rmtree(path.parent)
        torture.tell("trainings ended by signals", f"{ends.total()}: {dict(ends)}, all resumed to the same bits")


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
