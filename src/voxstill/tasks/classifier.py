"""What the tasks `classes` and `speakers` have in common, each a file in `definitions/`.

What trains and judges a classifier is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from voxstill.core.config import Config
from voxstill.core.records import Utterance
from voxstill.decoding.checkpoint_files import architecture
from voxstill.nn.heads import HEADS, Task
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch import Tensor

    from voxstill.evaluation.results import Evaluation
    from voxstill.nn.frontends import Frontend
    from voxstill.tasks.data_classes import Classified
    from voxstill.training.setup import TrainingSetup
    from voxstill.training.task import Task as TrainingTask


@dataclass(frozen=True, slots=True)
class Classification:
    """A `TaskDefinition` of students that classify whole utterances."""

    task: Task

    def needs_labels(self, cfg: Config) -> bool:
        """Return whether the class of an utterance is its label."""
        from voxstill.tasks import classification

        return classification.column_of(cfg) == "text"

    def build(self, fabric: Fabric, cfg: Config, run: RunDir, store: Store, prefix: str) -> TrainingSetup:
        """Build what the training loop needs."""
        from voxstill.tasks import classification

        return classification.build(fabric, cfg, run, store, prefix)

    def corpus(self, cfg: Config, run: RunDir, store: Store, prefix: str) -> Classified:
        """Open the shards as a training in one process learns from them."""
        from voxstill.tasks import classification

        return classification.open_corpus(cfg, run, store, prefix)

    def rebuild(self, cfg: Config, run: RunDir) -> tuple[Frontend, Any, TrainingTask]:
        """Build the frontend, the model before its first step, and the task of an experiment."""
        from voxstill.tasks import classification

        return classification.rebuild(cfg, run)

    def save(self, cfg: Config, run: RunDir, weights: dict[str, Tensor], output: RunDir) -> None:
        """Write the student of an experiment with other weights, those of a checkpoint."""
        from voxstill.tasks import classification

        classification.save(cfg, run, weights, output)

    def recognizes(self, target: str) -> bool:
        """Return whether an experiment or a model folder is of this task."""
        if not architecture(target).endswith(HEADS[self.task]):
            return False
        from voxstill.evaluation import classification

        return classification.task_of(target) == self.task

    def evaluate(self, cfg: Config, target: str, utterances: Sequence[Utterance]) -> Evaluation:
        """Judge a finished student by the utterances of one split."""
        from voxstill.evaluation import classification

        return classification.evaluate(cfg, target, utterances)
