"""control: change the options of a training while it runs, and show what it says of the request."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from voxstill.core import config, process
from voxstill.core.errors import ConfigError, DataError, StorageError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.storage import lease
from voxstill.storage.control import STATUS, Options, Request, merge, one_at_a_time, read, request, requested, standing
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training.control import NAME, TrainingStatus, apply, checked, parse_overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingControlResult(Result):
    """What is asked of a training, since when, and what it said last."""

    asked: Options
    at: str | None
    stop_after_epoch: bool | None = None
    """Whether it is asked to end with its epoch."""
    jobs: Sequence[TrainingStatus]
    """The status of the training; none where it never started."""

    def to_text(self) -> str:
        """What stands and what came of it."""
        asked = [f"  {section}.{name} = {json.dumps(value)}" for section, name, value in _rows(self.asked)]
        asked += ["  stop after the epoch"] if self.stop_after_epoch else []
        nothing = "nothing is requested: the training runs as it was started"
        lines = [f"requested at {self.at}:", *asked] if asked else [nothing]
        for job in self.jobs:
            state = "running" if job.running else "ended"
            lines += ["", f"training: {state}, process {job.pid} on {job.host}, last seen {job.at}"]
            lines += [f"  train: {json.dumps(job.train)}", f"  log level: {job.log_level}"]
            if job.refused:
                lines.append(f"  refused the request of {job.asked_at}: {job.refused}; a new request replaces it")
            elif self.at is not None and job.asked_at == self.at:
                lines.append(f"  follows the request, since step {job.since}")
            elif self.at is not None:
                lines.append(f"  has not read the request{' yet' if job.running else ''}")
        return "\n".join(lines)


def is_experiment(path: str) -> bool:
    """Whether a path is the folder of an experiment."""
    return RunDir(Path(path)).config.is_file()


def control_training(
    experiment: str | Path, overrides: Sequence[str], *, clear: bool, stop_after_epoch: bool
) -> TrainingControlResult:
    """What stands after adding the overrides, all of them or none, and what the training said last.

    ConfigError if it would not take them or is over, DataError if there is no experiment.
    """
    run = RunDir(Path(experiment))
    if not run.config.is_file():
        raise DataError(
            f"`{run.path}` is not an experiment",
            code="no-experiment",
            why="there is no config.yaml in it",
            fix="give a folder below `train.root`, or a work folder for its labelling jobs",
        )
    folder = Store(str(run.path.absolute()))
    if overrides or clear or stop_after_epoch:
        asked = _add(run, folder, overrides, clear=clear, stop_after_epoch=stop_after_epoch)
    else:
        asked = requested(folder)
    return TrainingControlResult(
        asked=asked.set, at=asked.at, stop_after_epoch=asked.stop_after_epoch, jobs=_statuses(folder)
    )


def _add(run: RunDir, folder: Store, overrides: Sequence[str], *, clear: bool, stop_after_epoch: bool) -> Request:
    """Write a request that adds overrides to what stands, or replaces it."""
    if run.summary.is_file():
        raise ConfigError(
            f"`{run.path}` is finished",
            code="training-over",
            why="requests are only read while a training runs",
            fix=f"continue it: voxstill train CONFIG --continue {run.path} --set train.steps=...",
        )
    new = parse_overrides(overrides)
    with one_at_a_time(folder):
        before = Request() if clear else standing(folder, _statuses(folder))
        wanted = merge(checked(before.set), new)
        apply(wanted, config.load_snapshot(str(run.config)))
        return request(folder, wanted, before, stop_after_epoch=stop_after_epoch or bool(before.stop_after_epoch))


def _statuses(folder: Store) -> list[TrainingStatus]:
    """The last status of a training; what is none is named and left out."""
    try:
        content = read(folder, f"{STATUS}/{NAME}.json")
        status = TrainingStatus.from_dict(content) if content else None
    except DataError as error:
        log.warning("control: %s (%s)", error.what, error.why)
        return []
    if status is None:
        return []
    return [replace(status, running=status.running and not _was_killed(folder, status))]


def _was_killed(folder: Store, status: TrainingStatus) -> bool:
    """Whether the process of a training is gone; one of another machine shows that by its lease of the folder."""
    if status.host == socket.gethostname():
        return process.started(status.pid) != status.started
    try:
        return not lease.seems_held(folder, NAME, status.pid)
    except StorageError as error:
        log.warning("control: %s (%s)", error.what, error.why)
        return False


def _rows(options: Options) -> list[tuple[str, str, object]]:
    return [(section, name, value) for section, values in options.items() for name, value in values.items()]
