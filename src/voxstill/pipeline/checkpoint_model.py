"""Checkpoints of an experiment as models: `EXP/checkpoints/best` is judged and used like a finished student."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from voxstill.core import config, scratch, world
from voxstill.core.errors import ConfigError, DataError
from voxstill.storage.rundir import RunDir
from voxstill.tasks import registry
from voxstill.tasks.definition import SavedTask

if TYPE_CHECKING:
    from torch import Tensor

_ATTEMPTS = 3
"""A running training removes old checkpoints: `last` is then followed to its new one."""


@contextmanager
def model_of(target: str) -> Iterator[tuple[str, str | None]]:
    """The folder of a model to load, and the name of the checkpoint that it was made of.

    A checkpoint becomes a model folder for as long as the block lasts; any other target is itself, and of none.
    DataError if the checkpoint is broken or gone, ConfigError if the task makes no model of one.
    """
    run = RunDir.of_checkpoint(Path(target))
    if run is None:
        yield target, None
        return
    with scratch.folder() as folder:
        output = RunDir(folder)
        with world.collection_paused():
            name = _make(target, run, output)
        yield str(output.model), name


def _make(target: str, run: RunDir, output: RunDir) -> str:
    """Make a model folder of a checkpoint of an experiment; return the checkpoint's name."""
    from voxstill.training.experiment import is_pretraining

    if is_pretraining(run):
        raise ConfigError(
            f"`{target}` is a pre-trained model",
            code="wrong-model",
            why="it outputs neither text nor classes",
            fix="train a student with `student.checkpoint`, and evaluate that",
        )
    cfg = config.load_snapshot(str(run.config))
    task = registry.find(cfg.student.task)
    if not isinstance(task, SavedTask):
        raise ConfigError(
            f"`{target}` cannot be used before the training ends",
            code="plugin-broken",
            why=f"the task `{cfg.student.task}` has no method `save`",
            fix="wait for `model/`, or add the method of `voxstill.tasks.definition.SavedTask`",
        )
    name, weights = _weights(Path(target))
    task.save(cfg, run, weights, output)
    return name


def _weights(path: Path) -> tuple[str, dict[str, Tensor]]:
    """The name of a checkpoint, and its weights."""
    from safetensors.torch import load_file

    from voxstill.training import state as state_file

    reason = "there is none"
    for _ in range(_ATTEMPTS):
        try:
            folder = path.resolve()
            if faults := state_file.faults(folder):
                reason = ", ".join(f"`{name}`: {fault}" for name, fault in faults.items())
                continue
            return folder.name, load_file(folder / "model.safetensors")
        except (FileNotFoundError, RuntimeError) as error:  # also of a link to itself
            reason = str(error)
    raise DataError(
        f"`{path}` is not a complete checkpoint",
        code="checkpoint-broken",
        why=reason,
        fix="give another one, `checkpoints/last` for example",
    )
