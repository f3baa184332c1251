"""Launch a training, new or resumed: in this process, in several, or on Ray."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch

from voxstill.core import heartbeat, run_mark, world
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, Interrupted
from voxstill.core.monitor import describing, log, log_to, start_logging
from voxstill.data.plan import EpochPlan, dropped_in_words
from voxstill.nn import students
from voxstill.storage import workdir
from voxstill.storage.figures import ShardFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training import checkpoint, fits, loop, metrics, owner, parallel, segments, upload
from voxstill.training import state as state_file
from voxstill.training.budget import Budget
from voxstill.training.experiment import (
    finished_summary,
    named,
    note,
    open_run,
    removed_if_refused,
    with_defaults,
    write_whole,
)
from voxstill.training.exports import Exports
from voxstill.training.setup import Build, SettingsOf, TrainingSetup
from voxstill.training.summary import TrainingSummary

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_MANY_DROPPED = 0.1  # of all utterances


def launch(
    cfg: Config,
    shards_of: Callable[[Config], ShardFigures],
    build: Build,
    settings_of: SettingsOf,
    command: str = "train",
    experiment: str | Path | None = None,
) -> TrainingSummary:
    """Train in an experiment folder of its own, from the beginning or from where it was stopped; return its summary.

    `settings_of` says which options change what is learnt: equal ones have the same folder. An `experiment` continues
    with them instead; where it is a checkpoint, its experiment does from there. The finished model is uploaded to
    `train.upload`, of several processes by the first. StorageError if another process trains in the folder; it is
    told that `command` does so here.
    """
    path = None if experiment is None else Path(experiment)
    of_checkpoint = None if path is None else RunDir.of_checkpoint(path)
    start = None if path is None or of_checkpoint is None else path.resolve()
    run = of_checkpoint if path is None or of_checkpoint else RunDir(path)
    summary = _launch(cfg, shards_of, build, settings_of, command, run, start)
    if cfg.train.upload and world.is_first():
        upload.upload(RunDir(Path(summary.path)), cfg.train.upload)
    return summary


def _launch(
    cfg: Config,
    shards_of: Callable[[Config], ShardFigures],
    build: Build,
    settings_of: SettingsOf,
    command: str,
    experiment: RunDir | None,
    start: Path | None,
) -> TrainingSummary:
    ranks = world.ranks()
    cfg = parallel.with_ranks(ranks, cfg) if ranks else cfg
    shards = shards_of(cfg)
    cfg = with_defaults(cfg, shards, settings_of, experiment, is_pretraining=command == "pretrain")
    settings = settings_of(cfg)

    def opened() -> RunDir:
        if experiment is None:
            return _open(cfg, shards, settings, command)
        owner.check_free(experiment, command)
        segments.begin(experiment, cfg, shards, settings, start)
        return experiment

    if ranks:
        return _as_one_of(ranks, cfg, shards, build, opened, command)
    run = opened()
    done = finished_summary(run)
    if done is not None:
        log.info("train: nothing to do, %s is finished", run.path)
        shutil.rmtree(run.corpus, ignore_errors=True)  # of a training that was killed after its last write
        return done
    if cfg.train.launcher == "ray" or cfg.train.devices > 1:
        owner.check_free(run, command)
    with removed_if_refused(run), _marked(run, command):
        _train(cfg, run, shards, build, command)
    return finished_summary(run) or _stopped(run)


def _marked(run: RunDir, command: str) -> AbstractContextManager[None]:
    """Processes that this one starts belong to this experiment."""
    return run_mark.marked(command, str(run.path.absolute()))


def _train(cfg: Config, run: RunDir, shards: ShardFigures, build: Build, command: str) -> None:
    """Train in as many processes as there are devices: this one, or others that it waits for."""
    if cfg.train.launcher == "ray":
        from voxstill.training import cluster  # Ray is not where one machine trains

        run = RunDir(run.path.absolute())
        with _followed(run):
            cluster.train(
                functools.partial(_on_ray, cfg, run, shards, build, Path.cwd(), command), cfg.train.devices, cfg.engine
            )
        return
    fabric = parallel.fabric(cfg.train)
    # bound, not passed: Fabric looks into the arguments of what it launches and refuses frozen dataclasses
    follows = _followed(run) if cfg.train.devices > 1 else metrics.serving(run)
    with parallel.raise_rank_error(run, cfg.train.devices), follows:
        prefix = _prefix(shards)
        fabric.launch(functools.partial(train_rank, cfg=cfg, run=run, prefix=prefix, build=build, command=command))


@contextlib.contextmanager
def _followed(run: RunDir) -> Iterator[None]:
    """Around ranks that are processes of their own: their metrics are served here, and this process says nothing while
    they make steps."""
    with metrics.serving(run) as served, contextlib.ExitStack() as stack:
        if served is not None:
            stack.enter_context(describing(served.status))
        yield


def _open(cfg: Config, shards: ShardFigures, settings: Mapping[str, object], command: str) -> RunDir:
    """The experiment folder of these settings; where it is new, an unfinished one of the same name is logged."""
    others = {run.path: run for run in named(cfg)}
    run = open_run(cfg, shards, settings, command)
    if run.path not in others:
        segments.tell_unfinished(others.values(), cfg)
    return run


def _as_one_of(
    ranks: world.Ranks,
    cfg: Config,
    shards: ShardFigures,
    build: Build,
    opened: Callable[[], RunDir],
    command: str,
) -> TrainingSummary:
    """This process as one of those that torchrun, srun or Ray has started; rank 0 opens the folder for all."""
    fabric = parallel.fabric(cfg.train, ranks)
    fabric.launch()
    run = RunDir(parallel.broadcast_from_rank0(fabric, lambda: opened().path))
    _must_see(run)
    if parallel.broadcast_from_rank0(fabric, lambda: finished_summary(run)) is None:
        refusal = removed_if_refused(run) if fabric.global_rank == 0 else contextlib.nullcontext()
        with refusal, _marked(run, command), metrics.serving(run):
            _train_rank(fabric, cfg, run, _prefix(shards), build, command)
    summary = parallel.broadcast_from_rank0(fabric, lambda: finished_summary(run) or _stopped(run))
    torch.distributed.destroy_process_group()  # else its threads run while the process exits, which may abort
    return summary


def _on_ray(cfg: Config, run: RunDir, shards: ShardFigures, build: Build, where: Path, command: str) -> None:
    """This worker of Ray as a rank of the training; it was started `where`, and relative paths are meant from there."""
    _must_see(run)
    if where.is_dir():
        os.chdir(where)
    ranks = world.ranks()
    fabric = parallel.fabric(cfg.train.model_copy(update={"devices": ranks.num_local if ranks else 1}), ranks)
    fabric.launch()
    _train_rank(fabric, cfg, run, _prefix(shards), build, command)


def _prefix(shards: ShardFigures) -> str:
    return workdir.prefix(shards.kind, shards.recipe)


def _must_see(run: RunDir) -> None:
    if not run.path.is_dir():
        raise ConfigError(
            f"`{run.path}` does not exist on {platform.node()}",
            code="folder-not-shared",
            why="all machines of a training write into one experiment folder",
            fix="set `train.root` to a folder on storage that all of them share; the same is needed for `work`",
        )


def _stopped(run: RunDir) -> NoReturn:
    if not run.last.exists():
        raise Interrupted(
            "training was stopped before its first checkpoint",
            why="it received a signal",
            fix="the same command starts at step 0; a smaller `train.checkpoint_every` loses less",
        )
    raise Interrupted(
        f"training was stopped at step {state_file.read(run.last.resolve()).state.step:,}",
        why="it received a signal; the checkpoint of that step is written",
        fix="the same command resumes from there",
    )


def train_rank(fabric: Fabric, cfg: Config, run: RunDir, prefix: str, build: Build, command: str = "train") -> None:
    """Run one process of the training; rank 0 writes the model and the summary, but not where a signal has stopped it.

    Nothing is returned: Fabric looks into what its processes return, and refuses frozen dataclasses.
    """
    with parallel.record_rank_error(run, fabric):
        _train_rank(fabric, cfg, run, prefix, build, command)


def _train_rank(fabric: Fabric, cfg: Config, run: RunDir, prefix: str, build: Build, command: str) -> None:
    is_first, is_own_process = fabric.global_rank == 0, not log.handlers
    if is_own_process or not is_first:  # one of them logs for all
        start_logging("info" if is_first else "warning", cfg.monitor.log_format)
    world.pin_threads(cfg.train.threads)
    world.reuse_freed_memory()
    torch.set_num_threads(cfg.train.threads)
    torch.use_deterministic_algorithms(cfg.train.seed_mode == "debug", warn_only=True)
    with contextlib.ExitStack() as stack:
        if is_own_process and is_first:
            stack.enter_context(heartbeat.running(command))
        check_owned = stack.enter_context(owner.owned(fabric, run, command))
        _train_owned(fabric, cfg, run, prefix, build, check_owned, command)


def _train_owned(
    fabric: Fabric,
    cfg: Config,
    run: RunDir,
    prefix: str,
    build: Build,
    check_owned: Callable[[], None],
    command: str,
) -> None:
    first = fabric.global_rank == 0
    handler = log_to(run.log) if first else None
    try:
        setup = build(fabric, cfg, run, Store(cfg.work), prefix)
        model, data = setup.model, setup.data
        plan = data.plan(0, ascending=True)
        precision, because = parallel.precision(cfg.train)
        log.info(
            "train: %s of %.2f million parameters; precision %s, because %s; the loss is normalised by %s",
            setup.about,
            students.num_parameters(model) / 1e6,
            precision,
            because,
            setup.task.unit,
        )
        _log_dropped(plan)
        fits.refuse_what_cannot_fit(setup, cfg, fabric.device, fabric.world_size)
        if first:
            note(run, plan_hash=plan.sha256(), precision=precision, **setup.notes)
        budget = Budget.of(cfg.train, plan.steps)
        with Exports(run, cfg.train, setup.save, cfg.student.checkpoint) as exports:
            state = loop.train(
                fabric, model, setup.task, data, cfg, run, budget, setup.frozen, check_owned, exports, command
            )
        if state is None:
            return
        data.finish()
        weights = checkpoint.whole_weights(model)
        if first:
            check_owned()
            setup.save(run, weights)
            write_whole(run.summary, _summary(run, setup, state, plan).to_dict())
            shutil.rmtree(run.corpus, ignore_errors=True)
    finally:
        if handler is not None:
            log.removeHandler(handler)
            handler.close()


def _summary(run: RunDir, setup: TrainingSetup, state: state_file.State, plan: EpochPlan) -> TrainingSummary:
    return TrainingSummary(
        path=str(run.path),
        steps=state.step,
        epochs=state.epoch,
        seconds=state.seconds,
        loss=state.loss,
        loss_unit=setup.task.unit,
        dev_metric=setup.error,
        dev_error=state.error,
        parameters=students.num_parameters(setup.model),
        skipped=state.skipped,
        replaced=state.replaced,
        utterances=len(plan.order),
        dropped=dict(plan.dropped),
        segments=segments.of(run) or None,
    )


def _log_dropped(plan: EpochPlan) -> None:
    """Count what is in no batch; a warning where it is much: it is easily missed in a summary."""
    num, num_all = sum(plan.dropped.values()), len(plan.durations_ms)
    if num:
        level = logging.WARNING if num > _MANY_DROPPED * num_all else logging.INFO
        reasons = dropped_in_words(plan.dropped)
        log.log(level, "train: %s of %s utterances are in no batch: %s", f"{num:,}", f"{num_all:,}", reasons)
