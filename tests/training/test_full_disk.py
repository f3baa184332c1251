"""A disk that is full: what only watches the training is told once and counted, what is learnt is an error."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tones import TEXTS, batch_of, context_of
from training.train_once import train_once
from voxstill.core.errors import StorageError, TrainingError
from voxstill.core.monitor import JsonLines, log, log_to
from voxstill.storage.rundir import RunDir
from voxstill.text import tokenizer
from voxstill.training.guard import Guard
from voxstill.training.meter import Meter
from voxstill.training.profiler import WARM_UP_STEPS, StepProfiler
from voxstill.training.state import State

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


@contextlib.contextmanager
def full_beyond(num_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(meter: Meter, state: State, steps: int) -> None:
    for _ in range(steps):
        state.step += 1
        meter.count([], 1.0, {})
        meter.write(state, 0.5, 1e-3, 0.1, {})


def steps_in(run: RunDir) -> list[int]:
    return [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()]


def messages(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_a_line_that_does_not_fit_is_absent_and_later_ones_are_whole(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "lines")
    with full_beyond(100):
        for number in range(9):
            with contextlib.suppress(OSError):
                lines.write({"number": number, "text": "x" * 10})
    lines.write({"number": 9})
    numbers = [json.loads(line)["number"] for line in (tmp_path / "lines").read_text().splitlines()]
    assert numbers == [0, 1, 9]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
def test_metrics_that_cannot_be_written_are_told_once_and_go_on_with_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, state = RunDir(tmp_path), State()
    meter = Meter(run, writes=True, state=state, ranks=1)
    write(meter, state, 2)
    with full_beyond(run.metrics.stat().st_size + 10):
        write(meter, state, 5)
    assert steps_in(run) == [1, 2]
    write(meter, state, 3)
    meter.close()
    assert steps_in(run) == [1, 2, 8, 9, 10]
    assert state.rows == 5  # what a resumed training keeps
    assert len(messages(caplog, "cannot be written")) == 1
    # a sixth, where the thread of TensorBoard wrote late: then a line of it is missing there
    assert messages(caplog, "5 lines of the metrics") or messages(caplog, "6 lines of the metrics")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
def test_tensorboard_that_cannot_be_written_is_opened_again(tmp_path: Path) -> None:
    run, state = RunDir(tmp_path), State()
    meter = Meter(run, writes=True, state=state, ranks=1)
    write(meter, state, 1)
    assert meter._board is not None
    meter._board.flush()  # else its thread makes the file again while it is deleted
    shutil.rmtree(run.tensorboard)
    run.tensorboard.write_text("no folder")
    with contextlib.suppress(OSError):
        meter._board.flush()
    write(meter, state, 2)
    run.tensorboard.unlink()
    write(meter, state, 2)
    meter.close()
    assert steps_in(run) == [1, 2, 3, 4, 5]
    board = EventAccumulator(str(run.tensorboard)).Reload()
    assert [event.step for event in board.Scalars("train/loss")][-1] == 5


def test_a_log_on_a_full_disk_is_told_once_and_closed_in_peace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    path.symlink_to("/dev/full")
    handler = log_to(path)
    try:
        for number in range(5):
            log.warning("message %d", number)
    finally:
        log.removeHandler(handler)
        handler.close()
    assert len(messages(caplog, "cannot be written: No space left")) == 1
    assert "Traceback" not in capfd.readouterr().err


def test_a_training_goes_on_without_metrics_and_log(
    work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path / "exp")
    run.path.mkdir()
    for path in (run.metrics, run.log):
        path.symlink_to("/dev/full")
    train_once(str(work), str(run.path), "train.steps=4")
    assert run.summary.exists()
    told = capfd.readouterr().err
    assert told.count("the metrics cannot be written: No space left") == 1
    assert told.count("train.log` cannot be written: No space left") == 1
    assert "6 lines of the metrics were not written" in told


def test_skipped_steps_that_cannot_be_saved_are_told_once_and_counted_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard(RunDir(tmp_path), 0, lambda _: "lower the rate")
    batch = batch_of(tokenizer.train(TEXTS, "word", 9))

    def passes(step: int) -> bool:
        return guard.passes(math.nan, 1.0, step, [batch], context_of(batch))

    with full_beyond(1000):
        assert not any(passes(step) for step in range(9))
        with pytest.raises(TrainingError, match="10 steps in a row") as caught:
            passes(9)
    assert caught.value.fix == "lower the rate"  # there is no file to replay
    assert len(messages(caplog, "a skipped step cannot be saved: ")) == 1
    assert len(messages(caplog, "its batches are not saved")) == 10
    assert not list(RunDir(tmp_path).skipped.iterdir())
    assert guard.passes(1.0, 1.0, 10, [batch], context_of(batch))
    assert not passes(11)  # the disk has space again
    assert [path.name for path in RunDir(tmp_path).skipped.iterdir()] == ["step=11-rank=0.safetensors"]


@pytest.mark.parametrize("num_bytes", [0, 1000, 10_000])
def test_a_trace_that_cannot_be_written_is_told_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_bytes: int
) -> None:
    run = RunDir(tmp_path)
    with StepProfiler(run, 1, 0) as profiler:
        for step in range(WARM_UP_STEPS + 1):
            profiler.before_step(step)
        for _ in range(20):
            torch.ones(4, 4) @ torch.ones(4, 4)
        with full_beyond(num_bytes):
            profiler.end()
    assert len(messages(caplog, "steps=11-11.json` cannot be written: ")) == 1
    assert not list(run.profile.iterdir())


def test_a_checkpoint_that_cannot_be_written_ends_the_training(work: Path, tmp_path: Path) -> None:
    with full_beyond(1 << 17), pytest.raises(StorageError, match="checkpoint"):
        train_once(str(work), str(tmp_path / "exp"), "train.steps=4")
    assert not RunDir(tmp_path / "exp").last.exists()
