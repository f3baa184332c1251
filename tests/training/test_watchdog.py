"""Nothing hangs: a rank that stands still is found, the stacks of all are in the log, and every process ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from forked import forked
from seeds import seeded_random
from training.train_once import train_in_forks, train_in_own_group, train_on_terminal, train_once
from voxstill.core import world
from voxstill.storage.rundir import RunDir

LIMIT_S = 10
TWO_RANKS = ("train.devices=2", "plan.batches_per_step=2")


@contextlib.contextmanager
def started(
    work: Path, run: RunDir, *overrides: str, target: Callable[..., None] = train_once
) -> Iterator[ForkServerProcess]:
    """A training without an end in sight, once it has made some steps; what it says is beside the folder of its run."""
    settings = ["train.steps=100000", "train.checkpoint_every=100000", "train.validate_every=100000", *overrides]
    log = log_of(run)
    with forked(target, str(work), str(run.path), *settings, log=log) as process:
        give_up_at = time.monotonic() + 200
        while not (run.metrics.exists() and run.metrics.read_text().count("\n") > 3):
            assert process.is_alive(), log.read_text()
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        yield process


def log_of(run: RunDir) -> Path:
    return run.path.with_suffix(".log")


def ranks(run: RunDir) -> dict[int, int]:
    return {int(path.stem): json.loads(path.read_text())["pid"] for path in run.ranks.glob("*.json")}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_stopped_rank_is_detected_and_all_ranks_end(work: Path, tmp_path: Path) -> None:
    victim = seeded_random().randrange(2)
    run = RunDir(tmp_path / "run")
    options = (*TWO_RANKS, f"train.step_timeout_s={LIMIT_S}")
    with started(work, run, *options, target=train_in_forks) as process:
        pids = ranks(run)
        assert set(pids) == {0, 1}
        os.kill(pids[victim], signal.SIGSTOP)
        begun = time.monotonic()
        process.join(120)
        took_s = time.monotonic() - begun
        assert process.exitcode not in (None, 0)
    assert took_s < 2 * LIMIT_S + 60  # and what it takes to write two stacks and to end
    assert not any(map(is_alive, pids.values()))
    log = run.log.read_text()
    assert f"stacks of rank {victim}" in log
    assert f"stacks of rank {1 - victim}" in log
    stacks = log.split("stacks of rank ")[1:]  # which thread runs is not said of a process that holds no lock
    assert len([stack for stack in stacks if "most recent call first" in stack]) >= 2
    assert "has made no step" in log, log_of(run).read_text()


def test_a_rank_that_a_library_crashes_leaves_its_stacks_and_ends_the_others(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with started(work, run, *TWO_RANKS, target=train_in_forks) as process:
        pids = ranks(run)
        os.kill(pids[0], signal.SIGSEGV)
        process.join(120)
        assert process.exitcode not in (None, 0)
    assert not any(map(is_alive, pids.values()))
    log = run.log.read_text()
    assert "Segmentation fault" in log
    assert "most recent call first" in log


def test_a_stalled_training_on_one_device_ends_with_its_stack(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    # a worker that never answers, as where a file system has gone; steps are many and slow: it has not given all
    slow = ("student.size=small", "plan.max_utterances=1")
    with started(work, run, "train.loader_workers=1", "train.step_timeout_s=10", *slow) as process:
        (pid,) = ranks(run).values()
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGSTOP)
        process.join(120)
        assert process.exitcode == 6
    assert "stacks of rank 0" in run.log.read_text()


def test_a_training_that_was_stopped_and_continued_goes_on(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with started(work, run, "train.step_timeout_s=6") as process:
        (pid,) = ranks(run).values()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(13)
        before = run.metrics.read_text().count("\n")
        os.kill(pid, signal.SIGCONT)
        give_up_at = time.monotonic() + 120
        while run.metrics.read_text().count("\n") < before + 5:
            assert process.is_alive()
            assert time.monotonic() < give_up_at
            time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_the_step_and_the_same_command_goes_on(work: Path, tmp_path: Path, number: int) -> None:
    run = RunDir(tmp_path / "run")
    with started(work, run) as process:
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join(120)
        assert not process.is_alive()
    state = json.loads((run.last / "state.json").read_text())
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert state["step"] == rows[-1]["step"] == state["rows"] > 3
    assert not run.summary.exists()
    assert not ranks(run)


def test_sigterm_to_the_whole_group_saves_the_step(work: Path, tmp_path: Path) -> None:
    """As `timeout` and systemd send it: to the process, and to its group with the workers of the loader."""
    run = RunDir(tmp_path / "run")
    with started(work, run, "train.loader_workers=1", target=train_in_own_group) as process:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGTERM)
        process.join(60)
        assert process.exitcode == 0, log_of(run).read_text()
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert json.loads((run.last / "state.json").read_text())["step"] == rows[-1]["step"]


def test_a_terminal_that_closes_saves_the_step(work: Path, tmp_path: Path) -> None:
    """Its bar is on that terminal; the workers of the loader get the signal, too, and more than once."""
    run, closes = RunDir(tmp_path / "run"), threading.Event()
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)

    def show() -> None:
        while not closes.wait(0.02):
            with contextlib.suppress(BlockingIOError):
                os.read(ours, 1 << 16)

    screen = threading.Thread(target=show)
    screen.start()
    try:
        with started(work, run, "train.loader_workers=1", os.ttyname(theirs), target=train_on_terminal) as process:
            assert process.pid is not None
            closes.set()
            screen.join()
            os.close(theirs)
            os.close(ours)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGHUP)
            process.join(60)
            assert process.exitcode == 0, run.log.read_text()
    finally:
        closes.set()
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert json.loads((run.last / "state.json").read_text())["step"] == rows[-1]["step"]
    assert "SIGHUP: this step is the last one" in run.log.read_text()


def test_a_training_under_nohup_goes_on_when_the_terminal_closes() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with world.Signals(pytest.fail, hangup=True):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
