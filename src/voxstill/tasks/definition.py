"""What a task offers beside the training loop: all that train, evaluate and doctor need to know of it.

A task is one object with these methods: in a file of `definitions/`, or in another package and named by an entry point
in the group `voxstill.tasks`. The name of the file or of the entry point is what `student.task` says. It must be
importable by name, since ranks are processes of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # types alone: `voxstill explain` lists the tasks without torch
    from collections.abc import Sequence

    from lightning_fabric import Fabric
    from torch import Tensor

    from voxstill.core.config import Config
    from voxstill.core.records import Utterance
    from voxstill.evaluation.results import Evaluation
    from voxstill.nn.frontends import Frontend
    from voxstill.storage.rundir import RunDir
    from voxstill.storage.store import Store
    from voxstill.training.data_source import Data
    from voxstill.training.setup import TrainingSetup
    from voxstill.training.task import Task


class TaskDefinition(Protocol):
    """A task, from its data to its figures."""

    def needs_labels(self, cfg: Config) -> bool:
        """Return whether it learns from labelled shards; else it takes those that are there, or new ones without."""
        ...

    def build(self, fabric: Fabric, cfg: Config, run: RunDir, store: Store, prefix: str) -> TrainingSetup:
        """Build model, task and data on one rank, from the shards below `prefix` of the work folder."""
        ...

    def rebuild(self, cfg: Config, run: RunDir) -> tuple[Frontend, Any, Task]:
        """Build the frontend, the model before its first step and the task of an experiment, for `voxstill doctor`."""
        ...

    def recognizes(self, target: str) -> bool:
        """Return whether an experiment folder or a model folder holds a model of this task."""
        ...

    def evaluate(self, cfg: Config, target: str, utterances: Sequence[Utterance]) -> Evaluation:
        """Judge a finished model by the utterances of `evaluate.split`; figures, and files such as a page."""
        ...


@runtime_checkable
class SavedTask(TaskDefinition, Protocol):
    """A task whose checkpoints can be judged and used while the training continues: it makes a model folder of one."""

    def save(self, cfg: Config, run: RunDir, weights: dict[str, Tensor], output: RunDir) -> None:
        """Write the student of an experiment with these weights as `output.model`."""
        ...


@runtime_checkable
class PlannedTask(TaskDefinition, Protocol):
    """A task whose batches `voxstill plan` can show as a training makes them: it opens its data without a model."""

    def corpus(self, cfg: Config, run: RunDir, store: Store, prefix: str) -> Data:
        """Open the data of `build` in one process, from the shards below `prefix` of the work folder.

        What is made of them is written below `run`.
        """
        ...
