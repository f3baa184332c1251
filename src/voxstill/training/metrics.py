"""The metrics of a training, from the small files in which its ranks report their state."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterator, Mapping

from voxstill.core import monitor, world
from voxstill.core.background import repeating
from voxstill.core.heartbeat import SILENCE_S
from voxstill.core.metrics import kubeflow
from voxstill.core.metrics.process import METRICS, Disk
from voxstill.core.metrics.registry import Sample, counters, gauges
from voxstill.storage.rundir import RunDir
from voxstill.training.watchdog import RankState, read_states

READ_S = 1.0
"""The files are read this often, so that the last figures are known when they are gone."""
_CLOCK_STEP_S = 60.0
"""A clock was set where it has gone on by so much more or less than the time between two beats."""
_RUN = gauges(
    ["experiment"],
    {
        "train_running": "1 while the training runs, 0 after it.",
        "train_loss": "Loss of the last step, over all ranks; NaN if it was not finite.",
        "train_grad_norm": "Norm of the gradients of the last step, before it is clipped.",
        "train_learning_rate": "Learning rate.",
        "train_epoch": "Epoch.",
        "train_progress_ratio": "Share of the training that is done, 0 to 1.",
        "train_time_left_seconds": "Time to the end at the rate so far.",
    },
) | counters(
    ["experiment"],
    {
        "train_skipped_steps": "Steps that were skipped: their loss or gradient was not finite.",
        "train_replaced_utterances": "Utterances that could not be read and were replaced.",
    },
)
_RANK = gauges(
    ["experiment", "rank"], {"train_last_step_timestamp_seconds": "Time of the last heartbeat of the rank."}
) | counters(
    ["experiment", "rank"],
    {
        "train_steps": "Steps started, including those before a resumption.",
        "train_audio_seconds": "Audio that the rank has trained on.",
        "train_data_wait_seconds": "Time that the rank has waited for data.",
        "train_own_seconds": "Time that the rank has spent on data and forward passes, without waiting for other "
        "ranks.",
    },
)


class TrainingMetrics:
    """The ranks of one training; a `with` block while it runs, after which its last figures stay.

    `host` leaves out the ranks of other machines.
    """

    def __init__(self, run: RunDir, host: str | None = None) -> None:
        self._run, self._host = run, host
        self._states: Mapping[int, RankState] = {}
        self._before: Mapping[int, tuple[object, ...]] = {}  # beats of earlier processes, until a rank gives another
        self._first: RankState | None = None
        self._clock_s = 0.0
        """How far the clock of the first rank was ahead of `time.monotonic` at its last beat."""
        self._beat_at = 0.0
        self._is_running = False
        self._start = time.time()
        self._reading = repeating("training metrics", READ_S, self._read)

    def __enter__(self) -> TrainingMetrics:
        self._is_running = True
        self._before = {rank: _beat(state) for rank, state in read_states(self._run).items()}
        METRICS.add(f"training {self._run.path.name}", self)
        METRICS.add("disk of the experiment", Disk("experiment", str(self._run.path)))
        self._reading.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._reading.__exit__(None, None, None)
        self._is_running = False

    def status(self) -> str | None:
        """What to log if the log is silent: nothing while the ranks make steps, as one of them logs that itself."""
        newest = max(self._states.values(), key=lambda state: state.at, default=None)
        silent_s = time.time() - (newest.at if newest else self._start)
        if silent_s < SILENCE_S:
            return None
        last = f"the last step is {newest.step:,}" if newest else "no rank has started"
        return f"train: {last}; nothing new for {monitor.clock(silent_s)}"

    def samples(self) -> Iterator[Sample]:
        """The metrics of the training; those of all ranks are the same in each, and taken from the first."""
        experiment = self._run.path.name
        yield _RUN["train_running"].sample(self._is_running, experiment)
        for rank, state in self._states.items():
            labels = experiment, str(rank)
            yield _RANK["train_steps"].sample(state.step, *labels)
            yield _RANK["train_audio_seconds"].sample(state.audio_s, *labels)
            yield _RANK["train_data_wait_seconds"].sample(state.data_wait_s, *labels)
            yield _RANK["train_own_seconds"].sample(state.own_s, *labels)
            yield _RANK["train_last_step_timestamp_seconds"].sample(state.at, *labels)
        if not self._states:
            return
        first = next(iter(self._states.values()))
        for name, value in self._of_run(first).items():
            if value is not None:
                yield _RUN[f"train_{name}"].sample(value, experiment)

    def kubeflow_status(self) -> kubeflow.Status:
        """The training as Kubeflow Trainer asks for it."""
        first = next(iter(self._states.values()), None)
        if first is None:
            return kubeflow.Status()
        figures = {"loss": first.loss, "learning_rate": first.lr, "grad_norm": first.grad_norm, "step": first.step}
        return kubeflow.Status(
            progress=self._progress(first),
            time_left_s=self._time_left_s(first),
            figures={name: value for name, value in figures.items() if value is not None and math.isfinite(value)},
        )

    def _of_run(self, first: RankState) -> dict[str, float | None]:
        return {
            "loss": first.loss,
            "grad_norm": first.grad_norm,
            "learning_rate": first.lr,
            "epoch": first.epoch,
            "skipped_steps": first.skipped,
            "replaced_utterances": first.replaced,
            "progress_ratio": self._progress(first),
            "time_left_seconds": self._time_left_s(first),
        }

    def _progress(self, first: RankState) -> float:
        is_finished = not self._is_running and self._run.summary.exists()
        return 1.0 if is_finished else min(first.progress, 1.0)

    def _time_left_s(self, state: RankState) -> float | None:
        """Seconds to the end at the rate since the first step that was seen; None before there is a rate.

        Where the clock was set meanwhile, the rate is that of the steps since then.
        """
        if not self._is_running:
            return 0.0
        before = self._first
        if before is None or state.progress <= before.progress:
            return None
        return (1 - min(state.progress, 1.0)) * (state.at - before.at) / (state.progress - before.progress)

    def _read(self) -> None:
        states = read_states(self._run)
        own = {
            rank: state
            for rank, state in states.items()
            if self._host in (None, state.host) and (_beat(state) != self._before.get(rank) or state.is_alive_here())
        }
        for rank, state in self._states.items():  # a rank that has ended is known by its last state
            own.setdefault(rank, state)
        self._states = dict(sorted(own.items()))
        first = next((state for state in own.values() if state.loss is not None), None)
        if first is not None and first.at != self._beat_at:  # between two beats its clock is not known
            self._beat_at = first.at
            before_s, self._clock_s = self._clock_s, first.at - time.monotonic()
            if self._first is None or abs(self._clock_s - before_s) > _CLOCK_STEP_S:
                self._first = first


def _beat(state: RankState) -> tuple[object, ...]:
    """Which heartbeat of which process it is; figures such as the loss may be NaN, which equals nothing."""
    return state.host, state.pid, state.born, state.at


@contextlib.contextmanager
def serving(run: RunDir) -> Iterator[TrainingMetrics | None]:
    """Within this block the metrics of a training are exported by the process that serves for its machine.

    A launcher serves all ranks that it starts, and of those that torchrun, srun or Ray starts the first of each machine
    serves those of its machine; for the others it is None. Kubeflow Trainer, where it asks, is told by the first alone.
    """
    ranks = world.ranks()
    if ranks is not None and ranks.rank % ranks.num_local:
        yield None
        return
    with contextlib.ExitStack() as stack:
        metrics = stack.enter_context(TrainingMetrics(run, None if ranks is None else socket.gethostname()))
        if world.is_first():
            stack.enter_context(kubeflow.reporting(metrics.kubeflow_status))
        yield metrics
