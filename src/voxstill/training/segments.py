"""A training that continues with other options: each change begins a segment, which `environment.json` notes.

A command changes them when it continues with the experiment, or a request while it trains. `config.yaml` is what the
last command said, and `config.segment=N.yaml` what those before it did: a request is noted as a segment alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic

from voxstill.core import config
from voxstill.core.config import Config, differences
from voxstill.core.errors import ConfigError, TrainingError
from voxstill.core.monitor import log
from voxstill.storage.control import REQUEST
from voxstill.storage.rundir import RunDir
from voxstill.training import checkpoint, experiment
from voxstill.training import state as state_file
from voxstill.training.budget import Budget
from voxstill.training.control import with_segment
from voxstill.training.summary import Segment

if TYPE_CHECKING:
    from voxstill.storage.figures import ShardFigures


_ORDER = ("plan.", "augment.")
"""Options that may make other batches of an epoch: the one that was started is then not gone on with."""
_NO_EPOCH_ENDS = 1 << 62
_SEGMENTS = pydantic.TypeAdapter(list[Segment])


def changes(run: RunDir, cfg: Config) -> dict[str, tuple[object, object]]:
    """The options of a configuration that differ from what the last command said, as they were and as they are."""
    return _differences(run, config.load_snapshot(str(run.config)), cfg)


def _differences(run: RunDir, before: Config, cfg: Config) -> dict[str, tuple[object, object]]:
    names = ("student", "plan", "augment", "train", *(["pretrain"] if experiment.is_pretraining(run) else []))
    changed: dict[str, tuple[object, object]] = {}
    if before.seed != cfg.seed:
        changed["seed"] = (before.seed, cfg.seed)
    for name in names:
        changed |= differences(getattr(before, name), getattr(cfg, name), f"{name}.")
    return {name: pair for name, pair in changed.items() if name != "train.name"}


def describe(changed: Mapping[str, tuple[object, object]]) -> str:
    """Changed options in words."""
    return ", ".join(f"`{name}` {before} -> {after}" for name, (before, after) in changed.items())


def begin(
    run: RunDir, cfg: Config, shards: ShardFigures, settings: Mapping[str, object], start: Path | None = None
) -> None:
    """Let the experiment continue with this configuration, from its last checkpoint, also where it was finished.

    From `start`, another of its checkpoints, where that is named: later ones are set aside. The same once more changes
    nothing, and continues from the last. ConfigError if there is nothing to continue from or nothing left to do, and
    where the student, the seed or the shards are others. The caller owns the experiment.
    """
    if not run.config.is_file():
        raise ConfigError(
            f"`{run.path}` is not an experiment",
            code="no-experiment",
            why="there is no config.yaml in it",
            fix="give a folder below `train.root`",
        )
    if not experiment.is_trained_on(run, cfg, shards):
        raise ConfigError(
            f"`{run.path}` was trained on other shards",
            code="cannot-continue",
            why="its steps so far are of another corpus",
            fix="leave out `--continue`: a new experiment starts, with this one's `model/` as `student.checkpoint`",
        )
    command = "pretrain" if experiment.is_pretraining(run) else "train"
    if (command == "pretrain") != ("pretrain" in settings):
        raise ConfigError(
            f"`{run.path}` cannot continue here",
            code="cannot-continue",
            why=f"`voxstill {command}` started it",
            fix=f"run: voxstill {command} CONFIG --continue {run.path}",
        )
    changed = changes(run, cfg)
    if not changed:
        return
    fixed = _fixed(changed)
    if fixed:
        raise ConfigError(
            f"`{run.path}` cannot continue with another `{fixed[0]}`",
            code="cannot-continue",
            why=f"it is {changed[fixed[0]][0]} there, and {changed[fixed[0]][1]} here",
            fix="leave out `--continue`: a new experiment starts",
        )
    state = _state(run, start)
    changed = _differences(run, _at(run, state.step), cfg)
    if Budget.of(cfg.train, _NO_EPOCH_ENDS).progress(state.step, state.seconds) >= 1:
        raise ConfigError(
            f"`{run.path}` has nothing left to do",
            code="training-over",
            why=f"it has made {state.step:,} steps in {state.seconds / 60:.0f} minutes",
            fix="raise `train.steps`, `train.epochs` or `train.max_minutes`",
        )
    if start is not None:
        checkpoint.go_back(run, start, cfg.train)
    _note(run, cfg, experiment.recipe_of(run, settings), state.step, changed)
    if (request := run.path / REQUEST).exists():
        request.unlink()
        log.info("train: the earlier requests of `voxstill control` are withdrawn")
    log.info("train: `%s` continues at step %d with %s", run.path, state.step, describe(changed))


def note_request(run: RunDir, segment: Segment) -> None:
    """Note a change by request; those that were taken after later steps, which are made again, are no longer noted."""
    segments = of(run)
    while segments and segments[-1].requested_at is not None and segments[-1].step > segment.step:
        segments.pop()
    _write(run, [*segments, segment])


def requested(run: RunDir) -> list[Segment]:
    """The changes by request since the last command with other options, in their order."""
    since = itertools.takewhile(lambda segment: segment.requested_at is not None, reversed(of(run)))
    return list(since)[::-1]


def begun_since(run: RunDir, step: int) -> list[Segment]:
    """The segments that a command started since the checkpoint of a step was written: it is of the segment before."""
    since = itertools.takewhile(lambda segment: segment.step >= step, reversed(of(run)))
    return [segment for segment in since if segment.requested_at is None][::-1]


def change_batches(begun: Iterable[Segment]) -> bool:
    """Whether segments may have other batches than the epoch that was started before them."""
    return any(name.startswith(_ORDER) for segment in begun for name in segment.changed)


def of(run: RunDir) -> list[Segment]:
    """The segments after the first, as `environment.json` notes them; TrainingError if those are none."""
    try:
        return _SEGMENTS.validate_python(experiment.noted(run).get("segments", []))
    except pydantic.ValidationError as error:
        raise TrainingError(
            f"`{run.environment}` is broken",
            code="checkpoint-broken",
            why=f"`segments`: {error.errors()[0]['msg']}",
            fix="restore it from a copy; without it the options that the training continued with are unknown",
        ) from None


def tell_unfinished(runs: Iterable[RunDir], cfg: Config) -> None:
    """Warn of the newest unfinished experiment that this configuration could continue with, where a new one begins."""
    for run in runs:
        if experiment.finished_summary(run) is not None or not run.last.exists():
            continue
        try:
            changed = changes(run, cfg)
        except ConfigError:  # of another version, or broken
            continue
        if changed and not _fixed(changed):
            log.warning(
                "train: a new experiment starts at step 0; `%s` is not finished and differs in "
                "%s: `--continue %s` continues it",
                run.path,
                describe(changed),
                run.path,
            )
            return


def _at(run: RunDir, step: int) -> Config:
    """The configuration by which an experiment worked after so many steps."""
    cfg = config.load_snapshot(str(run.config))
    for segment in requested(run):
        if segment.step <= step:
            cfg = with_segment(cfg, segment)
    return cfg


def _fixed(changed: Iterable[str]) -> list[str]:
    """Those of the changed options that no training can continue with."""
    return [name for name in changed if name == "seed" or name.startswith(("student.", "pretrain."))]


def _state(run: RunDir, start: Path | None) -> state_file.State:
    if start is not None:
        if faults := state_file.faults(start):
            raise TrainingError(
                f"the checkpoint `{start}` is broken",
                code="checkpoint-broken",
                why="; ".join(f"`{name}`: {reason}" for name, reason in faults.items()),
                fix="give another one, or the experiment to continue from the newest complete one",
            )
        return state_file.read(start).state
    newest = checkpoint.newest(run)
    if newest is None:
        raise ConfigError(
            f"`{run.path}` has no checkpoint to continue from",
            code="cannot-continue",
            why="it was stopped before its first",
            fix="leave out `--continue`: a new experiment starts",
        )
    return state_file.read(newest).state


def _note(run: RunDir, cfg: Config, recipe: str, step: int, changed: Mapping[str, tuple[object, object]]) -> None:
    """Note the segment, then write its configuration: after a kill in between, the same once more completes it."""
    segments = of(run)
    if not segments or not _is_noted(segments[-1], step, changed):
        segments.append(Segment(step, changed))
    number = sum(segment.requested_at is None for segment in segments) - 1
    with contextlib.suppress(FileNotFoundError):  # else it would be finished already
        os.replace(run.summary, run.summary.with_name(f"summary.segment={number}.json"))
    before = run.config.with_name(f"config.segment={number}.yaml")
    if not before.exists():
        experiment.write_snapshot(before, config.load_snapshot(str(run.config)))
    _write(run, segments, recipe=recipe)
    experiment.write_snapshot(run.config, cfg)


def _is_noted(segment: Segment, step: int, changed: Mapping[str, tuple[object, object]]) -> bool:
    """Whether a segment is this one; what was requested before it is no longer known when it is started once more."""
    after = {name: pair[1] for name, pair in segment.changed.items()}
    is_equal = all(name in after and after[name] == value for name, (_, value) in changed.items())
    return segment.requested_at is None and segment.step == step and is_equal


def _write(run: RunDir, segments: list[Segment], **facts: object) -> None:
    noted = _SEGMENTS.dump_python(segments, mode="json", exclude_none=True)
    experiment.note(run, **facts, segments=noted)
